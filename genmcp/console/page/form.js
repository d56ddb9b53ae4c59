// Forms made of JSON Schemas.

/**
 * The field of a value, or the fields of an object. `read(true)` leaves out what is not valid,
 * `fill(undefined)` fills in the default, `show` returns whether the pointer is its own.
 *
 * @typedef {object} Control
 * @property {HTMLElement} element
 * @property {(partial?: boolean) => any} read
 * @property {(value?: any) => void} fill
 * @property {(pointer: string, message: string) => boolean} show
 */

/** A value that is left out, such as an optional field that is empty. */
const ABSENT = Symbol("absent");

const DEEPEST = 12; // levels of a form; what is below them is JSON
const MOST_FIELDS = 1000; // that are made at once: definitions that use each other multiply

class Invalid extends Error {
  constructor(pointer, message) {
    super(message);
    this.pointer = pointer;
  }
}

/**
 * A form for a schema of type object, with its JSON as a way out. `read()` returns the value, or
 * null after it has shown what is wrong.
 */
class SchemaForm {
  constructor(schema, value = {}) {
    this.root = schema;
    this.fields = control(schema, schema, {
      pointer: "",
      required: true,
      level: 0,
      budget: { left: MOST_FIELDS },
    });
    this.fields.fill(value);
    this.json = h("textarea", {
      rows: 12,
      spellcheck: false,
      "aria-label": "The arguments as JSON",
    });
    this.fault = h("p", { className: "fault", role: "alert" });
    this.raw = false;
    this.toggle = h("button", { type: "button", className: "quiet", onclick: () => this.switch() });
    this.body = h("div");
    this.element = h("div", { className: "schema-form" }, this.body, this.fault);
    this.render();
  }

  switch() {
    this.clear();
    try {
      if (this.raw) this.fields.fill(this.parse());
      else this.json.value = JSON.stringify(present(this.fields.read(true), {}), null, 2);
    } catch (error) {
      this.fault.textContent = error.message;
      return;
    }
    this.raw = !this.raw;
    this.render();
  }

  render() {
    this.toggle.textContent = this.raw ? "Edit as a form" : "Edit as JSON";
    show(this.body, this.raw ? this.json : this.fields.element);
  }

  parse() {
    try {
      return parseJson(this.json.value || "{}");
    } catch (error) {
      throw new Invalid("", `This is not JSON: ${error.message}`);
    }
  }

  read() {
    this.clear();
    try {
      return this.raw ? this.parse() : present(this.fields.read(), {});
    } catch (error) {
      if (!(error instanceof Invalid)) throw error;
      this.show(error.pointer, error.message);
      return null;
    }
  }

  clear() {
    this.fault.textContent = "";
    for (const field of this.element.querySelectorAll(".fault")) field.textContent = "";
    for (const field of this.element.querySelectorAll("[aria-invalid]")) {
      field.removeAttribute("aria-invalid");
    }
  }

  /** Show a fault at the field of a JSON Pointer, or below the form. */
  show(pointer, message) {
    if (this.raw || !this.fields.show(pointer, message)) {
      this.fault.textContent = pointer ? `${pointer}: ${message}` : message;
    }
    find(this.element, "[aria-invalid]")?.focus();
  }
}

const present = (value, otherwise) => (value === ABSENT ? otherwise : value);

/** @returns {Control} */
function control(given, root, above) {
  const place = { ...above, level: above.level + 1 };
  let schema = resolve(given, root);
  place.budget.left -= 1;
  if (place.level > DEEPEST || place.budget.left < 0) return rawJson(schema, place);
  const options = schema.anyOf ?? schema.oneOf;
  if (options && !schema.properties) {
    const { anyOf, oneOf, ...outer } = schema;
    const members = options.map((each) => resolve(each, root));
    const nullable = members.some((each) => each.type === "null");
    const others = members.filter((each) => each.type !== "null");
    if (others.length && others.every((each) => each.const !== undefined)) {
      schema = { ...outer, titled: others, nullable };
      return choice(schema, place);
    }
    if (others.length > 1) return variants({ ...outer, nullable }, others, root, place);
    // A member may consist of variants itself.
    const isNested = others[0]?.anyOf ?? others[0]?.oneOf;
    if (isNested) return variants({ ...outer, nullable }, others, root, place);
    schema = { ...others[0], ...outer, nullable };
  } else if (Array.isArray(schema.type) && schema.type.includes("null")) {
    schema = { ...schema, nullable: true };
  }
  switch (typeOf(schema)) {
    case "object":
      return schema.properties ? object(schema, root, place) : rawJson(schema, place);
    case "array":
      return schema.items && !schema.prefixItems
        ? array(schema, root, place)
        : rawJson(schema, place);
    case "choice":
      return choice(schema, place);
    case "boolean":
      return choice({ ...schema, enum: [true, false] }, place);
    case "integer":
    case "number":
    case "string":
      return input(schema, place);
    default:
      return rawJson(schema, place);
  }
}

