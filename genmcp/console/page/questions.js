// Questions of the server: forms, URLs to visit, and those that only a model could answer.

/** Show the questions in `area`, and return the answers by key, once each is answered. */
async function askAll(area, requests, signal) {
  const answers = {};
  for (const [key, request] of Object.entries(requests)) {
    answers[key] = await ask(area, request, signal);
  }
  return answers;
}

/**
 * Show one question in `area`, and return its answer. The question is removed with the answer, or
 * when `signal` aborts; the latter rejects. `question` renders what is to be answered.
 */
function ask(area, { method, params }, signal, question = questionOf(params)) {
  if (method !== "elicitation/create") return decline(area, method);
  return new Promise((answered, dropped) => {
    const end = () => {
      show(area);
      signal?.removeEventListener("abort", abort);
    };
    const abort = () => {
      end();
      dropped(new DOMException("The question is no longer open.", "AbortError"));
    };
    const answer = (action, content) => {
      end();
      answered(content === undefined ? { action } : { action, content });
    };
    if (signal?.aborted) {
      abort();
      return;
    }
    signal?.addEventListener("abort", abort);
    const buttons = [
      h("button", { type: "button", onclick: () => answer("decline") }, "Decline"),
      h(
        "button",
        { type: "button", className: "quiet", onclick: () => answer("cancel") },
        "Cancel",
      ),
    ];
    const element = h(
      "section",
      { className: "question", "aria-label": "Question of the server" },
      h("h3", {}, "The server asks"),
      h("p", {}, params.message),
      question(params, answer, buttons),
    );
    show(area, element);
    // Who is typing the answer to another question goes on there.
    if (!document.activeElement?.closest(".question")) {
      find(element, "input, select, textarea, button")?.focus();
    }
  });
}

function questionOf({ mode }) {
  return mode === "url" ? urlQuestion : formQuestion;
}

/** A question with nothing to fill in. */
function allowQuestion(_, answer, buttons) {
  const allow = () => answer("accept");
  return h(
    "div",
    { className: "actions" },
    h("button", { type: "button", className: "primary", onclick: allow }, "Allow"),
    buttons,
  );
}

function formQuestion({ requestedSchema }, answer, buttons) {
  const form = new SchemaForm(requestedSchema ?? { type: "object", properties: {} });
  return h(
    "form",
    {
      noValidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const content = form.read();
        if (content !== null) answer("accept", content);
      },
    },
    form.element,
    h(
      "div",
      { className: "actions" },
      h("button", { type: "submit", className: "primary" }, "Answer"),
      buttons,
      form.toggle,
    ),
  );
}

function urlQuestion({ url }, answer, buttons) {
  const { protocol, host } = URL.canParse(url) ? new URL(url) : { protocol: "", host: "" };
  const isSafe = protocol === "https:" || protocol === "http:";
  const link = () =>
    h(
      "a",
      {
        className: "button primary",
        href: url,
        target: "_blank",
        rel: "noopener noreferrer",
        onclick: () => answer("accept"),
      },
      "Open",
    );
  return h(
    "div",
    {},
    isSafe ? h("p", {}, "It asks you to visit ", h("strong", {}, host), ":") : null,
    h("p", {}, h("code", {}, String(url))),
    isSafe ? null : notice("error", "The page opens URLs with http and https only."),
    h("div", { className: "actions" }, isSafe ? link() : null, buttons),
  );
}

function decline(area, method) {
  show(area, notice("info", `The server asked for ${method}, which this page does not support.`));
  return Promise.resolve({ action: "decline" });
}
