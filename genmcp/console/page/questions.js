// Questions of the server: forms, URLs to visit, and those that only a model could answer.

import { h, notice, show } from "./dom.js";
import { SchemaForm } from "./form.js";

/** Show the questions in `area`, and return the answers by key, once each is answered. */
export async function askAll(area, requests) {
  const answers = {};
  for (const [key, request] of Object.entries(requests)) answers[key] = await ask(area, request);
  show(area);
  return answers;
}

function ask(area, { method, params = {} }) {
  if (method !== "elicitation/create") return decline(area, method);
  return new Promise((answered) => {
    const answer = (action, content) => {
      show(area);
      answered(content === undefined ? { action } : { action, content });
    };
    const buttons = [
      h("button", { type: "button", onclick: () => answer("decline") }, "Decline"),
      h("button", { type: "button", className: "quiet", onclick: () => answer("cancel") }, "Cancel"),
    ];
    const body = params.mode === "url" ? urlQuestion(params, answer, buttons) : formQuestion(params, answer, buttons);
    show(area, h("section", { className: "question", "aria-label": "Question of the server" }, h("h3", {}, "The server asks"), h("p", {}, params.message), body));
    area.querySelector("input, select, textarea, button")?.focus();
  });
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
    h("div", { className: "actions" }, h("button", { type: "submit", className: "primary" }, "Answer"), buttons),
  );
}

function urlQuestion({ url }, answer, buttons) {
  const { protocol, host } = new URL(url);
  const safe = protocol === "https:" || protocol === "http:";
  return h(
    "div",
    {},
    h("p", {}, "It asks you to visit ", h("strong", {}, host), ":"),
    h("p", {}, h("code", {}, url)),
    safe ? null : notice("error", `The page does not open URLs with ${protocol}`),
    h(
      "div",
      { className: "actions" },
      safe
        ? h("a", { className: "button primary", href: url, target: "_blank", rel: "noopener noreferrer", onclick: () => answer("accept") }, "Open")
        : null,
      buttons,
    ),
  );
}

function decline(area, method) {
  show(area, notice("info", `The server asked for ${method}, which this page does not support.`));
  return Promise.resolve({ action: "decline" });
}
