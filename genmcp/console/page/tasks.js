// Tasks: the calls of this browser that continue on the server. Their ids survive a reload.

import { h, notice, say, searchList, show } from "./dom.js";
import { ask } from "./questions.js";
import { exchange, toolResult } from "./results.js";
import { store, stored } from "./storage.js";

const ENDED = new Set(["completed", "failed", "cancelled", "unknown"]);
const KEPT = 200; // tasks that the browser remembers
const LONGEST_PAUSE = 10_000; // milliseconds between two attempts to reach the server
const INTERNAL_ERROR = -32603;

export class Tasks {
  constructor(app) {
    this.app = app;
    this.key = `genmcp:tasks:${location.pathname}`;
    this.all = stored("localStorage", this.key, []);
    this.answered = new Map(); // the keys of the questions that were answered, by task
    window.addEventListener("storage", ({ key }) => {
      if (key === this.key) this.reload(); // another window has stored a task
    });
  }

  reload() {
    this.all = stored("localStorage", this.key, this.all);
    this.app.counted();
  }

  /** Change the list as all windows have stored it. */
  change(changed) {
    this.all = changed(stored("localStorage", this.key, this.all));
    store("localStorage", this.key, this.all);
    this.app.counted();
  }

  /** Remember a task that a call has become. */
  add(task, params) {
    const kept = {
      id: task.taskId,
      tool: params.name,
      arguments: params.arguments,
      status: task.status,
      created: task.createdAt,
    };
    this.change((all) => [kept, ...all.filter((each) => each.id !== kept.id)].slice(0, KEPT));
    return kept;
  }

  noteStatus(id, status) {
    if (this.all.every((each) => each.id !== id || each.status === status)) return;
    this.change((all) => all.map((each) => (each.id === id ? { ...each, status } : each)));
  }

  get open() {
    return this.all.filter((each) => !ENDED.has(each.status)).length;
  }

  forget(id) {
    this.change((all) => all.filter((each) => each.id !== id));
    if (location.hash === "#/tasks") this.app.render();
    else location.hash = "#/tasks";
  }

  list(current) {
    if (!this.all.length) {
      const text = "No call of this browser has become a task yet. A call that takes long does.";
      return notice("info", text);
    }
    const detail = (task) => `${words(task.status)}, ${new Date(task.created).toLocaleString()}`;
    return searchList({
      entries: this.all,
      label: "tasks",
      text: (task) => [task.tool ?? "task", detail(task)],
      link: (task) => `#/tasks/${encodeURIComponent(task.id)}`,
      current,
    });
  }

  /** A task that is followed as long as its element is on the page. */
  view(id) {
    return new TaskView(this, id).element;
  }
}

const words = (status) => status.replace("_", " ");
const pause = (milliseconds) => new Promise((resume) => setTimeout(resume, milliseconds));

class TaskView {
  constructor(tasks, id) {
    Object.assign(this, { tasks, id, client: tasks.app.client });
    if (!tasks.answered.has(id)) tasks.answered.set(id, new Set());
    this.answered = tasks.answered.get(id);
    this.asking = new Map(); // the questions that are shown: what removes each, by its key
    this.line = ""; // the last entry of the history
    const known = tasks.all.find((each) => each.id === id);
    this.status = h("span", { className: "badge", role: "status" }, known?.status ?? "…");
    this.message = h("p", { className: "status" });
    this.bar = h("progress", { hidden: true, "aria-label": "Progress" });
    this.history = h("ol", { className: "history" });
    this.questions = h("div");
    this.outcome = h("div", { className: "outcome", "aria-live": "polite" });
    this.trouble = h("div");
    this.stop = h("button", { type: "button", onclick: () => this.cancel() }, "Cancel task");
    const forget = () => tasks.forget(id);
    this.element = h(
      "section",
      { className: "task", "aria-label": `Task ${known?.tool ?? ""}` },
      h(
        "div",
        { className: "actions" },
        h("h3", {}, known?.tool ?? "Task"),
        this.status,
        this.stop,
        h("button", { type: "button", className: "quiet", onclick: forget }, "Forget"),
      ),
      h("p", { className: "hint" }, h("code", {}, id)),
      known?.arguments
        ? h("p", { className: "hint" }, h("code", {}, JSON.stringify(known.arguments)))
        : null,
      this.bar,
      this.message,
      this.trouble,
      this.questions,
      this.outcome,
      h("details", {}, h("summary", {}, "History"), this.history),
    );
    queueMicrotask(() => this.follow());
  }

