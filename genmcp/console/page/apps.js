// Apps (SEP-1865): pages that the server has for the results of its tools, in frames, and the host's
// side of their protocol. A frame has no origin: its page reaches this one by messages alone, and by
// its Content-Security-Policy only the origins that the server declares for it.

const APP_REVISION = "2026-01-26";
const APP_ORIGIN = /^(?:https?|wss?):\/\/(?:\*\.)?[A-Za-z0-9.-]+(?::\d{1,5})?$/;
const APP_HEIGHTS = [40, 800]; // pixels
const MOST_APP_CALLS = 8; // of one app at the same time
const MOST_APP_NOTES = 100; // of its calls and messages that are shown
const APP_GOODBYE = 300; // milliseconds in which an app may save something before it is closed
const INVALID_PARAMS = -32602;
const METHOD_NOT_FOUND = -32601;
const REFUSED = -32000; // as the specification of apps has it for a user who declines

/** The app of each frame. A frame that has left the page is forgotten with its element. */
const appFrames = new WeakMap();

window.addEventListener("message", ({ source, origin, data }) => {
  if (origin !== "null") return;
  for (const frame of document.querySelectorAll("iframe")) {
    if (frame.contentWindow === source) appFrames.get(frame)?.receive(data);
  }
});

/** The result of a tool, below the app that the server has for it. */
function resultOf(app, { name, arguments: given }, result) {
  const area = h("div");
  const open = (tools) => {
    const tool = tools.find((each) => each.name === name);
    const uri = tool?._meta?.ui?.resourceUri;
    if (!String(uri).startsWith("ui://")) return;
    show(area, new AppFrame(app, tool, given ?? {}, result).element);
  };
  app.list("tools").then(open, () => {}); // its failure is shown by the list of tools
  return h("div", {}, area, toolResult(result));
}

/** Let the apps in an element end, which is about to leave the page. */
async function closeApps(element) {
  const frames = [...element.querySelectorAll("iframe")];
  await Promise.all(frames.map((frame) => appFrames.get(frame)?.close()));
}

/** Whether a tool is visible to `who`, "app" or "model". Without a declaration it is to both. */
function isVisibleTo(who, tool) {
  const visibility = tool._meta?.ui?.visibility ?? [who];
  return Array.isArray(visibility) && visibility.includes(who);
}

/** What the name of a tool begins with at a hub: the server that the tool belongs to. */
function memberOf({ name }) {
  return name.slice(0, name.lastIndexOf("/") + 1);
}

/** The policy of the page of an app. What is no origin could be another directive: it is left out. */
function appPolicy(csp) {
  const of = (name) =>
    [csp?.[name]].flat().filter((each) => typeof each === "string" && APP_ORIGIN.test(each));
  const only = (origins) => (origins.length ? origins.join(" ") : "'none'");
  const loaded = of("resourceDomains").join(" ");
  return [
    "default-src 'none'",
    `script-src 'unsafe-inline' ${loaded}`,
    `style-src 'unsafe-inline' ${loaded}`,
    `img-src data: blob: ${loaded}`,
    `media-src data: blob: ${loaded}`,
    `font-src data: ${loaded}`,
    `connect-src ${only(of("connectDomains"))}`,
    `frame-src ${only(of("frameDomains"))}`,
    `base-uri ${only(of("baseUriDomains"))}`,
    "form-action 'none'",
  ].join("; ");
}

/** An app for one result of a tool. `element` has its frame, its questions, and what it has done. */
class AppFrame {
  constructor(app, tool, given, result) {
    this.app = app;
    this.tool = tool;
    this.given = given;
    this.result = result;
    this.page = null; // its document and its `ui` settings, as a promise
    this.isReady = false; // whether it has been initialized
    this.isOpeningLink = false; // whether it waits for the user to open a link
    this.asked = Promise.resolve(); // the last question
    this.allowed = new Map(); // the answers of the user, as promises, by the tool
    this.running = 0; // calls
    this.closed = () => {};
    this.frame = h("iframe", {
      // With forms a page gets their events. By its policy none is sent anywhere.
      sandbox: "allow-scripts allow-forms",
      src: `${location.pathname}?app`,
      title: `App of ${titleOf(tool)}`,
    });
    this.question = h("div");
    this.notes = h("ul", { className: "logs", hidden: true, "aria-label": "Acts of the app" });
    this.element = h("div", { className: "app" }, this.frame, this.question, this.notes);
    appFrames.set(this.frame, this);
  }

