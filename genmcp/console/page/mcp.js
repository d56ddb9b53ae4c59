// The client: requests of revision 2026-07-28 to the endpoint that served this page.

export const REVISION = "2026-07-28";
const META = "io.modelcontextprotocol/";
const TASKS = `${META}tasks`;

/** An error of the server or of the connection, with the JSON-RPC error if there is one. */
export class McpError extends Error {
  constructor(message, { code = null, data = null, status = null } = {}) {
    super(message);
    Object.assign(this, { code, data, status });
  }
}

export class McpClient {
  /**
   * `url` is the endpoint. `authorize(challenge)` is called after a 401 or 403, and returns whether
   * the request may be sent again; `token()` returns the access token, or null.
   */
  constructor(url, { authorize = async () => false, token = () => null } = {}) {
    this.url = url;
    this.authorize = authorize;
    this.token = token;
    this.lastId = 0;
  }

  /** The body of a request, as it is sent and shown. */
  body(method, params = {}, { progress = false } = {}) {
    this.lastId += 1;
    const meta = {
      [`${META}protocolVersion`]: REVISION,
      [`${META}clientInfo`]: { name: "genmcp-console", version: "1" },
      [`${META}clientCapabilities`]: {
        elicitation: { form: {}, url: {} },
        extensions: { [TASKS]: {} },
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
    for (const [property, each] of Object.entries(schema?.properties ?? {})) {
      const value = params.arguments?.[property];
      if (each?.["x-mcp-header"] && ["string", "number", "boolean"].includes(typeof value)) {
        headers[`mcp-param-${each["x-mcp-header"].toLowerCase()}`] = headerValue(String(value));
      }
    }
    return headers;
  }

  /**
   * Send a request and return its result. `notified` gets each notification of its stream; `sent`
   * and `received` get the JSON, for display.
   */
  async request(method, params = {}, options = {}) {
    const body = this.body(method, params, { progress: Boolean(options.notified) });
    options.sent?.(body);
    const response = await this.send(body, options);
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

  async send(body, { signal, schema } = {}) {
    for (let attempt = 0; ; attempt += 1) {
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
      const refused = response.status === 401 || response.status === 403;
      const challenge = response.headers.get("www-authenticate");
      if (refused && attempt < 2 && (await this.authorize(response.status, challenge))) continue;
      if (refused && challenge !== null) {
        const { error_description: why } = await response.json().catch(() => ({}));
        throw new McpError(why ?? "Access was denied.", { status: response.status });
      }
      return response;
    }
  }

  /** All entries of a list, page by page. */
  async list(method, member) {
    const entries = [];
    let cursor;
    do {
      const page = await this.request(method, cursor === undefined ? {} : { cursor });
      entries.push(...page[member]);
      cursor = page.nextCursor;
    } while (cursor !== undefined && cursor !== null);
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

const NAMED = new Set(["tools/call", "prompts/get", "resources/read", "tasks/get", "tasks/update", "tasks/cancel"]);

/** A header value; text that a header cannot hold is encoded (2026-07-28, "Value Encoding"). */
function headerValue(text) {
  if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith("=?base64?")) return text;
  const bytes = new TextEncoder().encode(text);
  return `=?base64?${btoa(String.fromCharCode(...bytes))}?=`;
}

/** The JSON-RPC messages of a response: one of JSON, or those of an event stream. */
async function* messages(response) {
  const type = response.headers.get("content-type") ?? "";
  if (!type.startsWith("text/event-stream")) {
    const text = await response.text();
    try {
      yield JSON.parse(text);
    } catch {
      throw new McpError(`The server answered with status ${response.status}.`, { status: response.status });
    }
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let data = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const lines = text.split(/\r\n|\n|\r/);
    text = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      else if (line === "" && data.length) {
        const message = data.join("\n");
        data = [];
        if (message) yield JSON.parse(message);
      }
    }
  }
}

/** The request as a command for a terminal. */
export function asCurl(url, headers, body) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = Object.entries(headers).map(([name, value]) => `  -H ${quoted(`${name}: ${value}`)}`);
  return [`curl -N ${quoted(url)}`, ...lines, `  -d ${quoted(JSON.stringify(body))}`].join(" \\\n");
}

/** The call as a program with genmcp's client. */
export function asPython(url, call) {
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
export function pythonValue(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") {
    const members = Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${pythonValue(each)}`);
    return `{${members.join(", ")}}`;
  }
  return JSON.stringify(value);
}
