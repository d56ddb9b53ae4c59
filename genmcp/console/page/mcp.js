// The client: requests of revision 2026-07-28 to the endpoint that served this page.

const REVISION = "2026-07-28";
const META = "io.modelcontextprotocol/";
const TASKS = `${META}tasks`;
const SKILLS = `${META}skills`;
const UI = `${META}ui`;
const APP_TYPE = "text/html;profile=mcp-app";
const MOST_PAGES = 10_000; // of a list, in case a server never ends one

/** An error of the server or of the connection, with the JSON-RPC error if there is one. */
class McpError extends Error {
  /**
   * @param {string} message
   * @param {{ code?: number | null, data?: any, status?: number | null }} [options]
   */
  constructor(message, { code = null, data = null, status = null } = {}) {
    super(message);
    this.code = code;
    this.data = data;
    this.status = status;
  }
}

class McpClient {
  /**
   * `url` is the endpoint. `refused(status, challenge, token)` is called after a 401 or 403 with the
   * token of the request; `token()` returns the access token, or null.
   */
  constructor(url, { refused, token }) {
    this.url = url;
    this.refused = refused;
    this.token = token;
    this.lastId = 0;
  }

  /** The body of a request, as it is sent and shown. */
  body(method, params = {}, { progress = false, tasks = true } = {}) {
    this.lastId += 1;
    const meta = {
      [`${META}protocolVersion`]: REVISION,
      [`${META}clientInfo`]: { name: "genmcp-console", version: "1" },
      [`${META}clientCapabilities`]: {
        elicitation: { form: {}, url: {} },
        extensions: { ...(tasks ? { [TASKS]: {} } : {}), [UI]: { mimeTypes: [APP_TYPE] } },
      },
      [`${META}logLevel`]: "debug",
      ...(progress ? { progressToken: this.lastId } : {}),
    };
    return { jsonrpc: "2.0", id: this.lastId, method, params: { ...params, _meta: meta } };
  }

  /** The headers of a request; `schema` is the input schema of a tool that is called. */
  headers(body, schema = null) {
    const { method, params } = body;
    const headers = {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      "mcp-protocol-version": REVISION,
      "mcp-method": method,
    };
    const name = params.name ?? params.uri ?? params.taskId;
    if (name !== undefined && NAMED.has(method)) headers["mcp-name"] = headerValue(name);
    return { ...headers, ...argumentHeaders(schema, params.arguments) };
  }

  /**
   * Send a request and return its result. `notified` gets each notification of its stream; `sent`
   * and `received` get the JSON, for display.
   */
  async request(method, params = {}, options = {}) {
    const { tasks } = options; // false: the call must not become one
    const body = this.body(method, params, { progress: Boolean(options.notified), tasks });
    options.sent?.(body);
    const response = await this.send(body, options);
    /** @type {any} */
    let answer = null;
    for await (const message of messages(response)) {
      options.received?.(message);
      if (message.id !== undefined && !message.method) answer = message;
      else options.notified?.(message);
    }
    if (answer === null) throw new McpError("The connection ended before the answer arrived.");
    if (answer.error) {
      const { message, code, data } = answer.error;
      throw new McpError(message, { code, data, status: response.status });
    }
    return answer.result;
  }

