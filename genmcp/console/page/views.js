// The pages of the console: overview, tools, resources, prompts, tasks and events.

import { Call } from "./calls.js";
import { codeBlock, h, newId, notice, searchList, show } from "./dom.js";
import { SchemaForm } from "./form.js";
import { pythonValue } from "./mcp.js";
import { contentBlock, json, resourceContents } from "./results.js";

/** The page for an address such as "#/tools/add". */
export async function page(app, [section, key]) {
  switch (section) {
    case "tools":
      return listed(app, "tools", await app.list("tools"), (each) => each.name, key, (each) => toolPage(app, each));
    case "resources":
      return resources(app, key);
    case "prompts":
      return listed(app, "prompts", await app.list("prompts"), (each) => each.name, key, (each) => promptPage(app, each));
    case "tasks":
      return split(app.tasks.list(location.hash), key ? app.tasks.view(key) : null);
    case "events":
      return app.events.view();
    default:
      return overview(app);
  }
}

function split(list, detail) {
  return h("div", { className: detail ? "split chosen" : "split" }, h("div", { className: "side" }, list), h("div", { className: "detail" }, detail ?? notice("info", "Choose an entry of the list.")));
}

function listed(app, section, entries, keyOf, key, detail) {
  if (!entries.length) return notice("info", `The server offers no ${section}.`);
  const link = (each) => `#/${section}/${encodeURIComponent(keyOf(each))}`;
  const list = searchList({ entries, label: section, text: (each) => [each.title ?? keyOf(each), each.description ?? ""], link, current: location.hash });
  if (key === undefined) return split(list, null);
  const chosen = entries.find((each) => keyOf(each) === key);
  return split(list, chosen ? detail(chosen) : notice("error", `The server offers no ${key} among its ${section}.`));
}

async function overview(app) {
  const { capabilities, instructions, supportedVersions, _meta } = await app.discovered();
  const info = _meta?.["io.modelcontextprotocol/serverInfo"] ?? {};
  const { url } = app.client;
  const name = (info.name ?? "server").replaceAll(/[^\w-]/g, "-");
  const configuration = { mcpServers: { [name]: { type: "http", url } } };
  return h(
    "article",
    {},
    h("h1", {}, info.title ?? info.name ?? "MCP server"),
    h("p", { className: "hint" }, `${info.name ?? ""} ${info.version ?? ""}`),
    instructions ? h("blockquote", {}, instructions) : null,
    h("h2", {}, "Connect"),
    codeBlock(url, "URL"),
    codeBlock(`claude mcp add --transport http ${name} ${url}`, "Claude Code"),
    codeBlock(JSON.stringify(configuration, null, 2), "mcp.json, for Cursor and others"),
    codeBlock(JSON.stringify({ servers: configuration.mcpServers }, null, 2), ".vscode/mcp.json"),
    codeBlock(`genmcp tools ${url}`, "genmcp"),
    h("h2", {}, "Protocol"),
    h("dl", {}, h("dt", {}, "Revisions"), h("dd", {}, supportedVersions.join(", ")), h("dt", {}, "Capabilities"), h("dd", {}, Object.keys(capabilities).join(", ")), h("dt", {}, "Extensions"), h("dd", {}, Object.keys(capabilities.extensions ?? {}).join(", ") || "none")),
    json(capabilities, "Capabilities"),
    h("h2", {}, "Keys"),
    h(
      "p",
      {},
      h("kbd", {}, "1"),
      " to ",
      h("kbd", {}, "6"),
      " go to the sections, ",
      h("kbd", {}, "/"),
      " to the search; Ctrl and Enter send a form.",
    ),
    h(
      "label",
      {},
      h("input", {
        type: "checkbox",
        checked: app.hasKeys,
        onchange: (event) => (app.hasKeys = event.target.checked),
      }),
      " Use single keys",
    ),
  );
}

