// Forms made of JSON Schemas. A control is { element, read(), fill(value), show(pointer, message) }.

import { h, newId, show } from "./dom.js";

/** A value that is left out, such as an optional field that is empty. */
const ABSENT = Symbol("absent");

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
export class SchemaForm {
  constructor(schema, value = {}) {
    this.root = schema;
    this.fields = control(schema, schema, { pointer: "", required: true });
    this.fields.fill(value);
    this.json = h("textarea", { rows: 12, spellcheck: false, "aria-label": "The arguments as JSON" });
    this.fault = h("p", { className: "fault", role: "alert" });
    this.raw = false;
    this.toggle = h("button", { type: "button", className: "quiet", onclick: () => this.switch() });
    this.body = h("div");
    this.element = h("div", { className: "schema-form" }, this.body, this.fault, this.toggle);
    this.render();
  }

  switch() {
    this.fault.textContent = "";
    try {
      if (this.raw) this.fields.fill(this.parse());
      else this.json.value = JSON.stringify(present(this.fields.read(), {}), null, 2);
    } catch (error) {
      if (this.raw) {
        this.fault.textContent = error.message;
        return;
      }
      this.json.value = "{}"; // an incomplete form
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
      return JSON.parse(this.json.value || "{}");
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
    for (const field of this.element.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  }

  /** Show a fault at the field of a JSON Pointer, or below the form. */
  show(pointer, message) {
    if (this.raw || !this.fields.show(pointer, message)) {
      this.fault.textContent = pointer ? `${pointer}: ${message}` : message;
    }
    this.element.querySelector("[aria-invalid]")?.focus();
  }
}

const present = (value, otherwise) => (value === ABSENT ? otherwise : value);

/** The schema that a `$ref` within the same document refers to. */
function resolve(schema, root) {
  for (let steps = 0; schema?.$ref?.startsWith("#") && steps < 32; steps += 1) {
    const { $ref, ...others } = schema;
    let target = root;
    for (const part of $ref.slice(1).split("/").slice(1)) {
      target = target?.[part.replaceAll("~1", "/").replaceAll("~0", "~")];
    }
    schema = { ...target, ...others };
  }
  return schema === true || schema === undefined ? {} : schema;
}

/** The type of a schema, and whether null is allowed beside it. */
function typeOf(schema) {
  if (schema.const !== undefined || schema.enum) return "choice";
  const types = [schema.type ?? (schema.properties ? "object" : schema.items ? "array" : [])].flat();
  const others = types.filter((each) => each !== "null");
  return others.length === 1 ? others[0] : "any";
}

function control(given, root, place) {
  let schema = resolve(given, root);
  const options = schema.anyOf ?? schema.oneOf;
  if (options && !schema.properties) {
    const { anyOf, oneOf, ...outer } = schema;
    const members = options.map((each) => resolve(each, root));
    const nullable = members.some((each) => each.type === "null");
    const others = members.filter((each) => each.type !== "null");
    if (others.every((each) => each.const !== undefined)) {
      schema = { ...outer, titled: others, nullable };
      return choice(schema, place);
    }
    if (others.length > 1) return variants({ ...outer, nullable }, others, root, place);
    schema = { ...others[0], ...outer, nullable };
  } else if (Array.isArray(schema.type) && schema.type.includes("null")) {
    schema = { ...schema, nullable: true };
  }
  switch (typeOf(schema)) {
    case "object":
      return schema.properties ? object(schema, root, place) : rawJson(schema, place);
    case "array":
      return resolve(schema.items, root).type || schema.items ? array(schema, root, place) : rawJson(schema, place);
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

function bounds(schema) {
  const said = [];
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, minLength, maxLength } = schema;
  if (minimum !== undefined && maximum !== undefined) said.push(`${minimum} to ${maximum}`);
  else if (minimum !== undefined) said.push(`at least ${minimum}`);
  else if (maximum !== undefined) said.push(`at most ${maximum}`);
  if (exclusiveMinimum !== undefined) said.push(`more than ${exclusiveMinimum}`);
  if (exclusiveMaximum !== undefined) said.push(`less than ${exclusiveMaximum}`);
  if (minLength > 1) said.push(`at least ${minLength} characters`);
  if (maxLength !== undefined) said.push(`at most ${maxLength} characters`);
  if (schema.format) said.push(schema.format);
  if (schema.default !== undefined && schema.default !== null && schema.default !== "") {
    said.push(`default ${JSON.stringify(schema.default)}`);
  }
  return said.length ? ` (${said.join(", ")})` : "";
}

const INPUTS = { date: "date", "date-time": "datetime-local", time: "time", email: "email", uri: "url", color: "color" };

function input(schema, place) {
  const numeric = schema.type !== "string" && !(schema.type ?? []).includes("string");
  const long = !numeric && (schema.maxLength > 200 || /\b(text|markdown|csv|code|body|query|sql)\b/i.test(place.name ?? ""));
  const element = long
    ? h("textarea", { rows: 5 })
    : h("input", {
        type: numeric ? "text" : (INPUTS[schema.format] ?? "text"),
        inputMode: numeric ? (typeOf(schema) === "integer" ? "numeric" : "decimal") : undefined,
        step: schema.format === "date-time" ? "1" : undefined,
        spellcheck: false,
      });
  const { element: outer, show } = field(schema, place, element);
  return {
    element: outer,
    show,
    fill(value) {
      const filled = value ?? schema.default;
      element.value = filled === undefined || filled === null ? "" : String(filled);
    },
    read() {
      const text = element.value;
      if (text === "" && !(schema.type === "string" && schema.default)) {
        if (!place.required) return ABSENT;
        if (schema.nullable) return null;
        if (numeric || schema.minLength > 0) throw new Invalid(place.pointer, "This field is required.");
      }
      return numeric ? number(text, schema, place) : string(text, schema, place);
    },
  };
}

function number(text, schema, place) {
  const value = Number(text.trim());
  const integer = typeOf(schema) === "integer";
  if (text.trim() === "" || !Number.isFinite(value) || (integer && !Number.isInteger(value))) {
    throw new Invalid(place.pointer, `Enter ${integer ? "a whole number" : "a number"}.`);
  }
  if (value < schema.minimum) throw new Invalid(place.pointer, `The least is ${schema.minimum}.`);
  if (value > schema.maximum) throw new Invalid(place.pointer, `The most is ${schema.maximum}.`);
  if (value <= schema.exclusiveMinimum) throw new Invalid(place.pointer, `Enter more than ${schema.exclusiveMinimum}.`);
  if (value >= schema.exclusiveMaximum) throw new Invalid(place.pointer, `Enter less than ${schema.exclusiveMaximum}.`);
  return value;
}

function string(text, schema, place) {
  if (schema.format === "date-time" && text) {
    const date = new Date(text);
    if (Number.isNaN(date.getTime())) throw new Invalid(place.pointer, "Enter a date and a time.");
    return date.toISOString();
  }
  const { length } = [...text];
  if (length < schema.minLength) throw new Invalid(place.pointer, `Enter at least ${schema.minLength} characters.`);
  if (length > schema.maxLength) throw new Invalid(place.pointer, `Enter at most ${schema.maxLength} characters.`);
  return text; // the server matches `pattern`: dialects of regular expressions differ
}

function choice(schema, place) {
  const options = schema.titled ?? (schema.enum ?? [schema.const]).map((each) => ({ const: each }));
  const values = options.map((each) => each.const);
  const names = options.map((each, index) => each.title ?? schema.enumNames?.[index] ?? label(each.const));
  const select = h(
    "select",
    {},
    place.required && !schema.nullable ? null : h("option", { value: "" }, place.required ? "null" : "(not given)"),
    names.map((name, index) => h("option", { value: String(index) }, name)),
  );
  const { element, show } = field(schema, place, select);
  return {
    element,
    show,
    fill(value) {
      const index = values.findIndex((each) => same(each, value ?? schema.default));
      select.value = index < 0 ? (select.options[0]?.value ?? "") : String(index);
    },
    read() {
      if (select.value === "") return place.required ? null : ABSENT;
      return values[Number(select.value)];
    },
  };
}

const label = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function object(schema, root, place) {
  const required = new Set(schema.required ?? []);
  const members = Object.entries(schema.properties).map(([name, each]) => [
    name,
    control(each, root, {
      pointer: `${place.pointer}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`,
      name,
      required: required.has(name),
    }),
  ]);
  const body = h("div", { className: "members" }, members.map(([, each]) => each.element));
  const optional = place.pointer !== "" && !place.required;
  const used = h("input", { type: "checkbox", onchange: () => (body.hidden = !used.checked) });
  const legend = h("legend", {}, optional ? h("label", {}, used, " ") : null, schema.title ?? place.name);
  if (optional) legend.firstChild.append(legend.lastChild);
  const element =
    place.pointer === ""
      ? h("div", {}, members.length ? body : h("p", { className: "hint" }, "No arguments."))
      : h("fieldset", {}, legend, schema.description ? h("p", { className: "hint" }, schema.description) : null, body);
  return {
    element,
    fill(value) {
      const filled = value ?? schema.default;
      used.checked = Boolean(filled);
      body.hidden = optional && !used.checked;
      for (const [name, each] of members) each.fill(filled?.[name]);
    },
    read() {
      if (optional && !used.checked) return ABSENT;
      const entries = members.map(([name, each]) => [name, each.read()]);
      return Object.fromEntries(entries.filter(([, value]) => value !== ABSENT));
    },
    show: (pointer, message) => members.some(([, each]) => each.show(pointer, message)),
  };
}

function array(schema, root, place) {
  let items = [];
  const body = h("div", { className: "items" });
  const add = h("button", { type: "button", className: "quiet", onclick: () => append(undefined, true) }, "Add");
  const element = h(
    "fieldset",
    {},
    h("legend", {}, schema.title ?? place.name ?? "List", place.required ? h("span", { className: "required" }, " *") : null),
    schema.description ? h("p", { className: "hint" }, schema.description) : null,
    body,
    add,
  );
  function append(value, focus = false) {
    const item = control(schema.items, root, {
      pointer: `${place.pointer}/${items.length}`,
      name: String(items.length + 1),
      required: true,
    });
    item.fill(value);
    items.push(item);
    const remove = h(
      "button",
      { type: "button", className: "quiet", "aria-label": `Remove item ${items.length}`, onclick: () => without(item) },
      "Remove",
    );
    body.append(h("div", { className: "item" }, item.element, remove));
    if (focus) item.element.querySelector("input, select, textarea")?.focus();
  }
  // Items are made again after a removal, so that their pointers are right.
  function without(item) {
    const values = items.filter((each) => each !== item).map((each) => attempt(each));
    fill(values);
  }
  function attempt(item) {
    try {
      return present(item.read(), undefined);
    } catch {
      return undefined;
    }
  }
  function fill(value) {
    items = [];
    show(body);
    for (const each of value ?? schema.default ?? []) append(each);
  }
  return {
    element,
    fill,
    read() {
      if (!items.length && !place.required) return ABSENT;
      return items.map((each) => present(each.read(), null));
    },
    show: (pointer, message) => items.some((each) => each.show(pointer, message)),
  };
}

function variants(schema, members, root, place) {
  const made = members.map((each) => control(each, root, { ...place, required: true }));
  const select = h(
    "select",
    { onchange: () => choose(select.value) },
    place.required ? null : h("option", { value: "" }, "(not given)"),
    schema.nullable && place.required ? h("option", { value: "null" }, "null") : null,
    members.map((each, index) => h("option", { value: String(index) }, each.title ?? kind(each))),
  );
  const body = h("div");
  const { element, show: showHere } = field(schema, place, select);
  element.append(body);
  function choose(value) {
    select.value = value;
    show(body, made[value]?.element);
  }
  return {
    element,
    fill(value) {
      const filled = value ?? schema.default;
      const index = filled === undefined || filled === null ? -1 : Math.max(0, members.findIndex((each) => fits(filled, each)));
      made.forEach((each, at) => each.fill(at === index ? filled : undefined));
      choose(index >= 0 ? String(index) : place.required && !schema.nullable ? "0" : (select.options[0]?.value ?? ""));
    },
    read() {
      if (select.value === "") return ABSENT;
      return select.value === "null" ? null : made[Number(select.value)].read();
    },
    show: (pointer, message) => made[select.value]?.show(pointer, message) || showHere(pointer, message),
  };
}

function kind(schema) {
  const [[name, each] = []] = Object.entries(schema.properties ?? {}).filter(([, each]) => each.const !== undefined);
  return name ? `${name}: ${each.const}` : [schema.type ?? "any"].flat().join(" or ");
}

function fits(value, schema) {
  const of = Array.isArray(value) ? "array" : typeof value;
  const types = [schema.type ?? []].flat();
  if (of === "number") return types.includes("number") || types.includes("integer");
  if (of !== "object") return types.includes(of) || schema.enum?.includes(value);
  return Object.entries(schema.properties ?? {}).every(([name, each]) => each.const === undefined || each.const === value[name]);
}

function rawJson(schema, place) {
  const element = h("textarea", { rows: 4, spellcheck: false, placeholder: "JSON" });
  const { element: outer, show } = field(schema, place, element);
  return {
    element: outer,
    show,
    fill(value) {
      const filled = value ?? schema.default;
      element.value = filled === undefined ? "" : JSON.stringify(filled, null, 2);
    },
    read() {
      if (element.value.trim() === "") {
        if (!place.required) return ABSENT;
        throw new Invalid(place.pointer, "This field is required.");
      }
      try {
        return JSON.parse(element.value);
      } catch (error) {
        throw new Invalid(place.pointer, `This is not JSON: ${error.message}`);
      }
    },
  };
}