  /**
   * @param {any} body
   * @param {{ signal?: AbortSignal, schema?: any }} [options]
   */
  async send(body, { signal, schema } = {}) {
    /** @type {Record<string, string>} */
    const headers = this.headers(body, schema);
    const token = this.token();
    if (token) headers.authorization = `Bearer ${token}`;
    let response;
    try {
      response = await fetch(this.url, {
        method: "POST",
        headers,
        body: JSON.stringify(body),
        signal,
        credentials: "same-origin",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new McpError("The server cannot be reached.");
    }
    const { status } = response;
    const challenge = response.headers.get("www-authenticate");
    if ((status === 401 || status === 403) && challenge !== null) {
      this.refused(status, challenge, token);
      const { error_description: why } = await response.json().catch(() => ({}));
      throw new McpError(why ?? "Access was denied.", { status });
    }
    return response;
  }

  /** All entries of a list, page by page. */
  async list(method, member) {
    const entries = [];
    let cursor;
    for (let pages = 0; pages < MOST_PAGES; pages += 1) {
      const page = await this.request(method, cursor === undefined ? {} : { cursor });
      for (const each of page[member]) entries.push(each);
      cursor = page.nextCursor ?? undefined;
      if (cursor === undefined) break;
    }
    return entries;
  }

  /** Listen for changes until `signal` aborts; `notified` gets each notification. */
  async listen(notifications, { notified, signal }) {
    const body = this.body("subscriptions/listen", { notifications });
    const response = await this.send(body, { signal });
    for await (const message of messages(response)) {
      if (message.error) throw new McpError(message.error.message, message.error);
      notified(message);
    }
  }
}

const NAMED = new Set([
  "tools/call",
  "prompts/get",
  "resources/read",
  "tasks/get",
  "tasks/update",
  "tasks/cancel",
]);

/** The headers of the arguments that are annotated so, at every level of `properties`. */
function argumentHeaders(schema, given) {
  const headers = {};
  for (const [name, each] of Object.entries(schema?.properties ?? {})) {
    const value = given?.[name];
    const annotated = each?.["x-mcp-header"];
    if (annotated && (isRaw(value) || ["string", "number", "boolean"].includes(typeof value))) {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      headers[`mcp-param-${annotated.toLowerCase()}`] = headerValue(text);
    }
    Object.assign(headers, argumentHeaders(each, value));
  }
  return headers;
}

/** A header value; text that a header cannot hold is encoded (2026-07-28, "Value Encoding"). */
function headerValue(text) {
  if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith("=?base64?"))
    return text;
  const bytes = new TextEncoder().encode(text);
  return `=?base64?${btoa(String.fromCharCode(...bytes))}?=`;
}

/** The JSON-RPC messages of a response: one of JSON, or those of an event stream. */
async function* messages(response) {
  const type = response.headers.get("content-type") ?? "";
  try {
    if (type.startsWith("text/event-stream")) yield* events(response.body);
    else yield parseJson(await response.text());
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const { status } = response;
    if (error instanceof SyntaxError) {
      throw new McpError(`The server answered with status ${status}.`, { status });
    }
    throw new McpError("The connection to the server was lost.", { status });
  }
}

/** The JSON of each event. Lines end with LF or CRLF. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let line = []; // the parts of a line that has not ended; a long one arrives in many
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const [first, ...others] = value.split("\n");
      line.push(first);
      for (const next of others) {
        const text = line.join("").replace(/\r$/, "");
        line = [next];
        if (text.startsWith("data:")) data.push(text.slice(5).trimStart());
        else if (text === "" && data.length) {
          const message = data.join("\n");
          data = [];
          if (message) yield parseJson(message);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // closes the connection of a stream that is left early
  }
}

/** The request as a command for a terminal. */
function asCurl(url, headers, body, hasToken = false) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = Object.entries(headers).map(
    ([name, value]) => `  -H ${quoted(`${name}: ${value}`)}`,
  );
  if (hasToken) lines.push('  -H "authorization: Bearer $TOKEN"');
  return [`curl -N ${quoted(url)}`, ...lines, `  -d ${quoted(JSON.stringify(body))}`].join(" \\\n");
}

/** The call as a program with genmcp's client. */
function asPython(url, call) {
  return [
    "import asyncio",
    "",
    "from genmcp import Client",
    "",
    "",
    "async def main() -> None:",
    `    async with Client(${pythonValue(url)}) as client:`,
    `        print(await client.${call})`,
    "",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

/** A JSON value as a Python expression. */
function pythonValue(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (isRaw(value)) return value.rawJSON;
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") {
    const members = Object.entries(value).map(
      ([key, each]) => `${JSON.stringify(key)}: ${pythonValue(each)}`,
    );
    return `{${members.join(", ")}}`;
  }
  return JSON.stringify(value);
}
