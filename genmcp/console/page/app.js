// The console: an MCP client in the browser. It holds no data of the server but what it has asked for.

const SECTIONS = [
  ["overview", "Overview"],
  ["tools", "Tools", "Functions that a model can call. You can call them here."],
  [
    "resources",
    "Resources",
    "Data that clients read by address. A template makes an address of values.",
  ],
  ["prompts", "Prompts", "Messages that the server prepares for a user to start with."],
  [
    "tasks",
    "Tasks",
    "Calls of this browser that go on at the server, also while this page is closed.",
  ],
  ["events", "Events"],
  ["skills", "Skills", "Instructions for a model, and the files that they refer to."],
];
const LISTS = {
  tools: ["tools", "tools/list", "tools"],
  prompts: ["prompts", "prompts/list", "prompts"],
  skills: ["resources", "skills/list", "skills", SKILLS], // which change as resources do
  resources: ["resources", "resources/list", "resources"],
  templates: ["resources", "resources/templates/list", "resourceTemplates"],
};

class App {
  constructor() {
    const url = location.origin + location.pathname;
    this.login = new Login(url);
    this.client = new McpClient(url, {
      refused: (status, challenge, token) => this.login.refused(status, challenge, token),
      token: () => this.login.token(),
    });
    this.login.onneeded = () => this.askToLogIn();
    this.drafts = new Map();
    this.lists = new Map();
    this.wanted = new Set(); // the URIs that the user chose to read, besides those of a list
    this.searchLists = new Map(); // the lists of the sections, which stay while the user goes through them
    this.capabilities = null;
    this.split = h("div"); // a list, and the entry beside it
    this.beside = h("div");
    this.turn = {}; // the last page that was asked for
    this.main = fixed("#main");
    this.aside = fixed("#activity");
    this.banner = fixed("#banner");
    this.links = SECTIONS.map(([section, name]) =>
      h("a", { href: `#/${section}`, hidden: section === "skills" }, name),
    );
    show(fixed("nav"), this.links);
    this.tasks = new Tasks(this);
    this.events = new Events(this);
    this.activity = new Activity(this);
    this.tasks.watchers.add(this.main, () => this.listTasks());
  }

  async start() {
    this.theme();
    window.addEventListener("hashchange", () => this.render({ isMove: true }));
    document.addEventListener("keydown", (event) => this.key(event));
    try {
      await this.login.finish();
    } catch (error) {
      show(this.banner, notice("error", error.message));
    }
    // The form whose call needed the login has its values again.
    if (this.login.kept) this.drafts = new Map(parseJson(this.login.kept));
    await this.render();
    this.listen();
  }

  /** Follow the server and the tasks, once it has answered. */
  listen() {
    if (!this.capabilities) return;
    this.events.restart();
    this.tasks.follow();
  }

  /** What the server offers; asked for once. */
  async discovered() {
    this.discovery ??= this.client.request("server/discover");
    const discovery = this.discovery;
    try {
      const found = await discovery;
      this.capabilities = found.capabilities;
      const info = found._meta?.["io.modelcontextprotocol/serverInfo"];
      const title = info?.title ?? info?.name ?? "MCP server";
      document.title = title;
      fixed("#server").textContent = title;
      this.links[SECTIONS.length - 1].hidden = !this.has("resources", SKILLS);
      return found;
    } catch (error) {
      if (this.discovery === discovery) this.discovery = null; // asked for again
      throw error;
    }
  }

  /** Whether the server has a capability, or one of its extensions. */
  has(capability, extension) {
    const { [capability]: own, extensions } = this.capabilities;
    return extension === undefined ? own : extensions?.[extension];
  }

  /** The sections that have a link, and a key. */
  get shownSections() {
    return SECTIONS.filter((_, at) => !this.links[at].hidden);
  }

  /** All entries of a list: kept until the server reports a change. */
  async list(name) {
    const [capability, method, member, extension] = LISTS[name];
    await this.discovered();
    if (!this.has(capability, extension)) return [];
    // The promise is kept: a change that is reported before it resolves makes it outdated.
    if (!this.lists.has(name)) this.lists.set(name, this.client.list(method, member));
    const entries = this.lists.get(name);
    try {
      return await entries;
    } catch (error) {
      if (this.lists.get(name) === entries) this.lists.delete(name);
      throw error;
    }
  }

  /** Fetch all again: changes may have been missed while the server was away. */
  reconnected() {
    this.discovery = null;
    for (const capability of ["tools", "prompts", "resources"]) this.changed(capability);
  }

  changed(capability) {
    for (const [name, [of]] of Object.entries(LISTS))
      if (of === capability) this.lists.delete(name);
    // An entry that is open stays as it is: its form may be half filled in.
    if (location.hash === `#/${capability}`) this.render();
  }

  /** The search list of a section, of these entries; `make()` returns its options. */
  searchList(section, entries, make) {
    if (!this.searchLists.has(section)) {
      this.searchLists.set(section, new SearchList({ noun: section.slice(0, -1), ...make() }));
    }
    const list = this.searchLists.get(section);
    if (list.entries !== entries) list.fill(entries);
    return list;
  }

  /** Show the present states in the list of tasks. */
  listTasks() {
    const list = this.searchLists.get("tasks");
    if (list?.element.isConnected) list.fill(this.tasks.all);
  }

