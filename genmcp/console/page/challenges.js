// Challenges in `WWW-Authenticate` (RFC 9110, 11.6.1), and the metadata that they name, as genmcp/core/auth reads them.

const TOKEN = "[!#$%&'*+.^_`|~0-9A-Za-z-]+";
const SEPARATORS = /[ \t,]+/y;
// Servers are known to send URLs without quotes, although they are no tokens.
const PARAMETER = new RegExp(
  `(${TOKEN})[ \\t]*=[ \\t]*(?:"((?:[^"\\\\]|\\\\.)*)"|([^\\s,"]+))`,
  "y",
);
const SCHEME = new RegExp(`(${TOKEN})(?:[ \\t]+|(?=,)|$)`, "y");
const TOKEN68 = /[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|$)/y;
const MOST = 16;

/** The parameters, by lower-case names, of the first challenge with a scheme; null without one. */
function challengeOf(header, scheme) {
  const wanted = scheme.toLowerCase();
  const found = challengesOf(header).find((each) => each.scheme.toLowerCase() === wanted);
  return found ? found.parameters : null;
}

function challengesOf(header) {
  const challenges = [];
  let at = 0;
  const matched = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(header);
  };
  const take = (pattern) => {
    const found = matched(pattern);
    if (found) at = pattern.lastIndex;
    return found;
  };
  while (at < header.length && challenges.length < MOST) {
    if (take(SEPARATORS)) continue;
    const { parameters } = challenges.at(-1) ?? {};
    const parameter = parameters && take(PARAMETER);
    if (parameter) {
      const [, name, quoted, bare] = parameter;
      parameters[name.toLowerCase()] ??= bare ?? quoted.replaceAll(/\\(.)/g, "$1");
      continue;
    }
    const scheme = take(SCHEME);
    if (scheme) {
      challenges.push({ scheme: scheme[1], parameters: Object.create(null) });
      if (!matched(PARAMETER)) take(TOKEN68); // `Negotiate oWc...`: a value without a name
    } else {
      const comma = header.indexOf(",", at);
      at = comma < 0 ? header.length : comma;
    }
  }
  return challenges;
}

/** Whether a resource is the URL, or a parent of it by whole segments of the path (RFC 9728, 3.3). */
function covers(resource, url) {
  let has;
  try {
    has = new URL(resource);
  } catch {
    return false;
  }
  const asked = new URL(url);
  const same = has.origin === asked.origin && ["", asked.search].includes(has.search);
  if (!same || has.username || has.password || resource.includes("#")) return false;
  const [parent, path] = [has, asked].map((each) => each.pathname.replace(/\/+$/, ""));
  return path === parent || path.startsWith(`${parent}/`);
}
