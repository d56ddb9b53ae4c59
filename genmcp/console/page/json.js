// JSON whose integers keep all their digits: a number of JavaScript is exact up to 2**53 only.

/** The methods for raw JSON are newer than the types. @type {any} */
const RAW = JSON;
const LONG = /\d{16}/;

/** Parse JSON. Where the browser can, an integer beyond 2**53 becomes a raw JSON value. */
function parseJson(text) {
  return RAW.rawJSON && LONG.test(text) ? JSON.parse(text, exact) : JSON.parse(text);
}

function exact(_key, value, context) {
  const { source } = context ?? {};
  const isLong =
    typeof value === "number" && /^-?\d{16,}$/.test(source) && !Number.isSafeInteger(value);
  return isLong ? RAW.rawJSON(source) : value;
}

/** Whether a value is an integer that no number of JavaScript holds. */
const isRaw = (value) => RAW.isRawJSON?.(value) ?? false;

/** Whether a value has neither members nor items. */
const isPlain = (value) => value === null || typeof value !== "object" || isRaw(value);

/** The text of a value in a field or a cell: strings without quotes. */
const plainText = (value) => (typeof value === "string" ? value : JSON.stringify(value));