  /** Show how many calls and tasks have not ended. */
  counted(count) {
    const link = this.links[SECTIONS.findIndex(([section]) => section === "tasks")];
    const text = count ? `${count}` : "";
    if (link.children.length === 0) link.append(" ", h("span", { className: "count" }));
    say(link.lastChild, text);
    link.title = count ? `${count} running` : "";
  }

  /** Show the page of the address. After a move of the user, the focus goes to it. */
  async render({ isMove = false } = {}) {
    const [named, key] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
    const section = SECTIONS.some(([name]) => name === named) ? named : "overview";
    for (const link of this.links) {
      if (link.hash === `#/${section}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const turn = {};
    this.turn = turn;
    this.main.setAttribute("aria-busy", "true");
    let content;
    try {
      await this.discovered();
      content = await page(this, section, key === undefined ? key : decodeURIComponent(key));
    } catch (error) {
      const again = h("button", { type: "button", onclick: () => this.render() }, "Try again");
      const isAsked = this.login.needed && (error.status === 401 || error.status === 403);
      const fault = notice("error", error.message, " ", again);
      content = { list: null, detail: isAsked ? null : fault };
    }
    if (turn === this.turn) await closeApps(this.main);
    if (turn !== this.turn) return; // the user has gone on meanwhile
    document.body.dataset.section = section;
    this.display(section, content);
    this.main.removeAttribute("aria-busy");
    const isSearching = document.activeElement?.closest(".search input");
    if (isMove && !isSearching) this.focusContent();
  }

  /** Show a page. A list that is there stays, with its search, its place and the focus in it. */
  display(section, { list, detail }) {
    if (list === null) {
      show(this.main, detail);
      return;
    }
    const [, title, about] = SECTIONS.find(([name]) => name === section) ?? [];
    const keys =
      this.hasKeys && matchMedia("(hover: hover)").matches ? " The key / goes to the search." : "";
    const choose = `Choose one of ${plural(list.entries.length, list.noun)}.${keys}`;
    const back = h("a", { className: "back", href: `#/${section}` }, `All ${section}`);
    const shown = detail
      ? [back, detail]
      : h(
          "article",
          { className: "none" },
          h("h1", {}, title),
          h("p", {}, about),
          h("p", { className: "hint" }, choose),
        );
    if (!list.element.isConnected) {
      const side = h("div", { className: "side" }, list.element);
      this.beside = h("div", { className: "detail" });
      this.split = h("div", {}, side, this.beside);
      show(this.main, this.split);
    }
    this.split.className = detail ? "split chosen" : "split";
    show(this.beside, shown);
    list.select(location.hash);
  }

  /** Let a keyboard and a screen reader go on at the new content. */
  focusContent() {
    const target = this.main.querySelector("h1") ?? this.main;
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }

  /** Whether single keys are shortcuts, which speech input may trigger (WCAG 2.1.4). */
  get hasKeys() {
    return stored("localStorage", "genmcp:keys", true);
  }

  set hasKeys(value) {
    store("localStorage", "genmcp:keys", value);
  }

  key(event) {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.target.closest("form")?.requestSubmit();
      return;
    }
    const typing = event.target.closest("input, textarea, select");
    if (!this.hasKeys || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      find(this.main, "input[type=search]")?.focus();
    } else {
      const [section] = this.shownSections[Number(event.key) - 1] ?? [];
      if (section) location.hash = `#/${section}`;
    }
  }

  theme() {
    const button = fixed("#theme");
    const set = (theme) => {
      document.documentElement.dataset.theme = theme;
      button.textContent = theme === "dark" ? "Light theme" : "Dark theme";
    };
    const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    set(stored("localStorage", "genmcp:theme", preferred));
    button.addEventListener("click", () => {
      const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      store("localStorage", "genmcp:theme", theme);
      set(theme);
      for (const frame of document.querySelectorAll("iframe")) appFrames.get(frame)?.themed(theme);
    });
  }

  askToLogIn() {
    const scopes = this.login.needed?.scopes ?? [];
    const asked = scopes.join(" ");
    // It stays as it is while requests are refused: the user may be entering a token.
    if (find(this.banner, ".login")?.dataset.scopes === asked) return;
    const fault = h("p", { className: "fault", role: "alert" });
    const token = h("input", {
      type: "password",
      autocomplete: "off",
      "aria-label": "Access token",
    });
    const begin = () =>
      this.login
        .begin(JSON.stringify([...this.drafts]))
        .catch((error) => (fault.textContent = error.message));
    const use = (event) => {
      event.preventDefault();
      this.login.use(token.value);
      show(this.banner);
      this.restart();
    };
    const element = h(
      "section",
      { className: "notice info login", "aria-label": "Log in" },
      h("h2", {}, "Log in"),
      h(
        "p",
        {},
        "This server wants to know who calls",
        scopes.length ? [", and asks for the scopes ", h("code", {}, asked)] : null,
        ".",
      ),
      h(
        "div",
        { className: "actions" },
        h("button", { type: "button", className: "primary", onclick: begin }, "Log in"),
      ),
      h(
        "details",
        {},
        h("summary", {}, "Use an access token"),
        h(
          "form",
          { className: "actions", onsubmit: use },
          token,
          h("button", { type: "submit" }, "Use"),
        ),
      ),
      fault,
    );
    element.dataset.scopes = asked;
    show(this.banner, element);
  }

  async restart() {
    this.discovery = null;
    this.lists.clear();
    await this.render();
    this.listen();
  }
}

new App().start();
