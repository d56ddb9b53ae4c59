// The browser's storage: JSON values that may be broken, of a browser that may forbid to store any.

/**
 * The value of a key, or `otherwise`.
 *
 * @param {"localStorage" | "sessionStorage"} area
 * @param {string} key
 * @param {any} [otherwise]
 */
function stored(area, key, otherwise = null) {
  try {
    return JSON.parse(window[area].getItem(key) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/**
 * Store a value, or remove the key for null. Without storage it lasts as long as the page.
 *
 * @param {"localStorage" | "sessionStorage"} area
 * @param {string} key
 */
function store(area, key, value) {
  try {
    if (value === null) window[area].removeItem(key);
    else window[area].setItem(key, JSON.stringify(value));
  } catch {
    // forbidden, or full
  }
}
