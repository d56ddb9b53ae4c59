// Tasks: the calls of this browser that continue on the server. Their ids survive a reload.

import { h, notice, searchList, show } from "./dom.js";
import { askAll } from "./questions.js";
import { exchange, toolResult } from "./results.js";

const ENDED = new Set(["completed", "failed", "cancelled"]);
const KEPT = 200; // tasks that the browser remembers
const LONGEST_PAUSE = 10_000; // milliseconds between two attempts to reach the server

export class Tasks {
  constructor(app) {
    this.app = app;
    this.key = `genmcp:tasks:${location.pathname}`;
    this.all = JSON.parse(localStorage.getItem(this.key) ?? "[]");
  }

  /** Remember a task that a call has become. */
  add(task, params) {
    const kept = { id: task.taskId, tool: params.name, arguments: params.arguments, status: task.status, created: task.createdAt };
    this.all = [kept, ...this.all.filter((each) => each.id !== kept.id)].slice(0, KEPT);
    this.save();
    return kept;
  }

  save() {
    localStorage.setItem(this.key, JSON.stringify(this.all));
    this.app.counted();
  }

  get open() {
    return this.all.filter((each) => !ENDED.has(each.status)).length;
  }

  forget(id) {
    this.all = this.all.filter((each) => each.id !== id);
    this.save();
    location.hash = "#/tasks";
  }

  list(current) {
    if (!this.all.length) return notice("info", "No call of this browser has become a task yet. A call that takes long does.");
    return searchList({
      entries: this.all,
      label: "tasks",
      text: (task) => [`${task.tool ?? "task"}`, `${task.status.replace("_", " ")}, ${new Date(task.created).toLocaleString()}`],
      link: (task) => `#/tasks/${encodeURIComponent(task.id)}`,
      current,
    });
  }

  /** A task that is followed as long as its element is on the page. */
  view(id) {
    const known = this.all.find((each) => each.id === id);
    const status = h("span", { className: "badge", role: "status" }, known?.status ?? "…");
    const message = h("p", { className: "status" });
    const bar = h("progress", { hidden: true });
    const history = h("ol", { className: "history" });
    const question = h("div");
    const outcome = h("div", { className: "outcome", "aria-live": "polite" });
    const trouble = h("div");
    const cancel = h("button", { type: "button", onclick: () => this.cancel(id, trouble) }, "Cancel task");
    const element = h(
      "section",
      { className: "task", "aria-label": `Task ${known?.tool ?? ""}` },
      h("div", { className: "actions" }, h("h3", {}, known?.tool ?? "Task"), status, cancel, h("button", { type: "button", className: "quiet", onclick: () => this.forget(id) }, "Forget")),
      h("p", { className: "hint" }, h("code", {}, id)),
      known?.arguments ? h("p", { className: "hint" }, h("code", {}, JSON.stringify(known.arguments))) : null,
      bar,
      message,
      trouble,
      question,
      outcome,
      h("details", {}, h("summary", {}, "History"), history),
    );
    const parts = { status, message, bar, history, question, outcome, trouble, cancel, seen: new Set(), last: "" };
    queueMicrotask(() => this.follow(id, element, parts));
    return element;
  }

  /** Ask for the state until the task has ended or the element has left the page. */
  async follow(id, element, parts) {
    let failures = 0;
    do {
      let pause = 1000;
      try {
        const task = await this.app.client.request("tasks/get", { taskId: id });
        if (failures) show(parts.trouble);
        failures = 0;
        this.showState(id, task, parts);
        if (ENDED.has(task.status)) return;
        if (task.status === "input_required") await this.answer(id, task, parts);
        pause = Math.min(Math.max(task.pollIntervalMs ?? 1000, 100), LONGEST_PAUSE);
      } catch (error) {
        if (error.code !== null && error.code !== undefined) {
          show(parts.trouble, notice("error", error.message));
          return;
        }
        failures += 1; // a server that restarts is reached again, and knows the task
        show(parts.trouble, notice("info", `${error.message} Trying again…`));
        pause = Math.min(500 * 2 ** failures, LONGEST_PAUSE);
      }
      await new Promise((resume) => setTimeout(resume, pause));
    } while (element.isConnected);
  }

  showState(id, task, { status, message, bar, history, outcome, cancel, ...parts }) {
    status.textContent = task.status.replace("_", " ");
    status.className = `badge ${task.status}`;
    const progress = task._meta?.["io.genmcp/progress"];
    bar.hidden = !progress || ENDED.has(task.status);
    if (progress?.total) Object.assign(bar, { max: progress.total, value: progress.progress });
    else bar.removeAttribute("value");
    const count = progress?.total ? `${progress.progress} of ${progress.total}` : (progress?.progress ?? "");
    const said = [count, progress?.message ?? task.statusMessage].filter((each) => each !== "" && each !== undefined).join(": ");
    message.textContent = ENDED.has(task.status) ? (task.statusMessage ?? "") : said;
    const line = `${task.status.replace("_", " ")}${said ? ` (${said})` : ""}`;
    if (history.dataset.last !== line) {
      history.dataset.last = line;
      history.append(h("li", {}, h("time", { dateTime: task.lastUpdatedAt }, new Date(task.lastUpdatedAt).toLocaleTimeString()), ` ${line}`));
      if (history.childElementCount > 200) history.firstChild.remove();
    }
    const kept = this.all.find((each) => each.id === id);
    if (kept && kept.status !== task.status) {
      kept.status = task.status;
      this.save();
    }
    if (!ENDED.has(task.status)) return;
    cancel.hidden = true;
    show(parts.question);
    if (task.result) show(outcome, toolResult(task.result), exchange({ sent: { method: "tasks/get", params: { taskId: id } }, received: [task] }));
    else if (task.error) show(outcome, notice("error", task.error.message));
  }

  async answer(id, task, { question, status }) {
    const pending = { ...task.inputRequests };
    if (!Object.keys(pending).length) return;
    const inputResponses = await askAll(question, pending);
    status.textContent = "working";
    await this.app.client.request("tasks/update", { taskId: id, inputResponses });
  }

  async cancel(id, trouble) {
    try {
      await this.app.client.request("tasks/cancel", { taskId: id });
    } catch (error) {
      show(trouble, notice("error", error.message));
    }
  }
}