/** The label, description and fault around a field. */
function field(schema, place, input) {
  const fault = h("p", { className: "fault", id: newId("fault") });
  const hint = h("p", { className: "hint", id: newId("hint") }, schema.description, bounds(schema));
  input.id = newId("field");
  input.setAttribute("aria-describedby", `${hint.id} ${fault.id}`);
  if (place.required) input.setAttribute("aria-required", "true");
  const label = h(
    "label",
    { htmlFor: input.id },
    schema.title ?? place.name ?? "Value",
    place.required ? h("span", { className: "required", title: "required" }, " *") : null,
    schema.title && place.name ? h("code", {}, place.name) : null,
  );
  return {
    element: h("div", { className: "field" }, label, input, hint, fault),
    show(pointer, message) {
      if (pointer !== place.pointer && !pointer.startsWith(`${place.pointer}/`)) return false;
      fault.textContent = message;
      input.setAttribute("aria-invalid", "true");
      return true;
    },
  };
}

// A field for `time` has no zone, which the format requires: such a time is typed as text.
const INPUTS = { date: "date", "date-time": "datetime-local", email: "email", uri: "url" };
const LONG_NAMES = /\b(text|markdown|csv|code|body|query|sql)\b/i;

function input(schema, place) {
  const numeric = schema.type !== "string" && !(schema.type ?? []).includes("string");
  const long = !numeric && (schema.maxLength > 200 || LONG_NAMES.test(place.name ?? ""));
  const isTime = schema.format === "date-time";
  const element = long
    ? h("textarea", { rows: 3 })
    : h("input", {
        type: numeric ? "text" : (INPUTS[schema.format] ?? "text"),
        inputMode: numeric ? (typeOf(schema) === "integer" ? "numeric" : "decimal") : undefined,
        step: isTime ? "1" : undefined,
        spellcheck: false,
      });
  const { element: outer, show } = field(schema, place, element);
  // A field for dates shows another text than the value, and less of it: the value that was filled
  // in is kept as long as the field is not changed.
  let filled = { shown: "", value: undefined };
  return {
    element: outer,
    show,
    fill(value = schema.default) {
      const text = value === undefined || value === null ? "" : plainText(value);
      element.value = isTime ? localTime(text) : text;
      filled = { shown: element.value, value };
    },
    read() {
      const text = element.value;
      if (isTime && text && text === filled.shown) return filled.value;
      if (text === "" && !(schema.type === "string" && schema.default)) {
        if (filled.value === null && schema.nullable && !isAbsence(null, schema, place))
          return null;
        if (!place.required) return ABSENT;
        if (schema.nullable) return null;
        // An empty text that was filled in, such as that of a default, is one.
        if (numeric || filled.value !== "" || schema.minLength > 0 || schema.format) {
          const way = numeric || schema.format ? "" : " An empty text can be sent as JSON.";
          throw new Invalid(place.pointer, `This field is required.${way}`);
        }
      }
      return numeric ? number(text, schema, place) : string(text, schema, place);
    },
  };
}

/** A date-time as its field takes it: in the user's time zone, without an offset. */
function localTime(text) {
  const date = new Date(text);
  if (text === "" || Number.isNaN(date.getTime())) return "";
  const local = new Date(date.getTime() - date.getTimezoneOffset() * 60_000);
  return local.toISOString().slice(0, 19);
}

function number(text, schema, place) {
  const written = text.trim();
  const value = Number(written);
  const integer = typeOf(schema) === "integer";
  const refuse = (message) => {
    throw new Invalid(place.pointer, message);
  };
  if (written === "" || !Number.isFinite(value) || (integer && !Number.isInteger(value))) {
    refuse(`Enter ${integer ? "a whole number" : "a number"}.`);
  }
  if (value < schema.minimum) refuse(`The least is ${schema.minimum}.`);
  if (value > schema.maximum) refuse(`The most is ${schema.maximum}.`);
  if (value <= schema.exclusiveMinimum) refuse(`Enter more than ${schema.exclusiveMinimum}.`);
  if (value >= schema.exclusiveMaximum) refuse(`Enter less than ${schema.exclusiveMaximum}.`);
  // An integer that a number cannot hold is sent as it was typed.
  return /^-?[1-9]\d{15,}$/.test(written) ? parseJson(written) : value;
}

