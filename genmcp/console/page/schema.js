// Reads JSON Schemas for forms.

/** The schema that a `$ref` within the same document refers to, with the members of its `allOf`. */
function resolve(schema, root, steps = 0) {
  if (schema === null || typeof schema !== "object") return {};
  if (steps > 32) return {}; // it refers to itself
  if (typeof schema.$ref === "string" && schema.$ref.startsWith("#")) {
    const { $ref, ...others } = schema;
    return resolve({ ...referred($ref, root), ...others }, root, steps + 1);
  }
  if (!Array.isArray(schema.allOf)) return schema;
  const { allOf, ...others } = schema;
  const members = [...allOf.map((each) => resolve(each, root, steps + 1)), others];
  const merged = Object.assign({}, ...members);
  const required = members.flatMap((each) => each.required ?? []);
  const properties = Object.assign({}, ...members.map((each) => each.properties));
  if (required.length) merged.required = [...new Set(required)];
  if (Object.keys(properties).length) merged.properties = properties;
  return merged;
}

function referred(reference, root) {
  let target = root;
  for (const part of reference.slice(1).split("/").slice(1)) {
    const name = decoded(part).replaceAll("~1", "/").replaceAll("~0", "~");
    target = target && Object.hasOwn(target, name) ? target[name] : undefined;
  }
  return target;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The type of a schema, and whether null is allowed beside it. */
function typeOf(schema) {
  if (schema.const !== undefined || schema.enum) return "choice";
  const types = [
    schema.type ?? (schema.properties ? "object" : schema.items ? "array" : []),
  ].flat();
  const others = types.filter((each) => each !== "null");
  return others.length === 1 ? others[0] : "any";
}

/** The constraints of a value in words. */
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
  if (schema.format === "date-time") said.push("date-time, in your time zone");
  else if (schema.format === "time") said.push("time, such as 14:30:00Z");
  else if (schema.format) said.push(schema.format);
  if (schema.default !== undefined && schema.default !== null && schema.default !== "") {
    said.push(`default ${JSON.stringify(schema.default)}`);
  }
  return said.length ? ` (${said.join(", ")})` : "";
}

/** Whether null is the same as no value: an optional field whose default is null, or none. */
function isAbsence(value, schema, place) {
  return value === null && !place.required && (schema.default ?? null) === null;
}

/** What to call one of several schemas. */
function kind(schema) {
  const properties = Object.entries(schema.properties ?? {});
  const [name, each] = properties.find(([, { const: value }]) => value !== undefined) ?? [];
  return name ? `${name}: ${each.const}` : [schema.type ?? "any"].flat().join(" or ");
}

/** Whether a value may be of a schema, judged by its type and its constants. */
function fits(value, schema) {
  const of = Array.isArray(value) ? "array" : isRaw(value) ? "number" : typeof value;
  const types = [schema.type ?? []].flat();
  if (of === "number") return types.includes("number") || types.includes("integer");
  if (of !== "object") return types.includes(of) || schema.enum?.includes(value);
  if (types.length && !types.includes("object")) return false;
  return Object.entries(schema.properties ?? {}).every(
    ([name, each]) => each.const === undefined || each.const === value[name],
  );
}
