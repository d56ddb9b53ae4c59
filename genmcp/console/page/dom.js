// Builds the page. Text is always set as text, never as HTML.

/** @typedef {string | number | Node | null | undefined | false | Child[]} Child */

/**
 * Create an element: h("a", { href: "#/", className: "link", onclick: go }, "Tools", icon).
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [props] properties, attributes, and listeners by "on" and an event
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...given(children));
  return element;
}

/** The children that are to be shown, of nested lists that may contain nothing. */
function given(children) {
  return children
    .flat(Infinity)
    .filter((each) => each !== null && each !== undefined && each !== false);
}

/**
 * The element of the document that a selector finds, and that is always there.
 *
 * @param {string} selector
 * @returns {HTMLElement}
 */
const fixed = (selector) => /** @type {HTMLElement} */ (document.querySelector(selector));

/**
 * The first element that a selector finds, typed as one that can have the focus.
 *
 * @param {ParentNode} parent
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
const find = (parent, selector) => parent.querySelector(selector);

/**
 * Replace the children of an element.
 *
 * @template {Element} E
 * @param {E} element
 * @param {...Child} children
 */
function show(element, ...children) {
  element.replaceChildren(...given(children));
  return element;
}

/** Set the text of an element. The same text again must not make a screen reader repeat it. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A number with its noun: "1 task", "2 tasks". */
function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

const SHOWN_CHARACTERS = 100_000; // of a text; browsers are slow with millions

/** A text to be read. Of a very long one the beginning is shown, and the rest on demand. */
function longText(element, text) {
  if (text.length <= SHOWN_CHARACTERS) return show(element, text);
  const label = `Show all ${text.length} characters`;
  const more = quietButton(label, () => show(element, text));
  return show(element, text.slice(0, SHOWN_CHARACTERS), "… ", more);
}

let lastId = 0;

/** Return an id that no other element has, for labels and descriptions. */
function newId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** A button that looks like a link, for what is less important than the other buttons. */
function quietButton(label, onclick, props = {}) {
  return h("button", { type: "button", className: "quiet", onclick, ...props }, label);
}

/** A button that copies a text and confirms it. */
function copyButton(text) {
  const button = quietButton("Copy", copy);
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
function codeBlock(text, label) {
  return h(
    "figure",
    { className: "code" },
    h("figcaption", {}, label, copyButton(text)),
    scrolling(h("pre", { tabIndex: 0 }, longText(h("code"), text))),
  );
}

/** Shades the edges beyond which a scrolling element has more to show. */
function scrolling(element) {
  const frame = h("div", { className: "scrolling" }, element);
  function mark() {
    const { scrollTop, scrollLeft, clientHeight, clientWidth, scrollHeight, scrollWidth } = element;
    frame.classList.toggle("more-above", scrollTop > 1);
    frame.classList.toggle("more-below", scrollTop + clientHeight < scrollHeight - 1);
    frame.classList.toggle("more-left", scrollLeft > 1);
    frame.classList.toggle("more-right", scrollLeft + clientWidth < scrollWidth - 1);
  }
  element.addEventListener("scroll", mark, { passive: true });
  const observer = new ResizeObserver(mark); // also calls it when the element is first shown
  observer.observe(element);
  for (const each of element.children) observer.observe(each);
  return frame;
}

/** Tabs: `panels` is a list of [label, function that returns the content]. */
function tabs(label, panels) {
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
      button.setAttribute("aria-selected", String(at === index));
      button.tabIndex = at === index ? 0 : -1;
    });
    body.setAttribute("aria-labelledby", buttons[index].id);
    show(body, panels[index][1]());
    if (focus) buttons[index].focus();
  }
  select(0);
  return h(
    "div",
    { className: "tabs" },
    h("div", { role: "tablist", "aria-label": label }, buttons),
    body,
  );
}

const SHOWN_ENTRIES = 200; // of a list; the search looks at all

/**
 * A list of links with a search field, which stays fast with many thousands of entries. `text(entry)`
 * is its title and a detail, `link(entry)` its address, `mark(entry)` an element at its end.
 */
