// Small helpers to build the page. Text is always set as text, never as HTML.

/** Create an element: h("a", { href: "#/", class: "link", onclick: go }, "Tools", icon). */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name === "className" ? "class" : name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** Replace the children of an element. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** Set the text of an element. The same text again must not make a screen reader repeat it. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SHOWN = 100_000; // characters that are shown of a text; browsers are slow with millions

/** A text to be read. Of a very long one the beginning is shown, and the rest on demand. */
export function longText(element, text) {
  if (text.length <= SHOWN) return show(element, text);
  const whole = () => show(element, text);
  const label = `Show all ${text.length} characters`;
  const more = h("button", { type: "button", className: "quiet", onclick: whole }, label);
  return show(element, text.slice(0, SHOWN), "… ", more);
}

let lastId = 0;

/** Return an id that no other element has, for labels and descriptions. */
export function newId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** A button that copies a text and says so. */
export function copyButton(text) {
  const button = h("button", { type: "button", className: "quiet", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser does not allow it"; // such as for http on another host
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  return button;
}

/** A block of code with a button to copy it. */
export function codeBlock(text, label) {
  return h(
    "figure",
    { className: "code" },
    h("figcaption", {}, label, copyButton(text)),
    h("pre", { tabIndex: 0 }, longText(h("code"), text)),
  );
}

/** Tabs: `panels` is a list of [label, function that returns the content]. */
export function tabs(label, panels) {
  const body = h("div", { className: "panel", role: "tabpanel", tabIndex: 0 });
  const buttons = panels.map(([name], index) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: newId("tab"),
        onclick: () => select(index),
        onkeydown: (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (step) select((index + step + panels.length) % panels.length, true);
        },
      },
      name,
    ),
  );
  function select(index, focus = false) {
    buttons.forEach((button, at) => {
      button.setAttribute("aria-selected", at === index);
      button.tabIndex = at === index ? 0 : -1;
    });
    body.setAttribute("aria-labelledby", buttons[index].id);
    show(body, panels[index][1]());
    if (focus) buttons[index].focus();
  }
  select(0);
  return h("div", { className: "tabs" }, h("div", { role: "tablist", "aria-label": label }, buttons), body);
}

/** A list with a search field that stays fast with many thousands of entries. */
export function searchList({ entries, label, text, link, current }) {
  const shown = 200; // rows that are rendered; the search looks at all entries
  const found = h("ul", { className: "entries" });
  const count = h("p", { className: "hint", role: "status" });
  const texts = entries.map((entry) => text(entry).join(" ").toLowerCase());
  const field = h("input", {
    type: "search",
    placeholder: `Search ${entries.length} ${label}`,
    "aria-label": `Search ${label}`,
    oninput: search,
  });
  function search() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = [];
    let total = 0;
    for (let index = 0; index < entries.length; index += 1) {
      if (!words.every((word) => texts[index].includes(word))) continue;
      total += 1;
      if (matches.length < shown) matches.push(entries[index]);
    }
    show(found, matches.map(row));
    count.textContent =
      total > shown ? `The first ${shown} of ${total}: type to find others.` : total ? "" : `No ${label} match.`;
  }
  function row(entry) {
    const [title, detail] = text(entry);
    const href = link(entry);
    return h(
      "li",
      {},
      h(
        "a",
        { href, "aria-current": href === current ? "page" : undefined },
        h("strong", {}, title),
        detail ? h("span", {}, detail) : null,
      ),
    );
  }
  search();
  return h("div", { className: "search" }, field, count, found);
}

/** A message for the reader, such as an error of the server. */
export function notice(kind, ...children) {
  return h("div", { className: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, ...children);
}