function toolPage(app, tool) {
  const form = new SchemaForm(tool.inputSchema, app.drafts.get(tool.name));
  const area = h("div");
  const { annotations = {} } = tool;
  const marks = [
    annotations.readOnlyHint && "read only",
    annotations.destructiveHint && "may destroy",
    annotations.idempotentHint && "idempotent",
  ].filter(Boolean);
  async function submit(event) {
    event.preventDefault();
    if (start.ariaDisabled === "true") return; // a double click is one call
    const given = form.read();
    if (given === null) return;
    app.drafts.set(tool.name, given);
    const call = new Call(app, {
      method: "tools/call",
      params: { name: tool.name, arguments: given },
      schema: tool.inputSchema,
      python: `call(${pythonValue(tool.name)}, ${pythonValue(given)})`,
      onfault: (faults) => faults.forEach(({ pointer, message }) => form.show(pointer, message)),
    });
    show(area, call.element);
    start.ariaDisabled = "true"; // a disabled button would lose the focus
    await call.run();
    start.ariaDisabled = "false";
  }
  const start = h("button", { type: "submit", className: "primary" }, "Call");
  const badges = marks.map((each) => [" ", h("span", { className: "badge" }, each)]);
  return h(
    "article",
    {},
    h("h1", {}, tool.title ?? tool.name),
    h("p", { className: "hint" }, h("code", {}, tool.name), badges),
    tool.description ? h("p", { className: "description" }, tool.description) : null,
    h(
      "form",
      { noValidate: true, onsubmit: submit },
      form.element,
      h("div", { className: "actions" }, start),
    ),
    area,
    h(
      "details",
      {},
      h("summary", {}, "Schemas"),
      json(tool.inputSchema, "Input"),
      tool.outputSchema ? json(tool.outputSchema, "Output") : null,
    ),
  );
}

async function resources(app, key) {
  const [all, templates] = await Promise.all([app.list("resources"), app.list("templates")]);
  if (!all.length && !templates.length) return notice("info", "The server offers no resources.");
  const entries = [...templates.map((each) => ({ ...each, uri: each.uriTemplate, isTemplate: true })), ...all];
  const link = (each) => `#/resources/${encodeURIComponent(each.uri)}`;
  const list = searchList({ entries, label: "resources", text: (each) => [each.title ?? each.name ?? each.uri, each.uri], link, current: location.hash });
  if (key === undefined) return split(list, null);
  const chosen = entries.find((each) => each.uri === key);
  return split(list, chosen?.isTemplate ? templatePage(app, chosen) : resourcePage(app, key, chosen));
}

function read(app, uri, area) {
  const call = new Call(app, {
    method: "resources/read",
    params: { uri },
    python: `read(${pythonValue(uri)})`,
    finished: ({ contents }) => h("div", {}, contents.map(resourceContents)),
  });
  show(area, call.element);
  return call.run();
}

function resourcePage(app, uri, resource) {
  const area = h("div");
  const subscribed = app.events.has(uri);
  const following = h("span", { className: "hint", role: "status" }, subscribed ? "Following changes." : "");
  const changed = () => area.isConnected && read(app, uri, area);
  if (subscribed) app.events.replace(uri, changed);
  async function follow(wanted) {
    following.textContent = "";
    await app.events.subscribe(uri, wanted, changed);
    following.textContent = wanted ? "Following changes." : "";
  }
  const onchange = (event) => follow(event.target.checked);
  const box = h("input", { type: "checkbox", checked: subscribed, onchange });
  // Another site can open this page at any URI: one that the server does not list waits for a click.
  const isWanted = resource !== undefined || app.asked.has(uri);
  const button = h("button", { type: "button", className: "primary", onclick: () => start() }, isWanted ? "Read again" : "Read");
  function start() {
    app.asked.add(uri);
    button.textContent = "Read again";
    return read(app, uri, area);
  }
  if (isWanted) queueMicrotask(start);
  else show(area, notice("info", "The server does not list this resource. Read it if you trust where its address is from."));
  return h(
    "article",
    {},
    h("h1", {}, resource?.title ?? resource?.name ?? uri),
    h("p", { className: "hint" }, h("code", {}, uri)),
    resource?.description ? h("p", { className: "description" }, resource.description) : null,
    h(
      "div",
      { className: "actions" },
      button,
      app.capabilities.resources?.subscribe ? h("label", {}, box, " Read again when it changes") : null,
      following,
    ),
    area,
  );
}

