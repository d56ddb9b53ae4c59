// Shows what the server has sent: content by its type, structured content as a tree, messages as JSON.

import { codeBlock, h, tabs } from "./dom.js";

/** The result of a tool: its content, its structured content, and whether it is an error. */
export function toolResult(result) {
  const { structuredContent, content = [], isError } = result;
  // The text of structured content repeats it, for clients that do not read it.
  const repeated = (block) => block.type === "text" && structuredContent !== undefined && sameJson(block.text, structuredContent);
  const blocks = content.filter((block) => !repeated(block));
  return h(
    "div",
    { className: isError ? "result failed" : "result" },
    isError ? h("p", { className: "badge failed" }, "Error") : null,
    blocks.map(contentBlock),
    structuredContent === undefined ? null : h("div", { className: "tree" }, tree(structuredContent)),
    !blocks.length && structuredContent === undefined ? h("p", { className: "hint" }, "The result is empty.") : null,
  );
}

function sameJson(text, value) {
  try {
    return JSON.stringify(JSON.parse(text)) === JSON.stringify(value);
  } catch {
    return false;
  }
}

/** A content block of a tool's result or of a prompt's message. */
export function contentBlock(block) {
  switch (block.type) {
    case "text":
      return h("pre", { className: "text", tabIndex: 0 }, block.text);
    case "image":
      return h("img", { src: dataUrl(block), alt: "An image from the server" });
    case "audio":
      return h("audio", { src: dataUrl(block), controls: true });
    case "resource_link":
      return h("p", {}, resourceLink(block.uri, block.title ?? block.name), block.description ? ` ${block.description}` : null);
    case "resource":
      return resourceContents(block.resource);
    default:
      return codeBlock(JSON.stringify(block, null, 2), block.type ?? "content");
  }
}

function resourceLink(uri, name) {
  return h("a", { href: `#/resources/${encodeURIComponent(uri)}` }, name ?? uri);
}

/** The contents of a resource. */
export function resourceContents(contents) {
  const { uri, mimeType = "", text, blob } = contents;
  const head = h("p", { className: "hint" }, h("code", {}, uri), mimeType ? ` ${mimeType}` : "");
  if (text !== undefined) {
    const isJson = mimeType.includes("json") || mimeType === "";
    const parsed = isJson ? parse(text) : undefined;
    return h("div", { className: "result" }, head, parsed === undefined ? h("pre", { className: "text", tabIndex: 0 }, text) : h("div", { className: "tree" }, tree(parsed)));
  }
  const data = { data: blob, mimeType };
  if (mimeType.startsWith("image/")) return h("div", { className: "result" }, head, contentBlock({ type: "image", ...data }));
  if (mimeType.startsWith("audio/")) return h("div", { className: "result" }, head, contentBlock({ type: "audio", ...data }));
  const name = uri.split("/").pop() || "download";
  const bytes = Math.floor((blob.length * 3) / 4);
  return h("div", { className: "result" }, head, h("a", { href: dataUrl({ data: blob, mimeType: "application/octet-stream" }), download: name }, `Download ${bytes} bytes`));
}

const dataUrl = ({ data, mimeType }) => `data:${mimeType};base64,${data}`;

function parse(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" ? value : undefined;
  } catch {
    return undefined;
  }
}

/** A JSON value as a tree; large parts are closed, and made when they are opened. */
export function tree(value, name) {
  const key = name === undefined ? null : h("span", { className: "key" }, `${name}: `);
  if (value === null || typeof value !== "object") {
    return h("div", { className: "leaf" }, key, h("span", { className: `value ${typeof value}` }, JSON.stringify(value)));
  }
  const isArray = Array.isArray(value);
  const entries = Object.entries(value);
  if (isArray && entries.length && isTable(value)) return h("div", {}, key, table(value));
  const size = isArray ? `${entries.length} items` : `${entries.length} members`;
  const body = h("div", { className: "branch" });
  const details = h("details", { ontoggle: fill }, h("summary", {}, key, h("span", { className: "hint" }, size)), body);
  let shown = 0;
  function fill() {
    if (details.open && !shown) more();
  }
  function more() {
    body.querySelector(":scope > button")?.remove();
    body.append(...entries.slice(shown, shown + 100).map(([each, below]) => tree(below, isArray ? Number(each) : each)));
    shown += 100;
    if (shown < entries.length) {
      body.append(h("button", { type: "button", className: "quiet", onclick: more }, `Show more of ${entries.length}`));
    }
  }
  details.open = name === undefined || entries.length <= 5;
  fill();
  return details;
}

const plain = (value) => value === null || typeof value !== "object";

function isTable(rows) {
  const columns = plain(rows[0]) ? [] : Object.keys(rows[0]);
  return (
    columns.length > 0 &&
    columns.length <= 10 &&
    rows.every((row) => !plain(row) && !Array.isArray(row) && Object.keys(row).length === columns.length && Object.values(row).every(plain))
  );
}

function table(rows) {
  const columns = Object.keys(rows[0]);
  const body = h("tbody");
  let shown = 0;
  const more = h("button", { type: "button", className: "quiet", onclick: add }, "Show more");
  function add() {
    body.append(
      ...rows.slice(shown, shown + 100).map((row) =>
        h("tr", {}, columns.map((each) => h("td", { className: typeof row[each] }, row[each] === null ? "" : String(row[each])))),
      ),
    );
    shown += 100;
    more.hidden = shown >= rows.length;
  }
  add();
  return h(
    "div",
    { className: "table", tabIndex: 0 },
    h("table", {}, h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col" }, each)))), body),
    more,
  );
}

/** A message of the protocol as JSON. */
export const json = (value, label) => codeBlock(JSON.stringify(value, null, 2), label);

/** What was sent and received, and how to do the same elsewhere. */
export function exchange({ sent, received, curl, python }) {
  const panels = [];
  if (curl) panels.push(["curl", () => codeBlock(curl, "The same request in a terminal")]);
  if (python) panels.push(["Python", () => codeBlock(python, "The same with genmcp's client")]);
  panels.push(["Request", () => json(sent, "Sent")]);
  panels.push(["Answer", () => received.map((each) => json(each, each.method ?? "Answer"))]);
  return h("details", {}, h("summary", {}, "Request and answer"), tabs("Request and answer", panels));
}
