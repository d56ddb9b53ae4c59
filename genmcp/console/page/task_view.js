// The page of a task, as long as its element is on the page.

class TaskView {
  /**
   * @param {Task} task
   * @param {"h1" | "h3"} heading
   */
  constructor(task, heading = "h3") {
    this.task = task;
    this.asking = new Map(); // the questions that are shown: what removes each, by its key
    this.shown = null; // the state whose outcome is shown
    this.status = h("span", { role: "status" });
    this.message = h("p", { className: "status" });
    this.bar = h("progress", { hidden: true, "aria-label": "Progress" });
    this.history = h("ol", { className: "history" });
    this.questions = h("div");
    this.outcome = h("div", { className: "outcome", "aria-live": "polite" });
    this.trouble = h("div");
    const stop = { type: "button", className: "danger", onclick: () => task.cancel() };
    this.stop = h("button", stop, "Cancel task");
    const forget = quietButton("Forget", () => task.tasks.forget(task.id), {
      title: "Removes it from the list of this browser. The server keeps the task.",
    });
    const { created, arguments: given } = task.kept;
    this.element = h(
      "section",
      { className: "task", "aria-label": `Task ${task.kept.tool ?? ""}` },
      h(
        "div",
        { className: "actions head" },
        h(heading, {}, task.name),
        this.status,
        h("span", { className: "end" }, this.stop, forget),
      ),
      h(
        "p",
        { className: "hint" },
        created ? `Since ${new Date(created).toLocaleString()} · ` : null,
        h("code", {}, task.id),
      ),
      given && Object.keys(given).length
        ? h("p", { className: "hint" }, "Arguments ", h("code", {}, JSON.stringify(given, null, 1)))
        : null,
      this.bar,
      this.message,
      this.trouble,
      this.questions,
      this.outcome,
      h("details", {}, h("summary", {}, "History"), this.history),
    );
    task.watch(this.element, () => this.update());
  }

  update() {
    const { task } = this;
    const { state, status, trouble, hasEnded } = task;
    const pill = badge(status);
    if (!this.status.firstChild?.isEqualNode(pill)) show(this.status, pill);
    fillBar(this.bar, hasEnded ? null : task.progress);
    say(this.message, task.text);
    this.stop.hidden = hasEnded;
    if (trouble?.text !== this.trouble.textContent) {
      show(this.trouble, trouble && notice(trouble.kind, trouble.text));
    }
    if (task.history.at(-1) !== this.last) {
      this.last = task.history.at(-1);
      const entry = ({ at, text }) => h("li", {}, timeOf(at), ` ${text}`);
      show(this.history, task.history.map(entry));
    }
    this.askOnly(status === "input_required" ? (state?.inputRequests ?? {}) : {});
    if (hasEnded && state && state !== this.shown) this.end(state);
  }

  end(state) {
    this.shown = state;
    if (state.result) {
      const sent = { method: "tasks/get", params: { taskId: this.task.id } };
      const { tasks, kept } = this.task;
      const shown = resultOf(
        tasks.app,
        { name: kept.tool, arguments: kept.arguments },
        state.result,
      );
      show(this.outcome, shown, exchange({ sent, received: [state] }));
    } else if (state.error) show(this.outcome, notice("error", state.error.message));
  }

  /** Show these questions, and remove the others: the task was cancelled, or answered elsewhere. */
  askOnly(requests) {
    for (const [key, remove] of this.asking) if (!(key in requests)) remove();
    for (const [key, request] of Object.entries(requests)) {
      // The server may report a question for a while after it was answered.
      if (!this.asking.has(key) && !this.task.answered.has(key)) this.ask(key, request);
    }
  }

  async ask(key, request) {
    const area = h("div");
    const abort = new AbortController();
    this.questions.append(area);
    this.asking.set(key, () => abort.abort());
    try {
      await this.task.answer(key, await ask(area, request, abort.signal));
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      area.remove();
      this.asking.delete(key);
    }
  }
}

/** A time of the day, with its date for machines. */
function timeOf(at) {
  const date = new Date(at);
  return h("time", { dateTime: date.toISOString() }, date.toLocaleTimeString());
}
