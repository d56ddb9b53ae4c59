// The pages of the console: overview, tools, prompts, tasks and events. A page is { list, detail }: a
// list of entries or null, and the element beside it.

const TRIED = 6; // tools that the overview offers
const QUICK = 2000; // milliseconds within which the result of a call comes into sight

/** The page for an address such as "#/tools/add". */
async function page(app, section, key) {
  switch (section) {
    case "tools":
      return listed(app, section, await app.list("tools"), key, (each) => toolPage(app, each));
    case "resources":
      return resourcesPage(app, key);
    case "prompts":
      return listed(app, section, await app.list("prompts"), key, (each) => promptPage(app, each));
    case "skills":
      return skillsPage(app, key);
    case "tasks":
      return tasksPage(app, key);
    case "events":
      return { list: null, detail: app.events.view() };
    default:
      return { list: null, detail: await overview(app) };
  }
}

const titleOf = ({ title, name }) => title ?? name;

function listed(app, section, entries, key, detail) {
  const nothing = `The server offers no ${section}.`;
  if (!entries.length) return { list: null, detail: emptyPage(section, nothing) };
  const list = app.searchList(section, entries, () => ({
    text: (each) => [titleOf(each), each.description ?? ""],
    link: ({ name }) => `#/${section}/${encodeURIComponent(name)}`,
  }));
  if (key === undefined) return { list, detail: null };
  const chosen = entries.find(({ name }) => name === key);
  const missing = `The server offers no ${key} among its ${section}.`;
  return { list, detail: chosen ? detail(chosen) : notice("error", missing) };
}

/** A page that has nothing to list. */
function emptyPage(section, text) {
  const title = section[0].toUpperCase() + section.slice(1);
  return h("article", {}, h("h1", {}, title), notice("info", text));
}

function tasksPage(app, key) {
  const { tasks } = app;
  const nothing = "No call of this browser has become a task yet. A call that takes long does.";
  const detail = key === undefined ? null : new TaskView(tasks.find(key), "h1").element;
  if (!tasks.all.length) return { list: null, detail: detail ?? emptyPage("tasks", nothing) };
  const list = app.searchList("tasks", tasks.all, () => ({
    text: ({ name, kept, status }) => [name, shortTime(kept.created), status],
    link: ({ href }) => href,
    mark: ({ status }) => badge(status),
  }));
  return { list, detail };
}

/** The page of skills, which may have the same name. */
async function skillsPage(app, key) {
  const skills = (await app.list("skills")).filter((each) => each?.uri && each.frontmatter?.name);
  if (!skills.length)
    return { list: null, detail: emptyPage("skills", "The server lists no skills.") };
  const list = app.searchList("skills", skills, () => ({
    text: ({ frontmatter }) => [frontmatter.name, frontmatter.description],
    link: ({ uri }) => `#/skills/${encodeURIComponent(uri)}`,
  }));
  if (key === undefined) return { list, detail: null };
  const chosen = skills.find(({ uri }) => uri === key);
  const missing = notice("error", `The server lists no skill ${key}.`);
  return { list, detail: chosen ? skillPage(app, chosen) : missing };
}

const shortTime = (at) =>
  new Date(at).toLocaleString([], { dateStyle: "short", timeStyle: "short" });

async function overview(app) {
  const { capabilities, instructions, supportedVersions, _meta } = await app.discovered();
  const info = _meta?.["io.modelcontextprotocol/serverInfo"] ?? {};
  const about = [info.name, info.version].filter(Boolean).join(" ");
  return h(
    "article",
    { className: "overview" },
    h(
      "div",
      { className: "hero" },
      h("h1", {}, info.title ?? info.name ?? "MCP server"),
      h(
        "p",
        { className: "hint" },
        about,
        info.websiteUrl ? [" · ", h("code", {}, info.websiteUrl)] : null,
      ),
      info.description ? h("p", { className: "description" }, info.description) : null,
      instructions ? h("blockquote", {}, instructions) : null,
    ),
    h("h2", {}, "Try it"),
    offers(app),
    h("h2", {}, "Connect a client"),
    connections(app.client.url, info.name ?? "server"),
    h(
      "details",
      { className: "more" },
      h("summary", {}, "Protocol"),
      h(
        "dl",
        {},
        [
          ["Revisions", supportedVersions.join(", ")],
          ["Capabilities", Object.keys(capabilities).join(", ")],
          ["Extensions", Object.keys(capabilities.extensions ?? {}).join(", ") || "none"],
        ].map(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]),
      ),
      json(capabilities, "Capabilities"),
    ),
    keysOf(app),
  );
}