  post(message) {
    // Integers that keep all their digits are objects of this window, and mean nothing in another.
    const plain = JSON.parse(JSON.stringify({ jsonrpc: "2.0", ...message }));
    this.frame.contentWindow?.postMessage(plain, "*"); // "null" is no origin that could be named
  }

  /** Handle a message of the app. It may be anything. */
  async receive(data) {
    let message;
    try {
      message = JSON.parse(JSON.stringify(data)) ?? {};
    } catch {
      return; // not JSON
    }
    const { jsonrpc, id, method, params } = message;
    if (jsonrpc !== "2.0") return;
    if (typeof method !== "string")
      this.closed(); // the response to the only request of this side
    else if (id === undefined) this.notified(method, params ?? {});
    else {
      try {
        this.post({ id, result: await this.respond(method, params ?? {}) });
      } catch (error) {
        const { code, message: text, data: detail } = error;
        this.post({
          id,
          error: { code: code ?? REFUSED, message: text, data: detail ?? undefined },
        });
      }
    }
  }

  notified(method, params) {
    switch (method) {
      case "ui/notifications/sandbox-proxy-ready":
        this.load();
        break;
      case "ui/notifications/initialized":
        this.isReady = true;
        this.post({ method: "ui/notifications/tool-input", params: { arguments: this.given } });
        this.post({ method: "ui/notifications/tool-result", params: this.result });
        break;
      case "ui/notifications/size-changed":
        if (Number.isFinite(params.height)) {
          const [least, most] = APP_HEIGHTS;
          this.frame.style.height = `${Math.min(Math.max(params.height, least), most)}px`;
        }
        break;
      case "notifications/message":
        this.note("Log: ", longText(h("span"), plainText(params.data ?? null)));
    }
  }

  respond(method, params) {
    switch (method) {
      case "ui/initialize":
        return this.initialize();
      case "ping":
        return {};
      case "tools/call":
        return this.call(params);
      case "ui/open-link":
        return this.openLink(params);
      case "ui/message":
        return this.message(params);
      case "ui/request-display-mode":
        return { mode: "inline" };
      default:
        throw new McpError(`The console does not have ${method}`, { code: METHOD_NOT_FOUND });
    }
  }

  /** Send the page to its frame, under its policy. */
  async load() {
    this.isReady = false;
    this.page ??= this.read();
    try {
      const { html, ui } = await this.page;
      this.frame.classList.toggle("plain", ui.prefersBorder === false);
      // The policy comes before all that the page contains; a second doctype has no meaning.
      const policy = `<meta http-equiv="content-security-policy" content="${appPolicy(ui.csp)}">`;
      const params = { html: `<!doctype html>${policy}${html}` };
      this.post({ method: "ui/notifications/sandbox-resource-ready", params });
    } catch (error) {
      show(this.question, notice("error", `The app cannot be shown: ${error.message}`));
    }
  }

  async read() {
    const { resourceUri: uri } = this.tool._meta.ui;
    const { contents } = await this.app.client.request("resources/read", { uri });
    const { mimeType, text, blob, _meta } = contents[0] ?? {};
    if (mimeType !== APP_TYPE) throw new McpError(`${uri} is not of the type ${APP_TYPE}.`);
    const listed = async () =>
      (await this.app.list("resources")).find((each) => each.uri === uri)?._meta?.ui;
    const bytes = () => Uint8Array.from(atob(blob), (each) => each.charCodeAt(0));
    const html = text ?? new TextDecoder().decode(bytes());
    return { html, ui: _meta?.ui ?? (await listed()) ?? {} };
  }