function string(text, schema, place) {
  if (schema.format === "date-time" && text) {
    const date = new Date(text);
    if (Number.isNaN(date.getTime())) throw new Invalid(place.pointer, "Enter a date and a time.");
    return date.toISOString();
  }
  const { length } = [...text];
  const { minLength, maxLength } = schema;
  if (length < minLength)
    throw new Invalid(place.pointer, `Enter at least ${minLength} characters.`);
  if (length > maxLength)
    throw new Invalid(place.pointer, `Enter at most ${maxLength} characters.`);
  return text; // the server matches `pattern`: dialects of regular expressions differ
}

/** A choice of values, and of none if the field is optional. */
function choice(schema, place) {
  const options = schema.titled ?? (schema.enum ?? [schema.const]).map((each) => ({ const: each }));
  const values = options.map((each) => each.const);
  const names = options.map(
    (each, at) => each.title ?? schema.enumNames?.[at] ?? label(each.const),
  );
  if (schema.nullable && !values.includes(null)) {
    values.push(null);
    names.push("null");
  }
  const mustChoose = place.required && values.length > 1;
  const select = h(
    "select",
    {},
    place.required ? null : h("option", { value: "" }, "(not given)"),
    mustChoose ? h("option", { value: "" }, "Choose…") : null,
    names.map((name, index) => h("option", { value: String(index) }, name)),
  );
  const { element, show } = field(schema, place, select);
  return {
    element,
    show,
    fill(value = schema.default) {
      const isNone = value === undefined || isAbsence(value, schema, place);
      const index = isNone ? -1 : values.findIndex((each) => same(each, value));
      select.value = index < 0 ? select.options[0].value : String(index);
    },
    read() {
      if (select.value !== "") return values[Number(select.value)];
      if (place.required) throw new Invalid(place.pointer, "Choose one.");
      return ABSENT;
    },
  };
}

const label = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** Fields for the members of an object. Those of an optional one are made when it is used. */
function object(schema, root, place) {
  const required = new Set(schema.required ?? []);
  const optional = place.pointer !== "" && (!place.required || schema.nullable);
  /** @type {[string, Control][] | null} */
  let members = null;
  let others = {}; // members that were filled in and have no field
  const body = h("div", { className: "members" });
  const further = h("p", { className: "hint" });
  function made() {
    if (members) return members;
    const budget = optional ? { left: MOST_FIELDS } : place.budget;
    members = Object.entries(schema.properties).map(([name, each]) => [
      name,
      control(each, root, {
        ...place,
        budget,
        pointer: `${place.pointer}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`,
        name,
        required: required.has(name),
      }),
    ]);
    show(
      body,
      members.map(([, each]) => each.element),
      further,
    );
    return members;
  }
  function use() {
    body.hidden = !used.checked;
    if (used.checked && !members) for (const [, each] of made()) each.fill();
  }
  const used = h("input", { type: "checkbox", onchange: use });
  const title = schema.title ?? place.name;
  const legend = h("legend", {}, optional ? h("label", {}, used, " ", title) : title);
  const hint = schema.description ? h("p", { className: "hint" }, schema.description) : null;
  const isEmpty = Object.keys(schema.properties).length === 0;
  const element =
    place.pointer === ""
      ? h("div", {}, isEmpty ? h("p", { className: "hint" }, "No arguments.") : null, body)
      : h("fieldset", {}, legend, hint, body);
  return {
    element,
    fill(value = schema.default) {
      const given = value !== null && typeof value === "object" ? value : {};
      used.checked = Boolean(value);
      body.hidden = optional && !used.checked;
      if (body.hidden) return;
      for (const [name, each] of made()) each.fill(given[name]);
      const names = Object.keys(given).filter((each) => !Object.hasOwn(schema.properties, each));
      others = Object.fromEntries(names.map((each) => [each, given[each]]));
      further.textContent = names.length
        ? `Further members, as JSON only: ${names.join(", ")}`
        : "";
    },
    read(partial) {
      if (optional && !used.checked) return place.required ? null : ABSENT;
      const entries = made().map(([name, each]) => [name, attempt(each, partial)]);
      return { ...Object.fromEntries(entries.filter(([, value]) => value !== ABSENT)), ...others };
    },
    show: (pointer, message) => (members ?? []).some(([, each]) => each.show(pointer, message)),
  };
}

