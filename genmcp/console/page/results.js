// Shows what the server has sent: content by its type, structured content as a tree, messages as JSON.

const OPEN_LEVELS = 3; // of a tree, that are open from the beginning

/** The result of a tool: its content, its structured content, and whether it is an error. */
function toolResult(result) {
  const { structuredContent, content = [], isError } = result;
  // The text of structured content repeats it, for clients that do not read it.
  const hasData = structuredContent !== undefined;
  const repeated = ({ type, text }) =>
    type === "text" && hasData && sameJson(text, structuredContent);
  const blocks = content.filter((block) => !repeated(block));
  return h(
    "div",
    { className: isError ? "result failed" : "result" },
    isError ? h("p", {}, h("span", { className: "badge failed" }, "error")) : null,
    blocks.map(contentBlock),
    hasData ? h("div", { className: "tree" }, tree(structuredContent)) : null,
    !blocks.length && !hasData ? h("p", { className: "hint" }, "The result is empty.") : null,
  );
}

function sameJson(text, value) {
  try {
    return JSON.stringify(parseJson(text)) === JSON.stringify(value);
  } catch {
    return false;
  }
}

/** A content block of a tool's result or of a prompt's message. */
function contentBlock(block) {
  switch (block.type) {
    case "text":
      return textBlock(block.text);
    case "image":
      return h("img", { src: dataUrl(block), alt: "An image from the server" });
    case "audio":
      return h("audio", {
        src: dataUrl(block),
        controls: true,
        "aria-label": "Audio from the server",
      });
    case "resource_link": {
      const { uri, title, name, description } = block;
      const link = h("a", { href: `#/resources/${encodeURIComponent(uri)}` }, title ?? name ?? uri);
      return h("p", {}, link, description ? ` ${description}` : null);
    }
    case "resource":
      return resourceContents(block.resource);
    default:
      return codeBlock(JSON.stringify(block, null, 2), block.type ?? "content");
  }
}

const textBlock = (text) => scrolling(longText(h("pre", { className: "text", tabIndex: 0 }), text));

/** The contents of a resource. */
function resourceContents(contents) {
  const { uri, mimeType = "" } = contents;
  const head = h("p", { className: "hint" }, h("code", {}, uri), mimeType ? ` ${mimeType}` : "");
  return h("div", { className: "result" }, head, resourceBody(contents));
}

function resourceBody({ uri, mimeType = "", text, blob }) {
  if (text !== undefined) {
    const isJson = mimeType.includes("json") || mimeType === "";
    const parsed = isJson ? parse(text) : undefined;
    return parsed === undefined ? textBlock(text) : h("div", { className: "tree" }, tree(parsed));
  }
  const [type] = mimeType.split("/");
  if (type === "image" || type === "audio") return contentBlock({ type, data: blob, mimeType });
  const href = dataUrl({ data: blob, mimeType: "application/octet-stream" });
  const name = uri.split("/").pop() || "download";
  const bytes = Math.floor((blob.length * 3) / 4);
  return h("a", { href, download: name }, `Download ${plural(bytes, "byte")}`);
}

const dataUrl = ({ data, mimeType }) => `data:${mimeType};base64,${data}`;

function parse(text) {
  try {
    const value = parseJson(text);
    return isPlain(value) ? undefined : value;
  } catch {
    return undefined;
  }
}

/** A JSON value as a tree; large and deep parts are closed, and made when they are opened. */
function tree(value, name, level = 0) {
  const key = name === undefined ? null : h("span", { className: "key" }, `${name}: `);
  if (isPlain(value)) {
    const text = longText(
      h("span", { className: `value ${kindOf(value)}` }),
      JSON.stringify(value),
    );
    return h("div", { className: "leaf" }, key, text);
  }
  const isArray = Array.isArray(value);
  const entries = Object.entries(value);
  if (isArray && entries.length && isTable(value)) return h("div", {}, key, table(value));
  const size = plural(entries.length, isArray ? "item" : "member");
  const body = h("div", { className: "branch" });
  const summary = h("summary", {}, key, h("span", { className: "hint" }, size));
  const details = h("details", { ontoggle: fill }, summary, body);
  let shown = 0;
  function fill() {
    if (details.open && !shown) more();
  }
  function more() {
    body.querySelector(":scope > button")?.remove();
    const next = entries.slice(shown, shown + 100);
    body.append(...next.map(([each, below]) => tree(below, each, level + 1)));
    shown += 100;
    if (shown < entries.length) {
      const label = `Show more of ${entries.length}`;
      body.append(h("button", { type: "button", className: "quiet", onclick: more }, label));
    }
  }
  details.open = level === 0 || (level < OPEN_LEVELS && entries.length <= 5);
  fill();
  return details;
}

const kindOf = (value) => (value === null ? "null" : isRaw(value) ? "number" : typeof value);

/** Whether these are objects with the same few members, each of a cell's size. */
function isTable(rows) {
  const columns = isPlain(rows[0]) || Array.isArray(rows[0]) ? [] : Object.keys(rows[0]);
  const isRow = (row) =>
    !isPlain(row) &&
    !Array.isArray(row) &&
    Object.keys(row).length === columns.length &&
    columns.every((each) => Object.hasOwn(row, each) && isPlain(row[each]));
  return columns.length > 0 && columns.length <= 10 && rows.every(isRow);
}

function table(rows) {
  const columns = Object.keys(rows[0]);
  const body = h("tbody");
  let shown = 0;
  const more = quietButton("Show more", add);
  const cell = (value) =>
    value === null
      ? h("td", { className: "null" }, "null")
      : h("td", { className: kindOf(value) }, longText(h("div"), plainText(value)));
  function add() {
    const next = rows.slice(shown, shown + 100);
    body.append(
      ...next.map((row) =>
        h(
          "tr",
          {},
          columns.map((each) => cell(row[each])),
        ),
      ),
    );
    shown += 100;
    more.hidden = shown >= rows.length;
  }
  add();
  const head = h(
    "tr",
    {},
    columns.map((each) => h("th", { scope: "col", className: kindOf(rows[0][each]) }, each)),
  );
  const element = h("table", {}, h("thead", {}, head), body);
  const size = h("p", { className: "hint" }, plural(rows.length, "row"));
  return h(
    "div",
    {},
    size,
    scrolling(h("div", { className: "table", tabIndex: 0 }, element, more)),
  );
}

/** A message of the protocol as JSON. */
const json = (value, label) => codeBlock(JSON.stringify(value, null, 2), label);

/**
 * What was sent and received, and how to do the same elsewhere.
 *
 * @param {{ sent: any, received: any[], curl?: string, python?: string }} messages
 */
function exchange({ sent, received, curl, python }) {
  const panels = [];
  if (curl) panels.push(["curl", () => codeBlock(curl, "The same request in a terminal")]);
  if (python) panels.push(["Python", () => codeBlock(python, "The same with genmcp's client")]);
  panels.push(["Request", () => json(sent, "Sent")]);
  panels.push(["Answer", () => received.map((each) => json(each, each.method ?? "Answer"))]);
  return h(
    "details",
    {},
    h("summary", {}, "Request and answer"),
    tabs("Request and answer", panels),
  );
}
