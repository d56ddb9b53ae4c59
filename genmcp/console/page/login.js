// Logs in where the endpoint asks for access tokens: OAuth 2.1 with PKCE, in this window.

const KEY = `genmcp:login:${location.pathname}`;

/** The login of this page. Tokens are kept in the window's session storage only. */
export class Login {
  constructor(url) {
    this.url = url;
    this.record = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
    this.needed = null; // what the server has asked for: { metadata, scope }
    this.onneeded = () => {};
  }

  token() {
    return this.record?.access_token ?? null;
  }

  /** After a 401 or 403: note what is asked for. The user starts the login. */
  async refused(status, challenge) {
    const bearer = /\bBearer\b/i.test(challenge ?? "") ? challenge : null;
    if (bearer === null) return false;
    const parameter = (name) => bearer.match(new RegExp(`\\b${name}="([^"]*)"`))?.[1];
    if (status === 403 && parameter("error") !== "insufficient_scope") return false;
    if (status === 401) this.forget();
    const scopes = new Set([...(this.record?.scope ?? "").split(" "), ...(parameter("scope") ?? "").split(" ")].filter(Boolean));
    this.needed = { metadata: parameter("resource_metadata"), scopes: [...scopes] };
    this.onneeded();
    return false;
  }

  forget() {
    this.record = null;
    sessionStorage.removeItem(KEY);
  }

  /** Use a token that the user has from elsewhere. */
  use(token) {
    this.keep({ access_token: token, scope: "" });
  }

  keep(record) {
    this.record = record;
    this.needed = null;
    sessionStorage.setItem(KEY, JSON.stringify(record));
  }

  /** Leave for the authorization server; the page comes back with a code. */
  async begin() {
    const resource = await this.resource();
    const server = await this.server(resource.authorization_servers?.[0] ?? location.origin);
    if (!server.code_challenge_methods_supported?.includes("S256")) {
      throw new Error("The authorization server does not support PKCE with S256.");
    }
    const redirect = location.origin + location.pathname;
    const client = await this.register(server, redirect);
    const verifier = random();
    const pending = { state: random(), verifier, client, redirect, resource: resource.resource, server, hash: location.hash };
    sessionStorage.setItem(`${KEY}:pending`, JSON.stringify(pending));
    const target = new URL(server.authorization_endpoint);
    const scope = (this.needed?.scopes.length ? this.needed.scopes : (resource.scopes_supported ?? [])).join(" ");
    const parameters = {
      response_type: "code",
      client_id: client,
      redirect_uri: redirect,
      state: pending.state,
      code_challenge: await digest(verifier),
      code_challenge_method: "S256",
      resource: resource.resource,
      ...(scope ? { scope } : {}),
    };
    for (const [name, value] of Object.entries(parameters)) target.searchParams.set(name, value);
    location.assign(target);
  }

  /** Finish a login if this page was opened by the authorization server. */
  async finish() {
    const answer = new URLSearchParams(location.search);
    const pending = JSON.parse(sessionStorage.getItem(`${KEY}:pending`) ?? "null");
    if (!answer.has("state") || pending === null) return;
    sessionStorage.removeItem(`${KEY}:pending`);
    history.replaceState(null, "", pending.redirect + pending.hash);
    if (answer.get("state") !== pending.state) throw new Error("The login was not begun by this page.");
    const { issuer } = pending.server;
    const named = answer.get("iss");
    // RFC 9207: the code of another authorization server must not be sent to this one.
    if (named === null ? pending.server.authorization_response_iss_parameter_supported : named !== issuer) {
      throw new Error("The answer came from another authorization server than was asked.");
    }
    if (!answer.has("code")) throw new Error(`The login was refused: ${answer.get("error") ?? "no reason given"}.`);
    const response = await fetch(pending.server.token_endpoint, {
      method: "POST",
      body: new URLSearchParams({
        grant_type: "authorization_code",
        code: answer.get("code"),
        redirect_uri: pending.redirect,
        client_id: pending.client,
        code_verifier: pending.verifier,
        resource: pending.resource,
      }),
    });
    const record = await response.json();
    if (!response.ok) throw new Error(`The login failed: ${record.error_description ?? record.error}.`);
    this.keep({ access_token: record.access_token, scope: record.scope ?? "" });
  }

  async resource() {
    const path = location.pathname.replace(/\/$/, "");
    const places = [
      this.needed?.metadata,
      `${location.origin}/.well-known/oauth-protected-resource${path}`,
      `${location.origin}/.well-known/oauth-protected-resource`,
    ];
    for (const place of places.filter(Boolean)) {
      const found = await load(place);
      if (found?.resource) return found;
    }
    throw new Error("The server does not say where to log in.");
  }

  async server(issuer) {
    const { origin, pathname } = new URL(issuer);
    const path = pathname.replace(/\/$/, "");
    const places = [
      `${origin}/.well-known/oauth-authorization-server${path}`,
      `${origin}/.well-known/openid-configuration${path}`,
      `${origin}${path}/.well-known/openid-configuration`,
    ];
    for (const place of places) {
      const found = await load(place);
      if (found?.issuer === issuer) return found;
    }
    throw new Error(`The authorization server ${issuer} has no metadata that this page can read.`);
  }

  async register(server, redirect) {
    if (!server.registration_endpoint) {
      throw new Error("The authorization server does not register clients. Use an access token instead.");
    }
    const response = await fetch(server.registration_endpoint, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({
        client_name: "genmcp console",
        // A loopback address is for native applications (OpenID Connect Registration, 2).
        application_type: location.protocol === "https:" ? "web" : "native",
        redirect_uris: [redirect],
        grant_types: ["authorization_code"],
        response_types: ["code"],
        token_endpoint_auth_method: "none",
      }),
    });
    const registered = await response.json().catch(() => ({}));
    if (!response.ok || !registered.client_id) {
      throw new Error(`The authorization server refused to register this page: ${registered.error_description ?? response.status}.`);
    }
    return registered.client_id;
  }
}

async function load(url) {
  try {
    const response = await fetch(url, { credentials: "omit", redirect: "error" });
    return response.ok ? await response.json() : null;
  } catch {
    return null; // another place may have it
  }
}

function random() {
  return encode(crypto.getRandomValues(new Uint8Array(32)));
}

async function digest(text) {
  return encode(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text))));
}

function encode(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