/** The value of a control; if a part is enough, one that is not valid is absent. */
function attempt(control, partial) {
  try {
    return control.read(partial);
  } catch (error) {
    if (!partial || !(error instanceof Invalid)) throw error;
    return ABSENT;
  }
}

function array(schema, root, place) {
  let items = [];
  const body = h("div", { className: "items" });
  const onclick = () => append(undefined, true);
  const add = h("button", { type: "button", className: "quiet", onclick }, "Add");
  const element = h(
    "fieldset",
    {},
    h(
      "legend",
      {},
      schema.title ?? place.name ?? "List",
      place.required ? h("span", { className: "required" }, " *") : null,
    ),
    schema.description ? h("p", { className: "hint" }, schema.description) : null,
    body,
    add,
  );
  function append(value, focus = false) {
    const item = control(schema.items, root, {
      ...place,
      budget: { left: MOST_FIELDS },
      pointer: `${place.pointer}/${items.length}`,
      name: String(items.length + 1),
      required: true,
    });
    item.fill(value);
    items.push(item);
    const remove = h(
      "button",
      {
        type: "button",
        className: "quiet",
        "aria-label": `Remove item ${items.length}`,
        onclick: () => without(item),
      },
      "Remove",
    );
    body.append(h("div", { className: "item" }, item.element, remove));
    if (focus) find(item.element, "input, select, textarea")?.focus();
  }
  // Items are made again after a removal, so that their pointers are right.
  function without(item) {
    const others = items.filter((each) => each !== item);
    fill(others.map((each) => present(attempt(each, true), undefined)));
    add.focus();
  }
  function fill(value = schema.default) {
    items = [];
    show(body);
    for (const each of value ?? []) append(each);
  }
  return {
    element,
    fill,
    read(partial) {
      if (!items.length && !place.required && !schema.default?.length) return ABSENT;
      return items.map((each) => present(attempt(each, partial), null));
    },
    show: (pointer, message) => items.some((each) => each.show(pointer, message)),
  };
}

/** A choice of schemas, with the control of the one that is chosen. */
function variants(schema, members, root, place) {
  const made = new Map();
  const select = h(
    "select",
    { onchange: () => choose(select.value) },
    place.required ? null : h("option", { value: "" }, "(not given)"),
    schema.nullable ? h("option", { value: "null" }, "null") : null,
    members.map((each, index) => h("option", { value: String(index) }, each.title ?? kind(each))),
  );
  const body = h("div");
  const { element, show: showHere } = field(schema, place, select);
  element.append(body);
  const chosen = () => made.get(select.value);
  function choose(value, filled) {
    select.value = value;
    const member = members[value];
    if (member && (!made.has(value) || filled !== undefined)) {
      made.set(value, control(member, root, { ...place, required: true }));
      chosen().fill(filled);
    }
    show(body, chosen()?.element ?? []);
  }
  return {
    element,
    fill(value = schema.default) {
      if (isAbsence(value, schema, place)) choose("");
      else if (value === null && schema.nullable) choose("null");
      else if (value === undefined || value === null) choose(place.required ? "0" : "");
      else
        choose(
          String(
            Math.max(
              0,
              members.findIndex((each) => fits(value, each)),
            ),
          ),
          value,
        );
    },
    read(partial) {
      if (select.value === "") return ABSENT;
      return select.value === "null" ? null : chosen().read(partial);
    },
    show: (pointer, message) => chosen()?.show(pointer, message) || showHere(pointer, message),
  };
}

function rawJson(schema, place) {
  const element = h("textarea", { rows: 4, spellcheck: false, placeholder: "JSON" });
  const { element: outer, show } = field(schema, place, element);
  return {
    element: outer,
    show,
    fill(value = schema.default) {
      element.value = value === undefined ? "" : JSON.stringify(value, null, 2);
    },
    read() {
      if (element.value.trim() === "") {
        if (!place.required) return ABSENT;
        throw new Invalid(place.pointer, "This field is required.");
      }
      try {
        return parseJson(element.value);
      } catch (error) {
        throw new Invalid(place.pointer, `This is not JSON: ${error.message}`);
      }
    },
  };
}
