// Logs in where the endpoint asks for access tokens: OAuth 2.1 with PKCE, in this window.

const KEY = `genmcp:login:${location.pathname}`;

/** The login of this page. Tokens are kept in the window's session storage only. */
class Login {
  constructor(url) {
    this.url = url;
    this.record = stored("sessionStorage", KEY);
    this.needed = null; // what the server has asked for: { metadata, scopes }
    this.kept = null; // what was given to `begin`, after a login
    this.onneeded = () => {};
  }

  token() {
    return this.record?.access_token ?? null;
  }

  /** After a 401 or 403 to a request with `token`: note what is asked for. The user starts the login. */
  refused(status, header, token) {
    const challenge = challengeOf(header, "Bearer");
    if (challenge === null || (status === 403 && challenge.error !== "insufficient_scope")) return;
    if (token !== this.token()) return; // the user has logged in since
    const scopes = [this.record?.scope, challenge.scope].join(" ").split(" ").filter(Boolean);
    if (status === 401) this.keep(null);
    this.needed = { metadata: challenge.resource_metadata, scopes: [...new Set(scopes)] };
    this.onneeded();
  }

  /** Use a token that the user has from elsewhere. */
  use(token) {
    this.keep({ access_token: token.trim(), scope: "" });
  }

  keep(record) {
    this.record = record;
    this.needed = null;
    store("sessionStorage", KEY, record);
  }

  /** Leave for the authorization server; the page comes back with a code, and with `kept`, a text. */
  async begin(kept) {
    const resource = await this.resource();
    const server = await this.server(resource.authorization_servers?.[0] ?? location.origin);
    if (!server.code_challenge_methods_supported?.includes("S256")) {
      throw new Error("The authorization server does not support PKCE with S256.");
    }
    const redirect = location.origin + location.pathname;
    const client = await this.register(server, redirect);
    const verifier = random();
    const target = new URL(server.authorization_endpoint);
    if (target.protocol !== "https:" && target.protocol !== "http:") {
      throw new Error("The authorization server has no page to log in."); // such as javascript:
    }
    const wanted = this.needed?.scopes ?? [];
    const scope = (wanted.length ? wanted : (resource.scopes_supported ?? [])).join(" ");
    const pending = {
      state: random(),
      verifier,
      client,
      redirect,
      resource: resource.resource,
      scope,
      server,
      hash: location.hash,
      kept,
    };
    store("sessionStorage", `${KEY}:pending`, pending);
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
    if (!answer.has("state")) return;
    const pending = stored("sessionStorage", `${KEY}:pending`);
    // The code must not stay in the address, whoever has sent it.
    history.replaceState(null, "", location.pathname + (pending?.hash ?? location.hash));
    if (answer.get("state") !== pending?.state) {
      throw new Error("The login was not begun by this page.");
    }
    store("sessionStorage", `${KEY}:pending`, null);
    this.kept = pending.kept;
    const { issuer, authorization_response_iss_parameter_supported: names } = pending.server;
    const named = answer.get("iss");
    // RFC 9207: the code of another authorization server must not be sent to this one.
    if (named === null ? names : named !== issuer) {
      throw new Error("The answer came from another authorization server than was asked.");
    }
    if (!answer.has("code")) {
      throw new Error(`The login was refused: ${answer.get("error") ?? "no reason given"}.`);
    }
    this.keep(await this.exchange(answer.get("code"), pending));
  }

  /** Exchange a code for a token. */
  async exchange(code, pending) {
    const response = await post(pending.server.token_endpoint, {
      body: new URLSearchParams({
        grant_type: "authorization_code",
        code,
        redirect_uri: pending.redirect,
        client_id: pending.client,
        code_verifier: pending.verifier,
        resource: pending.resource,
      }),
    });
    const record = await response.json().catch(() => ({}));
    if (!response.ok || !record.access_token) {
      const why = record.error_description ?? record.error ?? `status ${response.status}`;
      throw new Error(`The login failed: ${why}.`);
    }
    if (record.token_type?.toLowerCase() !== "bearer") {
      throw new Error(
        `The login failed: this page has no use for a token of type ${record.token_type}.`,
      );
    }
    // Without a member `scope`, it is what was asked for (RFC 6749, 5.1).
    return { access_token: record.access_token, scope: record.scope ?? pending.scope };
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
      if (!found?.resource) continue;
      if (covers(found.resource, location.origin + location.pathname)) return found;
      throw new Error(`The metadata of this server is for ${found.resource}, another resource.`);
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
      throw new Error(
        "The authorization server does not register clients. Use an access token instead.",
      );
    }
    const response = await post(server.registration_endpoint, {
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
      const why = registered.error_description ?? response.status;
      throw new Error(`The authorization server refused to register this page: ${why}.`);
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

async function post(url, options) {
  try {
    return await fetch(url, { method: "POST", credentials: "omit", redirect: "error", ...options });
  } catch {
    throw new Error(`This page cannot send requests to ${url}. Use an access token instead.`);
  }
}

function random() {
  return encode(crypto.getRandomValues(new Uint8Array(32)));
}

async function digest(text) {
  return encode(
    new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text))),
  );
}

function encode(bytes) {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