  async initialize() {
    const { ui } = await this.page;
    return {
      protocolVersion: APP_REVISION,
      hostInfo: { name: "genmcp-console", version: "1" },
      hostCapabilities: {
        openLinks: {},
        serverTools: {},
        message: { text: {} },
        logging: {},
        sandbox: { csp: ui.csp },
      },
      hostContext: {
        toolInfo: { tool: this.tool },
        theme: document.documentElement.dataset.theme,
        displayMode: "inline",
        availableDisplayModes: ["inline"],
        containerDimensions: { maxHeight: APP_HEIGHTS[1] },
        locale: navigator.language,
        timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone,
        platform: "web",
      },
    };
  }

  /** Call a tool of this server for the app. The call is shown, with the questions of the tool. */
  async call({ name, arguments: given = {} }) {
    const tool = (await this.app.list("tools")).find((each) => each.name === name);
    if (!tool || !isVisibleTo("app", tool) || memberOf(tool) !== memberOf(this.tool)) {
      throw new McpError(`No tool ${name} is visible to apps`, { code: INVALID_PARAMS });
    }
    if (this.running >= MOST_APP_CALLS) throw new McpError("Too many calls are running");
    this.running += 1;
    try {
      await this.allow(tool);
      const call = new Call(this.app, {
        method: "tools/call",
        params: { name, arguments: given },
        schema: tool.inputSchema,
        isAwaited: true,
      });
      this.note(h("details", {}, h("summary", {}, "Call: ", h("code", {}, name)), call.element));
      return await call.run();
    } finally {
      this.running -= 1;
    }
  }

  /** Ask the user before the first call of a tool, unless it is of this page and only reads. */
  async allow({ name, annotations, _meta }) {
    const isOwn = _meta?.ui?.resourceUri === this.tool._meta.ui.resourceUri;
    if (isOwn && annotations?.readOnlyHint === true) return;
    const message = `The app asks to call ${name}. If you allow it, it may do so again.`;
    if (!this.allowed.has(name)) this.allowed.set(name, this.ask({ message }, allowQuestion));
    await this.allowed.get(name);
  }

  /** Ask the user, once the questions before have been answered. */
  ask(params, question) {
    const asked = this.asked.then(async () => {
      const request = { method: "elicitation/create", params };
      const { action } = await ask(this.question, request, undefined, question);
      if (action !== "accept") throw new McpError("The user declined");
    });
    this.asked = asked.catch(() => {});
    return asked;
  }

  async openLink({ url }) {
    const { protocol } = URL.canParse(url) ? new URL(url) : { protocol: "" };
    if (protocol !== "https:" && protocol !== "http:") {
      throw new McpError("Only URLs with http and https are opened", { code: INVALID_PARAMS });
    }
    if (this.isOpeningLink) throw new McpError("Another link waits for the user");
    this.isOpeningLink = true;
    try {
      const message = "The app asks to open a page in a new window.";
      await this.ask({ mode: "url", url, message });
      return {};
    } finally {
      this.isOpeningLink = false;
    }
  }

  /** Show a message for the conversation, which this host does not have. */
  message({ content }) {
    const texts = [content].flat().map((block) => (block?.type === "text" ? block.text : null));
    if (!texts.every((each) => typeof each === "string")) {
      throw new McpError("A message must consist of text", { code: INVALID_PARAMS });
    }
    this.note("Message: ", longText(h("span"), texts.join("\n")));
    return {};
  }

  note(...children) {
    this.notes.hidden = false;
    this.notes.append(h("li", {}, children));
    if (this.notes.childElementCount > MOST_APP_NOTES) this.notes.firstChild?.remove();
  }

  /** Report the theme, which the user has changed. */
  themed(theme) {
    if (this.isReady)
      this.post({ method: "ui/notifications/host-context-changed", params: { theme } });
  }

  /** Let the app end, and wait for it a moment. */
  async close() {
    if (!this.isReady) return;
    this.isReady = false;
    await new Promise((closed) => {
      this.closed = () => closed(undefined);
      this.post({ id: "teardown", method: "ui/resource-teardown", params: {} });
      setTimeout(closed, APP_GOODBYE);
    });
  }
}
