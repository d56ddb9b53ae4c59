// Runs a call and shows it while it runs: progress, log messages, questions, its task and its result.

const MOST_MESSAGES = 500; // that are kept to be shown

/** A request with its progress, shown in `element`; `finished` renders its result. */
class Call {
  /**
   * @typedef {object} CallOptions
   * @property {string} method
   * @property {any} params
   * @property {string} [title] the name of the call in the activity
   * @property {any} [schema] the input schema of a tool
   * @property {string} [python] the call in Python
   * @property {(result: any) => Node} [finished] renders the result
   * @property {(faults: any[]) => void} [onfault]
   * @property {boolean} [isAwaited] whether `run` has a caller that waits for the result: the call
   *   then becomes no task, and its failure is thrown
   *
   * @param {App} app
   * @param {CallOptions} options
   */
  constructor(
    app,
    { method, params, title, schema, python, finished = toolResult, onfault, isAwaited = false },
  ) {
    this.app = app;
    this.method = method;
    this.params = params;
    this.title = title;
    this.schema = schema;
    this.python = python;
    this.finished = finished;
    this.onfault = onfault;
    this.isAwaited = isAwaited;
    this.state = "working"; // as the states of tasks are called
    this.began = new Date();
    this.progress = null;
    this.task = null; // that the call has become
    this.received = [];
    this.sent = null;
    this.abort = new AbortController();
    this.pill = h("span");
    this.status = h("p", { className: "status", role: "status" });
    this.bar = h("progress", { hidden: true, "aria-label": "Progress" });
    this.logs = h("ul", { className: "logs", hidden: true });
    this.question = h("div");
    this.result = h("div", { className: "outcome", "aria-live": "polite" });
    this.wire = h("div");
    this.stop = h("button", { type: "button", onclick: () => this.abort.abort() }, "Cancel");
    this.element = h(
      "section",
      { className: "call", "aria-label": "Call" },
      h("div", { className: "actions head" }, this.pill, this.status, this.stop),
      this.bar,
      this.logs,
      this.question,
      this.result,
      this.wire,
    );
  }

  async run() {
    this.enter("working", "Running…");
    try {
      const result = await this.ask(this.params);
      if (result.resultType === "task") {
        this.task = this.app.tasks.add(result, this.params, this.title);
        this.enter("continues", "The call continues as a task.");
        this.view();
      } else {
        const seconds = `${((Date.now() - this.began.getTime()) / 1000).toFixed(2)}\u00a0s`;
        if (result.isError) this.enter("failed", `The tool reported an error after ${seconds}`);
        else this.enter("completed", `Done in ${seconds}`);
        show(this.result, this.finished(result));
        this.faults(result);
      }
      return result;
    } catch (error) {
      show(this.question);
      const isCancelled = error.name === "AbortError";
      this.enter(isCancelled ? "cancelled" : "failed", isCancelled ? "Cancelled" : "Failed");
      if (!isCancelled) show(this.result, notice("error", error.message));
      if (error.data?.faults) this.onfault?.(error.data.faults);
      if (this.isAwaited) throw error;
    } finally {
      this.showWire();
    }
    return null;
  }

  /** The element for a page; a task is shown anew, since its view ends with the page that had it. */
  view() {
    if (this.task) show(this.result, new TaskView(this.task).element);
    return this.element;
  }

  get hasEnded() {
    return this.state !== "working" && this.state !== "input_required";
  }

  get text() {
    return this.status.textContent;
  }

  enter(state, text) {
    this.state = state;
    this.stop.hidden = this.hasEnded;
    this.pill.className = `dot ${state}`;
    if (this.hasEnded) {
      this.progress = null;
      fillBar(this.bar, null);
    }
    say(this.status, text);
    this.app.activity.changed();
  }

  /** Send the request, and again with answers as long as the server asks for input. */
  async ask(params) {
    const result = await this.app.client.request(this.method, params, {
      signal: this.abort.signal,
      schema: this.schema,
      tasks: !this.isAwaited,
      sent: (body) => (this.sent ??= body),
      received: (message) => {
        this.received.push(message);
        if (this.received.length > MOST_MESSAGES) this.received.shift();
      },
      notified: (message) => this.notified(message),
    });
    if (result.resultType !== "input_required") return result;
    const requests = result.inputRequests ?? {};
    this.element.closest("details")?.setAttribute("open", ""); // the question is seen
    if (Object.keys(requests).length) this.enter("input_required", "The server asks for input.");
    else await new Promise((resume) => setTimeout(resume, 1000)); // it asks for another attempt only
    const inputResponses = await askAll(this.question, requests, this.abort.signal);
    this.enter("working", "Running…");
    return this.ask({ ...this.params, inputResponses, requestState: result.requestState });
  }

  notified({ method, params }) {
    if (method === "notifications/progress") {
      this.progress = params;
      fillBar(this.bar, params);
      this.enter(this.state, [counted(params), params.message].filter(Boolean).join(": "));
    } else if (method === "notifications/message") {
      this.logs.hidden = false;
      const text = typeof params.data === "string" ? params.data : JSON.stringify(params.data);
      const level = h("span", { className: `level ${params.level}` }, params.level);
      this.logs.append(h("li", {}, level, " ", text));
      if (this.logs.childElementCount > MOST_MESSAGES) this.logs.firstChild?.remove();
    }
  }

  faults(result) {
    const faults = result._meta?.["io.genmcp/error"]?.faults;
    if (result.isError && faults) this.onfault?.(faults);
  }

  showWire() {
    if (this.sent === null) return;
    const { client } = this.app;
    const headers = client.headers(this.sent, this.schema);
    const curl = asCurl(client.url, headers, this.sent, client.token() !== null);
    const python = this.python ? asPython(client.url, this.python) : undefined;
    show(this.wire, exchange({ sent: this.sent, received: this.received, curl, python }));
  }
}