  /** Ask for the state until the task has ended or the element has left the page. */
  async follow() {
    let failures = 0;
    do {
      try {
        const task = await this.client.request("tasks/get", { taskId: this.id });
        if (failures) show(this.trouble);
        failures = 0;
        this.show(task);
        if (ENDED.has(task.status)) return;
        await pause(Math.min(Math.max(task.pollIntervalMs ?? 1000, 100), LONGEST_PAUSE));
      } catch (error) {
        if (!isPassing(error)) {
          this.lost(error);
          return;
        }
        failures += 1; // a server that restarts is reached again, and knows the task
        show(this.trouble, notice("info", `${error.message} Trying again…`));
        await pause(Math.min(500 * 2 ** failures, LONGEST_PAUSE));
      }
    } while (this.element.isConnected);
    this.askOnly({}); // another view of the task asks its questions again
  }

  show(task) {
    const progress = task._meta?.["io.genmcp/progress"];
    const hasEnded = ENDED.has(task.status);
    say(this.status, words(task.status));
    this.status.className = `badge ${task.status}`;
    this.bar.hidden = !progress || hasEnded;
    if (progress?.total) Object.assign(this.bar, { max: progress.total, value: progress.progress });
    else this.bar.removeAttribute("value");
    const text = [counted(progress), progress?.message ?? task.statusMessage].filter(Boolean).join(": ");
    say(this.message, hasEnded ? (task.statusMessage ?? "") : text);
    this.note(task, text);
    this.tasks.noteStatus(this.id, task.status);
    this.askOnly(task.status === "input_required" ? (task.inputRequests ?? {}) : {});
    if (!hasEnded) return;
    this.stop.hidden = true;
    if (task.result) {
      const sent = { method: "tasks/get", params: { taskId: this.id } };
      show(this.outcome, toolResult(task.result), exchange({ sent, received: [task] }));
    } else if (task.error) show(this.outcome, notice("error", task.error.message));
  }

  /** Add a state to the history if it is another than the last one. */
  note(task, text) {
    const line = `${words(task.status)}${text ? ` (${text})` : ""}`;
    if (this.line === line) return;
    this.line = line;
    const at = new Date(task.lastUpdatedAt);
    const time = h("time", { dateTime: task.lastUpdatedAt }, at.toLocaleTimeString());
    this.history.append(h("li", {}, time, ` ${line}`));
    if (this.history.childElementCount > 200) this.history.firstChild.remove();
  }

  /** Show these questions, and remove the others: the task was cancelled, or answered elsewhere. */
  askOnly(requests) {
    for (const [key, remove] of this.asking) if (!(key in requests)) remove();
    for (const [key, request] of Object.entries(requests)) {
      // The server may report a question for a while after it was answered.
      if (!this.asking.has(key) && !this.answered.has(key)) this.ask(key, request);
    }
  }

  async ask(key, request) {
    const area = h("div");
    const abort = new AbortController();
    this.questions.append(area);
    this.asking.set(key, () => abort.abort());
    try {
      const answer = await ask(area, request, abort.signal);
      this.answered.add(key);
      await this.send({ [key]: answer });
    } catch (error) {
      if (error.name === "AbortError") return;
      this.answered.delete(key); // the server did not take it: the question is asked again
      show(this.trouble, notice("error", error.message));
    } finally {
      area.remove();
      this.asking.delete(key);
    }
  }

  /** Send answers, again until the server has got them: the user has given them once. */
  async send(inputResponses) {
    for (let failures = 1; ; failures += 1) {
      try {
        await this.client.request("tasks/update", { taskId: this.id, inputResponses });
        return;
      } catch (error) {
        if (!isPassing(error)) throw error;
        await pause(Math.min(500 * 2 ** failures, LONGEST_PAUSE));
      }
    }
  }

  lost(error) {
    this.askOnly({});
    this.stop.hidden = true;
    this.tasks.noteStatus(this.id, "unknown"); // it has expired, or is another user's
    say(this.status, "unknown");
    this.status.className = "badge";
    show(this.trouble, notice("error", error.message));
  }

  async cancel() {
    try {
      await this.client.request("tasks/cancel", { taskId: this.id });
    } catch (error) {
      show(this.trouble, notice("error", error.message));
    }
  }
}

/** Whether the same request may succeed later: the server restarts, or its store is away. */
function isPassing({ code = null }) {
  return code === null || code === INTERNAL_ERROR;
}

function counted(progress) {
  if (!progress) return "";
  return progress.total ? `${progress.progress} of ${progress.total}` : `${progress.progress}`;
}
