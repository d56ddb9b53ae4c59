// The console: an MCP client in the browser. It holds no data of the server but what it has asked for.

import { h, notice, show } from "./dom.js";
import { Events } from "./events.js";
import { Login } from "./login.js";
import { McpClient } from "./mcp.js";
import { Tasks } from "./tasks.js";
import { page } from "./views.js";

const SECTIONS = [["overview", "Overview"], ["tools", "Tools"], ["resources", "Resources"], ["prompts", "Prompts"], ["tasks", "Tasks"], ["events", "Events"]];
const LISTS = {
  tools: ["tools", "tools/list", "tools"],
  prompts: ["prompts", "prompts/list", "prompts"],
  resources: ["resources", "resources/list", "resources"],
  templates: ["resources", "resources/templates/list", "resourceTemplates"],
};

class App {
  constructor() {
    const url = location.origin + location.pathname;
    this.login = new Login(url);
    this.client = new McpClient(url, {
      authorize: (status, challenge) => this.login.refused(status, challenge),
      token: () => this.login.token(),
    });
    this.login.onneeded = () => this.askToLogIn();
    this.drafts = new Map();
    this.lists = new Map();
    this.capabilities = null;
    this.main = document.querySelector("main");
    this.banner = document.querySelector("#banner");
    this.tasks = new Tasks(this);
    this.events = new Events(this);
  }

  async start() {
    this.counted();
    this.theme();
    window.addEventListener("hashchange", () => this.render());
    document.addEventListener("keydown", (event) => this.key(event));
    try {
      await this.login.finish();
    } catch (error) {
      show(this.banner, notice("error", error.message));
    }
    await this.render();
    if (this.capabilities) this.events.restart();
  }

  /** What the server offers; asked for once. */
  async discovered() {
    this.discovery ??= await this.client.request("server/discover");
    this.capabilities = this.discovery.capabilities;
    const info = this.discovery._meta?.["io.modelcontextprotocol/serverInfo"];
    const title = info?.title ?? info?.name ?? "MCP server";
    document.title = title;
    document.querySelector("#server").textContent = title;
    return this.discovery;
  }

  /** All entries of a list: kept until the server reports a change. */
  async list(name) {
    const [capability, method, member] = LISTS[name];
    await this.discovered();
    if (!this.capabilities[capability]) return [];
    if (!this.lists.has(name)) this.lists.set(name, await this.client.list(method, member));
    return this.lists.get(name);
  }

  changed(capability) {
    for (const [name, [of]] of Object.entries(LISTS)) if (of === capability) this.lists.delete(name);
    if (location.hash.startsWith(`#/${capability}`) && !location.hash.slice(2).includes("/")) this.render();
  }

  counted() {
    const count = this.tasks?.open ?? 0;
    for (const [section, name] of SECTIONS) {
      const link = document.querySelector(`nav a[href="#/${section}"]`);
      link.textContent = section === "tasks" && count ? `${name} (${count})` : name;
    }
  }

  async render() {
    const path = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
    const section = SECTIONS.some(([name]) => name === path[0]) ? path[0] : "overview";
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#/${section}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const turn = (this.turn = {});
    this.main.setAttribute("aria-busy", "true");
    let content;
    try {
      await this.discovered();
      content = await page(this, [section, path[1]]);
    } catch (error) {
      content = this.login.needed ? null : notice("error", error.message, " ", h("button", { type: "button", onclick: () => this.render() }, "Try again"));
    }
    if (turn !== this.turn) return; // the user has gone on meanwhile
    const side = this.main.querySelector(".side .entries")?.scrollTop;
    const search = this.main.querySelector(".side input")?.value;
    const before = this.section;
    this.section = section;
    show(this.main, content);
    if (before === section && search !== undefined) this.restore(search, side);
    else this.main.querySelector("h1")?.setAttribute("tabindex", "-1");
    this.main.removeAttribute("aria-busy");
  }

  /** Keep the search and the place in a list while the user goes through its entries. */
  restore(search, side) {
    const field = this.main.querySelector(".side input");
    if (field && search) {
      field.value = search;
      field.dispatchEvent(new Event("input"));
    }
    const list = this.main.querySelector(".side .entries");
    if (list && side) list.scrollTop = side;
  }

  key(event) {
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      this.main.querySelector("input[type=search]")?.focus();
    } else if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.target.closest("form")?.requestSubmit();
    } else if (/^[1-6]$/.test(event.key) && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      location.hash = `#/${SECTIONS[Number(event.key) - 1][0]}`;
    }
  }

  theme() {
    const button = document.querySelector("#theme");
    const set = (theme) => {
      document.documentElement.dataset.theme = theme;
      button.textContent = theme === "dark" ? "Light theme" : "Dark theme";
    };
    const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    set(localStorage.getItem("genmcp:theme") ?? preferred);
    button.addEventListener("click", () => {
      const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      localStorage.setItem("genmcp:theme", theme);
      set(theme);
    });
  }

  askToLogIn() {
    const fault = h("p", { className: "fault", role: "alert" });
    const token = h("input", { type: "password", autocomplete: "off", "aria-label": "Access token" });
    const { scopes } = this.login.needed;
    const begin = async () => {
      try {
        await this.login.begin();
      } catch (error) {
        fault.textContent = error.message;
      }
    };
    const use = (event) => {
      event.preventDefault();
      this.login.use(token.value);
      show(this.banner);
      this.restart();
    };
    show(
      this.banner,
      h(
        "section",
        { className: "notice info", "aria-label": "Log in" },
        h("h2", {}, "Log in"),
        h("p", {}, "This server wants to know who calls", scopes.length ? [", and asks for the scopes ", h("code", {}, scopes.join(" "))] : null, "."),
        h("div", { className: "actions" }, h("button", { type: "button", className: "primary", onclick: begin }, "Log in")),
        h("details", {}, h("summary", {}, "Use an access token"), h("form", { className: "actions", onsubmit: use }, token, h("button", { type: "submit" }, "Use"))),
        fault,
      ),
    );
  }

  async restart() {
    this.discovery = undefined;
    this.lists.clear();
    await this.render();
    if (this.capabilities) this.events.restart();
  }
}

new App().start();