/** The first tools, and how many of each kind there are. They appear when their lists have arrived. */
function offers(app) {
  const cards = h("ul", { className: "cards" });
  const kinds = h("p", { className: "kinds" });
  const count = async (section, noun) => {
    const lists = section === "resources" ? ["templates", "resources"] : [section];
    const entries = (await Promise.all(lists.map((each) => app.list(each)))).flat();
    return entries.length ? h("a", { href: `#/${section}` }, plural(entries.length, noun)) : null;
  };
  const counts = [
    count("tools", "tool"),
    count("resources", "resource"),
    count("prompts", "prompt"),
  ];
  Promise.all(counts)
    .then((links) => show(kinds, links.some(Boolean) ? links : "The server offers nothing yet."))
    .catch((error) => show(kinds, notice("error", error.message)));
  app.list("tools").then(
    (tools) => show(cards, tools.slice(0, TRIED).map(card)),
    () => {}, // reported by the counts
  );
  return h("div", {}, cards, kinds);
}

function card(tool) {
  const link = { href: `#/tools/${encodeURIComponent(tool.name)}` };
  return h(
    "li",
    {},
    h("a", link, h("strong", {}, titleOf(tool)), h("span", {}, tool.description ?? tool.name)),
  );
}

/** Lines with which common clients connect. */
function connections(url, named) {
  const name = named.replaceAll(/[^\w-]/g, "-");
  const servers = { [name]: { type: "http", url } };
  const configuration = (value) => JSON.stringify(value, null, 2);
  return tabs("Clients", [
    ["URL", () => codeBlock(url, "Any client")],
    [
      "Claude Code",
      () => codeBlock(`claude mcp add --transport http ${name} ${url}`, "In a terminal"),
    ],
    [
      "mcp.json",
      () => codeBlock(configuration({ mcpServers: servers }), "mcp.json, for Cursor and others"),
    ],
    ["VS Code", () => codeBlock(configuration({ servers }), ".vscode/mcp.json")],
    ["genmcp", () => codeBlock(`genmcp tools ${url}`, "In a terminal")],
  ]);
}

