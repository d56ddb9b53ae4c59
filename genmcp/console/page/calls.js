// Runs a call and shows it while it runs: progress, log messages, questions, its task and its result.

import { h, notice, say, show } from "./dom.js";
import { asCurl, asPython } from "./mcp.js";
import { askAll } from "./questions.js";
import { exchange, toolResult } from "./results.js";

const MOST_MESSAGES = 500; // that are kept to be shown

/** A request with its progress, shown in `element`; `finished` renders its result. */
export class Call {
  constructor(app, { method, params, schema, python, finished = toolResult, onfault }) {
    Object.assign(this, { app, method, params, schema, python, finished, onfault });
    this.received = [];
    this.sent = null;
    this.abort = new AbortController();
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
      h("div", { className: "actions" }, this.status, this.stop),
      this.bar,
      this.logs,
      this.question,
      this.result,
      this.wire,
    );
  }

  async run() {
    const began = performance.now();
    this.status.textContent = "Running…";
    try {
      const result = await this.ask(this.params);
      const seconds = ((performance.now() - began) / 1000).toFixed(2);
      this.bar.hidden = true;
      if (result.resultType === "task") {
        this.status.textContent = "The call continues as a task.";
        const task = this.app.tasks.add(result, this.params);
        show(this.result, this.app.tasks.view(task.id));
      } else {
        this.status.textContent = `Done in ${seconds} s`;
        show(this.result, this.finished(result));
        this.faults(result);
      }
    } catch (error) {
      this.bar.hidden = true;
      show(this.question);
      this.status.textContent = error.name === "AbortError" ? "Cancelled" : "Failed";
      if (error.name !== "AbortError") show(this.result, notice("error", error.message));
      if (error.data?.faults) this.onfault?.(error.data.faults);
    }
    this.stop.hidden = true;
    this.showWire();
  }

  /** Send the request, and again with answers as long as the server asks for input. */
  async ask(params) {
    const result = await this.app.client.request(this.method, params, {
      signal: this.abort.signal,
      schema: this.schema,
      sent: (body) => (this.sent ??= body),
      received: (message) => {
        this.received.push(message);
        if (this.received.length > MOST_MESSAGES) this.received.shift();
      },
      notified: (message) => this.notified(message),
    });
    if (result.resultType !== "input_required") return result;
    const requests = result.inputRequests ?? {};
    if (Object.keys(requests).length) say(this.status, "The server asks for input.");
    else await new Promise((resume) => setTimeout(resume, 1000)); // it asks for another attempt only
    const inputResponses = await askAll(this.question, requests, this.abort.signal);
    say(this.status, "Running…");
    return this.ask({ ...this.params, inputResponses, requestState: result.requestState });
  }

  notified({ method, params }) {
    if (method === "notifications/progress") {
      this.bar.hidden = false;
      if (params.total) Object.assign(this.bar, { max: params.total, value: params.progress });
      else this.bar.removeAttribute("value");
      const of = params.total ? `${params.progress} of ${params.total}` : `${params.progress}`;
      say(this.status, params.message ? `${of}: ${params.message}` : of);
    } else if (method === "notifications/message") {
      this.logs.hidden = false;
      const text = typeof params.data === "string" ? params.data : JSON.stringify(params.data);
      this.logs.append(h("li", {}, h("span", { className: `level ${params.level}` }, params.level), " ", text));
      if (this.logs.childElementCount > 500) this.logs.firstChild.remove();
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
    const python = this.python ? asPython(client.url, this.python) : null;
    show(this.wire, exchange({ sent: this.sent, received: this.received, curl, python }));
  }
}
