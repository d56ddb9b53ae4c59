// The pages of resources and of templates.

async function resourcesPage(app, key) {
  const [all, templates] = await Promise.all([app.list("resources"), app.list("templates")]);
  const nothing = "The server offers no resources.";
  if (!all.length && !templates.length)
    return { list: null, detail: emptyPage("resources", nothing) };
  const isSame = app.resources?.all === all && app.resources?.templates === templates;
  if (!isSame) {
    const asEntry = (each) => ({ ...each, uri: each.uriTemplate, isTemplate: true });
    app.resources = { all, templates, entries: [...templates.map(asEntry), ...all] };
  }
  const { entries } = app.resources;
  const list = app.searchList("resources", entries, () => ({
    text: (each) => [titleOf(each) ?? each.uri, each.uri],
    link: ({ uri }) => `#/resources/${encodeURIComponent(uri)}`,
  }));
  if (key === undefined) return { list, detail: null };
  const chosen = entries.find(({ uri }) => uri === key);
  return {
    list,
    detail: chosen?.isTemplate ? templatePage(app, chosen) : resourcePage(app, key, chosen),
  };
}

function read(app, uri, area) {
  const call = new Call(app, {
    method: "resources/read",
    params: { uri },
    python: `read(${pythonValue(uri)})`,
    finished: ({ contents }) => h("div", {}, contents.map(resourceContents)),
  });
  show(area, call.element);
  return call.run();
}

function resourcePage(app, uri, resource) {
  const area = h("div", { className: "results" });
  const subscribed = app.events.has(uri);
  const following = h("span", { className: "hint", role: "status" });
  let changes = 0;
  const report = () => {
    const news = changes
      ? `${plural(changes, "change")}, the last at ${new Date().toLocaleTimeString()}.`
      : "None yet.";
    following.textContent = app.events.has(uri) ? `Following changes. ${news}` : "";
  };
  const changed = (isReported = true) => {
    if (!area.isConnected) return;
    if (isReported) changes += 1;
    report();
    read(app, uri, area);
  };
  if (subscribed) {
    app.events.replace(uri, changed);
    report();
  }
  async function follow(wanted) {
    following.textContent = "";
    await app.events.subscribe(uri, wanted, changed);
    report();
  }
  const onchange = (event) => follow(event.target.checked);
  const box = h("input", { type: "checkbox", checked: subscribed, onchange });
  // Another site can open this page at any URI: one that the server does not list waits for a click.
  const isWanted = resource !== undefined || app.wanted.has(uri);
  const label = isWanted ? "Read again" : "Read";
  const button = h(
    "button",
    { type: "button", className: "primary", onclick: () => start() },
    label,
  );
  function start() {
    app.wanted.add(uri);
    button.textContent = "Read again";
    return read(app, uri, area);
  }
  const warning =
    "The server does not list this resource. Read it if you trust where its address is from.";
  if (isWanted) queueMicrotask(start);
  else show(area, notice("info", warning));
  const canFollow = app.capabilities.resources?.subscribe;
  return h(
    "article",
    {},
    headOf(resource ?? {}, uri),
    h(
      "div",
      { className: "actions" },
      button,
      canFollow ? h("label", {}, box, " Read again when it changes") : null,
      following,
    ),
    area,
  );
}

function templatePage(app, template) {
  const { uriTemplate } = template;
  const names = [...uriTemplate.matchAll(/\{[+#./;?&]?([^}]+)\}/g)].flatMap(([, list]) =>
    list.split(",").map((each) => each.replace(/(\*|:\d+)$/, "")),
  );
  const ref = { type: "ref/resource", uri: uriTemplate };
  const fields = names.map((name) => completed(app, ref, name, () => values()));
  const values = () => Object.fromEntries(fields.map((each) => [each.name, each.value()]));
  const uri = () =>
    uriTemplate.replaceAll(/\{([+#./;?&]?)([^}]+)\}/g, (_, operator, list) =>
      expand(operator, list, values()),
    );
  const open = (event) => {
    event.preventDefault();
    app.wanted.add(uri());
    location.hash = `#/resources/${encodeURIComponent(uri())}`;
  };
  const start = h("button", { type: "submit", className: "primary" }, "Read");
  return h(
    "article",
    {},
    headOf(template, uriTemplate),
    h(
      "form",
      { onsubmit: open },
      fields.map((each) => each.element),
      h("div", { className: "actions" }, start),
    ),
  );
}

/** The expansion of one expression of a URI template (RFC 6570), for texts. */
function expand(operator, list, values) {
  const named = operator === ";" || operator === "?" || operator === "&";
  const encode = operator === "+" || operator === "#" ? encodeURI : encodeURIComponent;
  const parts = list.split(",").flatMap((each) => {
    const name = each.replace(/(\*|:\d+)$/, "");
    const value = values[name];
    if (value === "" || value === undefined) return [];
    return [named ? `${name}=${encode(value)}` : encode(value)];
  });
  const separator = { "+": ",", "#": ",", "?": "&" }[operator] ?? (operator || ",");
  const first = operator === "+" ? "" : operator;
  return parts.length ? first + parts.join(separator) : "";
}