function keysOf(app) {
  const key = (name) => h("kbd", {}, name);
  return h(
    "details",
    { className: "more" },
    h("summary", {}, "Keys"),
    h(
      "p",
      {},
      key("1"),
      " to ",
      key(`${app.shownSections.length}`),
      " go to the sections, ",
      key("/"),
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

/** The head of an entry: its title, its name, pills and its description. */
function headOf({ title, name, description }, code, pills = []) {
  return [
    h("h1", {}, title ?? name ?? code),
    h(
      "p",
      { className: "hint pills" },
      h("code", {}, code),
      pills.map((each) => h("span", { className: "badge" }, each)),
    ),
    description ? h("p", { className: "description" }, description) : null,
  ];
}

function toolPage(app, tool) {
  const form = new SchemaForm(tool.inputSchema, app.drafts.get(tool.name));
  const last = app.activity.callOf(tool.name);
  const area = h("div", { className: "results" }, last?.view());
  const { annotations = {} } = tool;
  const marks = [
    annotations.readOnlyHint && "read only",
    annotations.destructiveHint && "may destroy",
    annotations.idempotentHint && "idempotent",
    !isVisibleTo("model", tool) && "for apps only",
  ].filter(Boolean);
  async function submit(event) {
    event.preventDefault();
    if (start.ariaDisabled === "true") return; // a double click is one call
    const values = form.read();
    if (values === null) return;
    app.drafts.set(tool.name, values);
    const params = { name: tool.name, arguments: values };
    const call = new Call(app, {
      method: "tools/call",
      params,
      title: titleOf(tool),
      schema: tool.inputSchema,
      python: `call(${pythonValue(tool.name)}, ${pythonValue(values)})`,
      finished: (result) => resultOf(app, params, result),
      onfault: (faults) => {
        for (const { pointer, message } of faults) form.show(pointer, message);
      },
    });
    app.activity.add(call);
    start.ariaDisabled = "true"; // a disabled button would lose the focus
    await closeApps(area);
    show(area, call.element);
    const running = call.run();
    area.scrollIntoView({ block: "nearest" });
    await running;
    start.ariaDisabled = "false";
    // Later the user may be reading something else.
    if (Date.now() - call.began.getTime() < QUICK) area.scrollIntoView({ block: "nearest" });
  }
  const start = h("button", { type: "submit", className: "primary" }, "Call");
  return h(
    "article",
    {},
    headOf(tool, tool.name, marks),
    h(
      "div",
      { className: "bench" },
      h(
        "div",
        {},
        h(
          "form",
          { noValidate: true, onsubmit: submit },
          form.element,
          h("div", { className: "actions" }, start, form.toggle),
        ),
        h(
          "details",
          {},
          h("summary", {}, "Schemas"),
          json(tool.inputSchema, "Input schema"),
          tool.outputSchema ? json(tool.outputSchema, "Output schema") : null,
        ),
      ),
      area,
    ),
  );
}

/**
 * A text field whose values the server completes while the user types.
 *
 * @param {App} app
 * @param {any} ref
 * @param {string} name
 * @param {() => Record<string, string>} values
 * @param {{ description?: string, required?: boolean }} [options]
 */
function completed(app, ref, name, values, { description, required } = {}) {
  const options = h("datalist", { id: newId("options") });
  const input = h("input", {
    type: "text",
    id: newId("field"),
    autocomplete: "off",
    spellcheck: false,
    required,
  });
  input.setAttribute("list", options.id);
  let waiting;
  async function complete() {
    const { [name]: value, ...others } = values();
    const params = { ref, argument: { name, value }, context: { arguments: others } };
    const nothing = { completion: { values: [] } };
    const { completion } = await app.client
      .request("completion/complete", params)
      .catch(() => nothing);
    show(
      options,
      completion.values.map((each) => h("option", { value: each })),
    );
  }
  const later = () => {
    clearTimeout(waiting);
    waiting = setTimeout(complete, 150);
  };
  if (app.capabilities?.completions) {
    input.addEventListener("input", later);
    input.addEventListener("focus", later);
  }
  const mark = required ? h("span", { className: "required" }, " *") : null;
  const label = h("label", { htmlFor: input.id }, name, mark);
  const hint = description ? h("p", { className: "hint" }, description) : null;
  const element = h("div", { className: "field" }, label, input, options, hint);
  return { name, value: () => input.value, element };
}

function promptPage(app, prompt) {
  const ref = { type: "ref/prompt", name: prompt.name };
  const fields = (prompt.arguments ?? []).map((each) =>
    completed(app, ref, each.name, () => values(), each),
  );
  const values = () => Object.fromEntries(fields.map((each) => [each.name, each.value()]));
  const area = h("div", { className: "results" });
  const message = ({ role, content }) =>
    h(
      "section",
      { className: `message ${role}` },
      h("h3", {}, role),
      [content].flat().map(contentBlock),
    );
  async function submit(event) {
    event.preventDefault();
    const filled = Object.fromEntries(Object.entries(values()).filter(([, value]) => value !== ""));
    const call = new Call(app, {
      method: "prompts/get",
      params: { name: prompt.name, arguments: filled },
      python: `prompt(${pythonValue(prompt.name)}, ${pythonValue(filled)})`,
      finished: ({ messages }) => h("div", {}, messages.map(message)),
    });
    show(area, call.element);
    await call.run();
  }
  const start = h("button", { type: "submit", className: "primary" }, "Get");
  return h(
    "article",
    {},
    headOf(prompt, prompt.name),
    h(
      "div",
      { className: "bench" },
      h(
        "form",
        { onsubmit: submit },
        fields.map((each) => each.element),
        h("div", { className: "actions" }, start),
      ),
      area,
    ),
  );
}
