// The activity, beside every page: what runs now, what has ended last, and the newest events.

const KEPT_CALLS = 20; // the last ones, whose results are there when the user comes back
const RECENT = 6;

class Activity {
  constructor(app) {
    this.app = app;
    this.calls = []; // of tools, the newest first
    this.running = h("ul", { className: "running" });
    this.recent = h("ul");
    this.news = h("ul");
    this.rows = new WeakMap();
    const part = (title, list, empty) =>
      h("section", {}, h("h2", {}, title), list, h("p", { className: "hint empty" }, empty));
    show(
      app.aside,
      part("Running now", this.running, "No call or task is running."),
      part("Ended", this.recent, "Calls and tasks appear here when they have ended."),
      part("Events", this.news, "The server has reported no changes yet."),
    );
    app.tasks.watchers.add(app.aside, () => this.changed());
  }

  /** Remember a call of a tool. */
  add(call) {
    this.calls = [call, ...this.calls.filter((each) => each.params.name !== call.params.name)];
    const dropped = this.calls.findLastIndex((each) => each.hasEnded);
    if (this.calls.length > KEPT_CALLS && dropped >= 0) this.calls.splice(dropped, 1);
  }

  /** The last call of a tool, or undefined. */
  callOf(tool) {
    return this.calls.find((each) => each.params.name === tool);
  }

  changed() {
    const { tasks, events } = this.app;
    const all = [
      ...this.calls.filter((each) => each.task === null).map((each) => this.ofCall(each)),
      ...tasks.all.map((each) => this.ofTask(each)),
    ].sort((one, other) => other.at - one.at);
    this.list(
      this.running,
      all.filter((each) => !each.hasEnded),
    );
    this.list(this.recent, all.filter((each) => each.hasEnded).slice(0, RECENT));
    show(
      this.news,
      (events?.events ?? [])
        .slice(0, RECENT)
        .map(({ at, message }) =>
          h(
            "li",
            {},
            h(
              "a",
              { href: "#/events" },
              h("strong", {}, wordsOf(message)),
              h("span", {}, timeOf(at)),
            ),
          ),
        ),
    );
    this.app.counted(all.filter((each) => !each.hasEnded).length);
  }

  ofCall(call) {
    const { title, params, state: status, hasEnded, progress, text, began } = call;
    const href = `#/tools/${encodeURIComponent(params.name)}`;
    return { key: call, href, title, status, hasEnded, progress, text, at: began };
  }

  ofTask(task) {
    const { href, name: title, status, hasEnded, progress, text, kept } = task;
    return { key: task, href, title, status, hasEnded, progress, text, at: new Date(kept.created) };
  }

  /** Show these in a list. Rows that are there are changed in place, and keep the focus. */
  list(element, entries) {
    const rows = entries.map((entry) => {
      if (!this.rows.has(entry.key)) {
        const bar = h("progress", { "aria-label": `Progress of ${entry.title}` });
        const link = h(
          "a",
          { href: entry.href },
          h("strong", {}, entry.title),
          h("span"),
          h("span"),
          bar,
        );
        this.rows.set(entry.key, h("li", {}, link));
      }
      const row = this.rows.get(entry.key);
      const [, pill, text, bar] = row.firstChild.children;
      if (pill.dataset.status !== entry.status)
        show(pill, badge(entry.status)).dataset.status = entry.status;
      say(text, entry.hasEnded ? entry.at.toLocaleTimeString() : entry.text);
      fillBar(bar, entry.hasEnded ? null : entry.progress);
      return row;
    });
    if (
      rows.length !== element.children.length ||
      rows.some((row, at) => row !== element.children[at])
    ) {
      show(element, rows);
    }
  }
}

/** A notification in words: "Tools have changed", or the resource that has. */
function wordsOf({ method = "", params }) {
  const list = /^notifications\/(\w+)\/list_changed$/.exec(method)?.[1];
  if (list) return `The list of ${list} has changed`;
  if (method === "notifications/resources/updated") return `${params.uri} has changed`;
  return method;
}