class SearchList {
  constructor({ noun, text, link, mark = (_entry) => null }) {
    this.noun = noun;
    this.text = text;
    this.link = link;
    this.mark = mark;
    this.rows = new Map(); // the element of each entry that was shown, by its address
    this.found = h("ul", { className: "entries" });
    this.count = h("p", { className: "hint", role: "status" });
    this.field = h("input", {
      type: "search",
      "aria-label": `Search ${noun}s`,
      oninput: () => this.search(),
    });
    this.element = h("div", { className: "search" }, this.field, this.count, scrolling(this.found));
    this.current = "";
    this.fill([]);
  }

  /** Show these entries. Rows that are there stay, with the focus and the place in the list. */
  fill(entries) {
    this.entries = entries;
    this.texts = entries.map((entry) => this.text(entry).join(" ").toLowerCase());
    this.field.placeholder = `Search ${plural(entries.length, this.noun)}`;
    this.search();
  }

  search() {
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = [];
    let total = 0;
    for (let index = 0; index < this.entries.length; index += 1) {
      if (!words.every((word) => this.texts[index].includes(word))) continue;
      total += 1;
      if (matches.length < SHOWN_ENTRIES) matches.push(this.entries[index]);
    }
    const rows = matches.map((entry) => this.row(entry));
    const isSame =
      rows.length === this.found.children.length &&
      rows.every((row, at) => row === this.found.children[at]);
    if (!isSame) show(this.found, rows);
    const hidden = `The first ${SHOWN_ENTRIES} of ${total}: type to find others.`;
    say(this.count, total > SHOWN_ENTRIES ? hidden : total ? "" : `No ${this.noun} matches.`);
  }

  row(entry) {
    const href = this.link(entry);
    if (!this.rows.has(href)) {
      const link = h("a", { href }, h("strong"), h("span"));
      this.rows.set(href, h("li", {}, link));
    }
    const row = this.rows.get(href);
    const [link] = row.children;
    const [title, detail] = link.children;
    const [name, description] = this.text(entry);
    say(title, name);
    say(detail, description ?? "");
    const mark = this.mark(entry);
    if (mark && !link.lastChild.isEqualNode(mark)) {
      if (link.children.length > 2) link.lastChild.remove();
      link.append(mark);
    }
    if (href === this.current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    return row;
  }

  /** Mark the entry of an address; a search that hides it is over. */
  select(href) {
    this.rows.get(this.current)?.firstChild.removeAttribute("aria-current");
    this.current = href;
    this.search();
    const isListed = () => this.found.contains(this.rows.get(href) ?? null);
    if (this.field.value && !isListed() && this.entries.some((each) => this.link(each) === href)) {
      this.field.value = "";
      this.search();
    }
    this.reveal();
  }

  /** Scroll the list, but not the page, to the chosen entry. */
  reveal() {
    const row = this.rows.get(this.current);
    if (!row?.isConnected) return;
    const list = this.found.getBoundingClientRect();
    const { top, bottom } = row.getBoundingClientRect();
    if (top < list.top) this.found.scrollTop -= list.top - top;
    else if (bottom > list.bottom) this.found.scrollTop += bottom - list.bottom;
  }
}

/** A message for the reader, such as an error of the server. */
function notice(kind, ...children) {
  const role = kind === "error" ? "alert" : "status";
  return h("div", { className: `notice ${kind}`, role }, ...children);
}

/** The state of a call or task, in a pill. */
function badge(status) {
  return h("span", { className: `badge ${status}` }, status.replace("_", " "));
}

/** Functions that are called at each change, for as long as their element is on the page. */
class Watchers {
  constructor() {
    this.all = new Map();
  }

  /** Call `changed` now and at each change, until `element` has left the page. */
  add(element, changed) {
    this.all.set(element, { changed, wasShown: false });
    changed();
  }

  notify() {
    for (const [element, each] of this.all) {
      if (each.wasShown && !element.isConnected) this.all.delete(element);
      else {
        each.wasShown ||= element.isConnected;
        each.changed();
      }
    }
  }

  /** Whether one of the elements is on the page. */
  get isWatched() {
    return [...this.all.keys()].some((element) => element.isConnected);
  }
}
