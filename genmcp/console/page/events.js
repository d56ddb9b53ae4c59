// Subscriptions: what the server reports while this page is open.

const KEPT_EVENTS = 200; // events that are shown
const LIST_EVENTS = {
  toolsListChanged: "tools",
  promptsListChanged: "prompts",
  resourcesListChanged: "resources",
};

class Events {
  constructor(app) {
    this.app = app;
    this.uris = new Map();
    this.events = [];
    this.area = h("ul", { className: "events" });
    this.state = h("p", { className: "hint", role: "status" }, "Not listening.");
    this.abort = null;
    this.isBehind = false; // changes may have been missed
    this.confirmed = () => {};
  }

  has(uri) {
    return this.uris.has(uri);
  }

  /** Call `changed` instead of the function of a page that was left. */
  replace(uri, changed) {
    this.uris.set(uri, changed);
  }

  /** Call `changed` when a resource changes; returns once the server has confirmed it. */
  subscribe(uri, wanted, changed) {
    if (wanted) this.uris.set(uri, changed);
    else this.uris.delete(uri);
    return new Promise((confirmed) => {
      this.confirmed = () => confirmed(undefined);
      this.restart();
    });
  }

  /** Listen with the present subscriptions, for as long as the page is open. */
  async restart() {
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    const { capabilities } = this.app;
    const lists = Object.entries(LIST_EVENTS).filter(([, each]) => capabilities[each]?.listChanged);
    /** @type {Record<string, any>} */
    const wanted = Object.fromEntries(lists.map(([name]) => [name, true]));
    if (this.uris.size) wanted.resourceSubscriptions = [...this.uris.keys()];
    if (!Object.keys(wanted).length) {
      this.state.textContent = "The server reports no changes.";
      return;
    }
    for (let pause = 500; !abort.signal.aborted; pause = Math.min(pause * 2, 10_000)) {
      try {
        await this.app.client.listen(wanted, {
          signal: abort.signal,
          notified: (message) => {
            pause = 500;
            this.notified(message);
          },
        });
        this.state.textContent = "The stream has ended; connecting again…";
      } catch (error) {
        if (abort.signal.aborted) return;
        this.state.textContent = error.message;
        // Refused: the user has to log in, which starts anew, or the server reports no changes.
        if (error.code || error.status === 401 || error.status === 403) return;
      }
      this.isBehind = true;
      await new Promise((resume) => setTimeout(resume, pause));
    }
  }

  notified(message) {
    const { method, params } = message;
    if (method === "notifications/subscriptions/acknowledged") {
      this.state.textContent = "Listening.";
      this.confirmed();
      if (this.isBehind) {
        this.app.reconnected();
        for (const changed of this.uris.values()) changed(false);
      }
      this.isBehind = false;
      return;
    }
    this.events.unshift({ at: new Date(), message });
    this.events.length = Math.min(this.events.length, KEPT_EVENTS);
    this.render();
    this.app.activity.changed();
    if (method === "notifications/resources/updated") this.uris.get(params.uri)?.();
    const list = /^notifications\/(\w+)\/list_changed$/.exec(method ?? "")?.[1];
    if (list) this.app.changed(list);
  }

  render() {
    show(
      this.area,
      this.events.map(({ at, message }) =>
        h(
          "li",
          {},
          h(
            "details",
            {},
            h("summary", {}, timeOf(at), ` ${message.method}`),
            json(message, "Notification"),
          ),
        ),
      ),
    );
  }

  view() {
    this.render();
    return h(
      "article",
      {},
      h("h1", {}, "Events"),
      this.state,
      this.uris.size
        ? h(
            "ul",
            {},
            [...this.uris.keys()].map((uri) => h("li", {}, h("code", {}, uri))),
          )
        : notice(
            "info",
            "Changes of the lists appear here, and those of resources that you follow on their pages.",
          ),
      this.area,
    );
  }
}
