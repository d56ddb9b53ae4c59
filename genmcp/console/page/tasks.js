// Tasks: the calls of this browser that continue on the server. Their ids survive a reload. Each task
// has one state, which its list, its page and the activity show: they cannot disagree.

const ENDED = new Set(["completed", "failed", "cancelled", "unknown"]);
const KEPT_TASKS = 200; // that the browser remembers
const KEPT_STATES = 200; // of a task, in its history
const LONGEST_PAUSE = 10_000; // milliseconds between two attempts to reach the server
const PACE = 100; // milliseconds between the polls of all tasks that are not on the page
const INTERNAL_ERROR = -32603;

class Tasks {
  constructor(app) {
    this.app = app;
    this.key = `genmcp:tasks:${location.pathname}`;
    this.watchers = new Watchers();
    this.all = [];
    this.reload();
    window.addEventListener("storage", ({ key }) => {
      if (key === this.key) this.reload(); // another window has stored a task
    });
  }

  reload() {
    this.sync(stored("localStorage", this.key, []));
  }

  /** Change the list as all windows have stored it. */
  change(changed) {
    const kept = changed(
      stored(
        "localStorage",
        this.key,
        this.all.map((each) => each.kept),
      ),
    );
    store("localStorage", this.key, kept);
    this.sync(kept);
  }

  /** Make the list the same as the stored one. A task that is there stays the same object. */
  sync(kept) {
    const known = new Map(this.all.map((each) => [each.id, each]));
    this.all = kept.map((each) => known.get(each.id) ?? new Task(this, each));
    if (this.app.capabilities) this.follow();
    this.watchers.notify();
  }

  /** Follow the tasks that have not ended. */
  follow() {
    for (const task of this.all) task.follow();
  }

  /** Remember a task that a call has become. */
  add({ taskId, status, createdAt }, params, title) {
    const kept = {
      id: taskId,
      tool: params.name,
      title,
      arguments: params.arguments,
      status,
      created: createdAt,
    };
    this.change((all) => [kept, ...all.filter((each) => each.id !== taskId)].slice(0, KEPT_TASKS));
    return this.find(taskId);
  }

  /** The task with an id; one that this browser does not remember can be looked at as well. */
  find(id) {
    return this.all.find((each) => each.id === id) ?? new Task(this, { id, status: "working" });
  }

  /** Called by a task whose state has changed. */
  changed(task) {
    if (!this.all.includes(task) || task.kept.status === task.status) {
      this.watchers.notify();
      return;
    }
    task.kept.status = task.status;
    this.change((all) => all.map((each) => (each.id === task.id ? task.kept : each)));
  }

  get open() {
    return this.all.filter((each) => !each.hasEnded).length;
  }

  forget(id) {
    this.change((all) => all.filter((each) => each.id !== id));
    if (location.hash === "#/tasks") this.app.render();
    else location.hash = "#/tasks";
  }
}

/** One task: its last state, and the requests about it. */
class Task {
  constructor(tasks, kept) {
    this.tasks = tasks;
    this.kept = { ...kept };
    this.id = kept.id;
    this.name = kept.title ?? kept.tool ?? "Task";
    this.status = kept.status;
    this.state = null; // the last answer to tasks/get
    this.trouble = null; // { kind, text }: why the state may be old, or what was refused
    this.history = []; // { at, text }
    this.answered = new Set(); // the keys of the questions that were answered
    this.watchers = new Watchers();
    this.isFollowed = false;
    this.wake = () => {};
  }

  get href() {
    return `#/tasks/${encodeURIComponent(this.id)}`;
  }

  get hasEnded() {
    return ENDED.has(this.status);
  }

  get progress() {
    return this.state?._meta?.["io.genmcp/progress"] ?? null;
  }

  /** Where the task is: its progress and its message. */
  get text() {
    if (this.hasEnded) return this.state?.statusMessage ?? "";
    const message = this.progress?.message ?? this.state?.statusMessage;
    return [counted(this.progress), message].filter(Boolean).join(": ");
  }

  get isWanted() {
    if (this.hasEnded) return this.watchers.isWatched && this.state === null && !this.trouble;
    return this.tasks.all.includes(this) || this.watchers.isWatched;
  }

  /** Call `changed` now and at each change, until `element` has left the page. */
  watch(element, changed) {
    this.watchers.add(element, changed);
    if (this.status === "unknown") this.trouble = null; // another user may have logged in since
    setTimeout(() => this.follow()); // when the element is on the page
    this.wake();
  }

  /** Ask for the state until the task has ended. Of one that has, the result is fetched to be shown. */
  async follow() {
    if (this.isFollowed) return;
    this.isFollowed = true;
    for (let failures = 0; this.isWanted; ) {
      const isAway = await this.poll();
      failures = isAway ? failures + 1 : 0;
      if (!this.isWanted) break;
      const pace = this.watchers.isWatched ? 100 : PACE * this.tasks.open;
      const wanted = isAway
        ? 500 * 2 ** failures
        : Math.max(this.state?.pollIntervalMs ?? 1000, pace);
      await this.pause(Math.min(wanted, LONGEST_PAUSE));
    }
    this.isFollowed = false;
  }

  /** Ask for the state once, and return whether the server is away. */
  async poll() {
    try {
      const state = await this.tasks.app.client.request("tasks/get", { taskId: this.id });
      // The result of a task that is not on the page is not kept: it may be large.
      this.state = ENDED.has(state.status) && !this.watchers.isWatched ? null : state;
      this.trouble = null;
      this.enter(state.status, state.lastUpdatedAt);
      return false;
    } catch (error) {
      const isAway = isPassing(error); // a server that restarts is reached again, and knows the task
      this.trouble = isAway
        ? { kind: "info", text: `${error.message} Trying again…` }
        : { kind: "error", text: error.message };
      // It has expired, or is another user's.
      this.enter(isAway ? this.status : "unknown", new Date().toISOString());
      return isAway;
    }
  }

  enter(status, at) {
    this.status = status;
    const text = [status.replace("_", " "), this.text && `(${this.text})`]
      .filter(Boolean)
      .join(" ");
    if (this.history.at(-1)?.text !== text) this.history.push({ at, text });
    if (this.history.length > KEPT_STATES) this.history.shift();
    this.changed();
  }

  changed() {
    this.watchers.notify();
    this.tasks.changed(this);
  }

  pause(milliseconds) {
    return new Promise((resume) => {
      this.wake = () => resume(undefined);
      setTimeout(this.wake, milliseconds);
    });
  }

  /** Send an answer, again until the server has it: the user gives it once. */
  async answer(key, answer) {
    this.answered.add(key);
    const params = { taskId: this.id, inputResponses: { [key]: answer } };
    for (let failures = 1; ; failures += 1) {
      try {
        await this.tasks.app.client.request("tasks/update", params);
        break;
      } catch (error) {
        if (!isPassing(error)) {
          this.answered.delete(key); // the server did not take it: the question is asked again
          this.fail(error);
          return;
        }
        await new Promise((resume) =>
          setTimeout(resume, Math.min(500 * 2 ** failures, LONGEST_PAUSE)),
        );
      }
    }
    this.wake();
  }

  async cancel() {
    try {
      await this.tasks.app.client.request("tasks/cancel", { taskId: this.id });
      this.wake();
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) {
    this.trouble = { kind: "error", text: error.message };
    this.changed();
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

/** Show progress in a bar; without a total the bar moves. */
function fillBar(bar, progress) {
  bar.hidden = !progress;
  if (progress?.total) Object.assign(bar, { max: progress.total, value: progress.progress });
  else bar.removeAttribute("value");
}