function templatePage(app, template) {
  const names = [...template.uriTemplate.matchAll(/\{[+#./;?&]?([^}]+)\}/g)].flatMap(([, list]) => list.split(",").map((each) => each.replace(/(\*|:\d+)$/, "")));
  const fields = names.map((name) => completed(app, { type: "ref/resource", uri: template.uriTemplate }, name, () => values()));
  const values = () => Object.fromEntries(fields.map((each) => [each.name, each.value()]));
  const uri = () => template.uriTemplate.replaceAll(/\{([+#./;?&]?)([^}]+)\}/g, (_, operator, list) => expand(operator, list, values()));
  return h(
    "article",
    {},
    h("h1", {}, template.title ?? template.name),
    h("p", { className: "hint" }, h("code", {}, template.uriTemplate)),
    template.description ? h("p", { className: "description" }, template.description) : null,
    h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          app.asked.add(uri());
          location.hash = `#/resources/${encodeURIComponent(uri())}`;
        },
      },
      fields.map((each) => each.element),
      h("div", { className: "actions" }, h("button", { type: "submit", className: "primary" }, "Read")),
    ),
  );
}

/** The expansion of one expression of a URI template (RFC 6570), for texts. */
function expand(operator, list, values) {
  const named = operator === ";" || operator === "?" || operator === "&";
  const encode = operator === "+" || operator === "#" ? encodeURI : encodeURIComponent;
  const parts = list.split(",").flatMap((each) => {
    const name = each.replace(/(\*|:\d+)$/, "");
    const value = values[name];
    if (value === "" || value === undefined) return [];
    return [named ? `${name}=${encode(value)}` : encode(value)];
  });
  const separator = { "+": ",", "#": ",", "?": "&" }[operator] ?? (operator || ",");
  const first = operator === "+" ? "" : operator;
  return parts.length ? first + parts.join(separator) : "";
}

/** A text field whose values the server completes while the user types. */
function completed(app, ref, name, values, { description, required } = {}) {
  const options = h("datalist", { id: newId("options") });
  const input = h("input", { type: "text", id: newId("field"), autocomplete: "off", spellcheck: false, required });
  input.setAttribute("list", options.id);
  let waiting;
  async function complete() {
    const { [name]: value, ...others } = values();
    const params = { ref, argument: { name, value }, context: { arguments: others } };
    const { completion } = await app.client.request("completion/complete", params).catch(() => ({ completion: { values: [] } }));
    show(options, completion.values.map((each) => h("option", { value: each })));
  }
  const later = () => {
    clearTimeout(waiting);
    waiting = setTimeout(complete, 150);
  };
  if (app.capabilities?.completions) {
    input.addEventListener("input", later);
    input.addEventListener("focus", later);
  }
  const label = h("label", { htmlFor: input.id }, name, required ? h("span", { className: "required" }, " *") : null);
  return { name, value: () => input.value, element: h("div", { className: "field" }, label, input, options, description ? h("p", { className: "hint" }, description) : null) };
}

function promptPage(app, prompt) {
  const ref = { type: "ref/prompt", name: prompt.name };
  const fields = (prompt.arguments ?? []).map((each) => completed(app, ref, each.name, () => values(), each));
  const values = () => Object.fromEntries(fields.map((each) => [each.name, each.value()]));
  const area = h("div");
  async function submit(event) {
    event.preventDefault();
    const given = Object.fromEntries(Object.entries(values()).filter(([, value]) => value !== ""));
    const call = new Call(app, {
      method: "prompts/get",
      params: { name: prompt.name, arguments: given },
      python: `prompt(${pythonValue(prompt.name)}, ${pythonValue(given)})`,
      finished: ({ messages }) => h("div", {}, messages.map((each) => h("section", { className: `message ${each.role}` }, h("h3", {}, each.role), [each.content].flat().map(contentBlock)))),
    });
    show(area, call.element);
    await call.run();
  }
  return h(
    "article",
    {},
    h("h1", {}, prompt.title ?? prompt.name),
    h("p", { className: "hint" }, h("code", {}, prompt.name)),
    prompt.description ? h("p", { className: "description" }, prompt.description) : null,
    h("form", { onsubmit: submit }, fields.map((each) => each.element), h("div", { className: "actions" }, h("button", { type: "submit", className: "primary" }, "Get"))),
    area,
  );
}
