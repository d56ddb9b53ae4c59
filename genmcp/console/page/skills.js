// The page of a skill (SEP-2640): what it is for, its files, and their contents on demand.

function skillPage(app, { uri, frontmatter, resources }) {
  const area = h("div", { className: "results" });
  const { name, description, ...others } = frontmatter;
  const folder = uri.slice(0, uri.lastIndexOf("/") + 1);
  const open = (file) => {
    const call = new Call(app, {
      method: "resources/read",
      params: { uri: file.uri },
      python: `read(${pythonValue(file.uri)})`,
      finished: ({ contents }) => skillFile(file, contents[0] ?? {}),
    });
    show(area, call.element);
    call.run();
  };
  const row = (file) =>
    h(
      "tr",
      {},
      h(
        "td",
        {},
        quietButton(file.uri.slice(folder.length), () => open(file)),
      ),
      h("td", { className: "number" }, h("div", {}, plural(file.size, "byte"))),
    );
  // The files of a skill that is generated are not known; its SKILL.md is there.
  const isGenerated = !Array.isArray(resources);
  const files = isGenerated ? [{ uri, size: null }] : resources;
  const list = isGenerated
    ? h(
        "p",
        {},
        "Its files are generated. ",
        quietButton("SKILL.md", () => open(files[0])),
      )
    : h("div", { className: "table" }, h("table", {}, h("tbody", {}, files.map(row))));
  return h(
    "article",
    {},
    headOf({ title: name, name, description }, uri),
    h(
      "div",
      { className: "bench" },
      h(
        "div",
        {},
        h("h2", {}, "Files"),
        list,
        Object.keys(others).length
          ? [h("h2", {}, "Front matter"), h("div", { className: "tree" }, tree(others))]
          : null,
      ),
      area,
    ),
  );
}

/** A file of a skill, and whether it is the one of its entry. */
function skillFile({ uri, digest }, { mimeType, text, blob = "" }) {
  const verdict = h("div");
  const bytes =
    text === undefined
      ? Uint8Array.from(atob(blob), (each) => each.charCodeAt(0))
      : new TextEncoder().encode(text);
  // A page of an insecure origin has no digests.
  if (digest && crypto.subtle) {
    crypto.subtle.digest("SHA-256", bytes).then((found) => {
      const hex = [...new Uint8Array(found)].map((each) => each.toString(16).padStart(2, "0"));
      const isSame = digest === `sha256:${hex.join("")}`;
      if (!isSame)
        show(verdict, notice("error", "This is not the file of the entry: its digest differs."));
    });
  }
  // Text is shown as it is: a model reads the same.
  const body = text === undefined ? resourceBody({ uri, mimeType, text, blob }) : textBlock(text);
  return h(
    "div",
    { className: "result" },
    verdict,
    h("p", { className: "hint" }, h("code", {}, uri)),
    body,
  );
}
