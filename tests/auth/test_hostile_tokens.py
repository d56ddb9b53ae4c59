"""Tokens of attackers, and of servers that are set up wrong: each is refused, and never shown.

An endpoint with the published keys of an issuer, over ASGI; the issuer is served over HTTP. The
issuer has keys of every type, also some that must verify nothing.
"""

import asyncio
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from genmcp import Endpoint, Suite
from genmcp.auth import Bearer
from tests.support.forging import encoded, forged, jwk_of, packed
from tests.support.serving import serve
from tests.support.tokens import RESOURCE, call, whoami

NOW = int(time.time())
RSA = rsa.generate_private_key(65537, 2048)
PSS = rsa.generate_private_key(65537, 2048)
WEAK = rsa.generate_private_key(65537, 1024)
P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
K256 = ec.generate_private_key(ec.SECP256K1())
ED = ed25519.Ed25519PrivateKey.generate()
SECRET = b"a secret that should not be here" * 2
STRANGER = rsa.generate_private_key(65537, 2048)
EC_STRANGER = ec.generate_private_key(ec.SECP256R1())
N256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # the order of P-256

KEYS = {
    "keys": [
        jwk_of(RSA, kid="rsa"),
        jwk_of(PSS, kid="pss", alg="PS256"),
        jwk_of(P256, kid="p256", alg="ES256", use="sig"),
        jwk_of(P384, kid="p384"),
        jwk_of(ED, kid="ed"),
        jwk_of(WEAK, kid="weak"),
        jwk_of(K256, kid="k256"),
        jwk_of(P256, kid="encryption", use="enc"),
        jwk_of(P256, kid="operations", key_ops=["deriveKey"]),
        {"kty": "oct", "kid": "secret", "k": encoded(SECRET)},
    ]
}


class Published(NamedTuple):
    """An issuer that serves its metadata and keys over HTTP, and the requests that it got."""

    url: str
    requests: list[str]


@pytest.fixture(scope="module")
def issuer() -> Iterator[Published]:
    requests: list[str] = []

    async def metadata(request: Request) -> JSONResponse:
        requests.append(request.url.path)
        base = str(request.base_url).rstrip("/")
        return JSONResponse({"issuer": base, "jwks_uri": f"{base}/keys"})

    async def keys(request: Request) -> JSONResponse:
        requests.append(request.url.path)
        return JSONResponse(KEYS)

    app = Starlette(
        routes=[
            Route("/.well-known/oauth-authorization-server", metadata),
            Route("/keys", keys),
            Route("/{path:path}", keys),  # what a token points at
        ]
    )
    with asyncio.Runner() as runner:
        served = serve(app)
        url = runner.run(served.__aenter__())
        yield Published(url, requests)
        runner.run(served.__aexit__(None, None, None))


@pytest.fixture
def endpoint(issuer: Published) -> Endpoint:
    bearer = Bearer(RESOURCE, issuers=[issuer.url])
    return Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=bearer)


def claims(issuer: Published, **changes: Any) -> dict[str, Any]:
    """The claims of a good token with *changes*; MISSING removes one."""
    good = {"iss": issuer.url, "aud": RESOURCE, "sub": "ada", "iat": NOW, "exp": NOW + 600}
    return {name: value for name, value in (good | changes).items() if value is not MISSING}


MISSING = object()


class Case(NamedTuple):
    """A hostile token, and the words in the log that name the fault."""

    make: Callable[[Published], str]
    logged: str


CASES: dict[str, Case] = {}


def case(name: str, logged: str, make: Callable[[Published], str]) -> None:
    assert name not in CASES
    CASES[name] = Case(make, logged)


def payload(name: str, logged: str, **changes: Any) -> None:
    """A token with a good signature, and changed claims."""
    case(
        name,
        logged,
        lambda issuer: forged({"alg": "RS256", "kid": "rsa"}, claims(issuer, **changes), RSA),
    )


def header(name: str, logged: str, key: Any = RSA, scheme: str = "RS256", **members: Any) -> None:
    """A token with good claims, and a header of an attacker; *key* signs it."""
    head = {name: value for name, value in members.items() if value is not MISSING}
    case(name, logged, lambda issuer: forged(head, claims(issuer), key, scheme=scheme))


def text(name: str, logged: str, body: bytes | str) -> None:
    """A token with a good signature, and a payload that is not one."""
    case(name, logged, lambda issuer: forged({"alg": "RS256", "kid": "rsa"}, body, RSA))


def good(issuer: Published, **members: Any) -> str:
    return forged({"alg": "RS256", "kid": "rsa", **members}, claims(issuer), RSA)


def signed_as(name: str, raw: bytes, alg: str = "ES256", kid: str = "p256") -> None:
    """A token with the signature *raw*."""
    case(
        name,
        "signature",
        lambda issuer: (
            f"{packed({'alg': alg, 'kid': kid})}.{packed(claims(issuer))}.{encoded(raw)}"
        ),
    )


def _confusion() -> None:
    """RFC 8725, 2.1: a public key as the secret of an HMAC, and no signature at all."""
    public = RSA.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    elliptic = P256.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pkcs1 = public.public_bytes(Encoding.PEM, PublicFormat.PKCS1)
    jwk = json.dumps(jwk_of(RSA, kid="rsa")).encode()
    modulus = public.public_numbers().n.to_bytes(256)
    secrets = {
        "pem": pem,
        "stripped pem": pem.strip(),
        "crlf pem": pem.replace(b"\n", b"\r\n"),
        "pkcs1 pem": pkcs1,
        "der": der,
        "jwk": jwk,
        "modulus": modulus,
        "elliptic pem": elliptic,
        "empty": b"",
        "published oct": SECRET,
        "kid": b"rsa",
    }
    for name, secret in secrets.items():
        header(f"HS256 with {name} as secret", "wrong alg", secret, "HS256", alg="HS256", kid="rsa")
    for bits in ("384", "512"):
        alg = f"HS{bits}"
        header(f"{alg} with pem as secret", "wrong alg", pem, alg, alg=alg, kid="rsa")
    header("HS256 with kid of oct", "wrong alg", SECRET, "HS256", alg="HS256", kid="secret")
    header("HS256 without kid", "wrong alg", pem, "HS256", alg="HS256")
    for alg in ("none", "None", "NONE", "nOnE", "", " none", "none\x00"):
        header(f"alg {alg!r}", "wrong alg", alg=alg, kid="rsa")
        case(
            f"alg {alg!r} without signature",
            "not a signed JWT",
            lambda issuer, alg=alg: forged({"alg": alg}, claims(issuer), None),  # type: ignore[misc]
        )
    for alg in ("rs256", "RS256 ", "RS1", "HS1", "RSA-OAEP", "dir", "ES256K", "RS256\n", "Ed448"):
        header(f"alg {alg!r} that is unknown", "wrong alg", alg=alg, kid="rsa")
    header("alg missing", "alg", kid="rsa")
    for value in (None, 7, ["RS256"], {"alg": "RS256"}, True):
        header(f"alg {value!r}", "alg", alg=value, kid="rsa")


def _schemes() -> None:
    """The signature is of another scheme, curve or key than those in the header."""
    bad = "signature"
    header("RS256 labelled PS256", bad, scheme="RS256", alg="PS256", kid="rsa")
    header("PS256 labelled RS256", bad, scheme="PS256", alg="RS256", kid="rsa")
    header("RS256 with a key for PS256", bad, PSS, "RS256", alg="RS256", kid="pss")
    header("PS512 with a key for PS256", bad, PSS, "PS512", alg="PS512", kid="pss")
    header("RS512 labelled RS256", bad, scheme="RS512", alg="RS256", kid="rsa")
    header("RS256 labelled RS512", bad, scheme="RS256", alg="RS512", kid="rsa")
    header("PS384 labelled PS256", bad, PSS, "PS384", alg="PS256", kid="pss")
    header("ES256 of P-384", bad, P384, "ES256", alg="ES256", kid="p384")
    header("ES384 of P-256", bad, P256, "ES384", alg="ES384", kid="p256")
    header("ES512 of P-256", bad, P256, "ES512", alg="ES512", kid="p256")
    header("ES256 of secp256k1", "unknown key", K256, "ES256", alg="ES256", kid="k256")
    header("ES256K of secp256k1", "wrong alg", K256, "ES256", alg="ES256K", kid="k256")
    header("EdDSA of P-256", bad, P256, "ES256", alg="EdDSA", kid="p256")
    header("ES256 of Ed25519", bad, ED, "EdDSA", alg="ES256", kid="ed")
    header("ES256 with kid of RSA", bad, P256, "ES256", alg="ES256", kid="rsa")
    header("RS256 with kid of P-256", bad, RSA, "RS256", alg="RS256", kid="p256")
    header("RS256 with kid of Ed25519", bad, RSA, "RS256", alg="RS256", kid="ed")
    header("RS256 of another key", bad, STRANGER, "RS256", alg="RS256", kid="rsa")
    header("PS256 of another key", bad, STRANGER, "PS256", alg="PS256", kid="pss")
    header("ES256 of another key", bad, EC_STRANGER, "ES256", alg="ES256", kid="p256")
    header("RS256 of another key without kid", bad, STRANGER, "RS256", alg="RS256")
    header("ES256 of another key without kid", bad, EC_STRANGER, "ES256", alg="ES256")
    header("RSA key of 1024 bits", "unknown key", WEAK, "RS256", alg="RS256", kid="weak")
    header("RSA key of 1024 bits without kid", bad, WEAK, "RS256", alg="RS256")
    header("key for encryption", "unknown key", P256, "ES256", alg="ES256", kid="encryption")
    header("key for derivation", "unknown key", P256, "ES256", alg="ES256", kid="operations")


def _signatures() -> None:
    """CVE-2022-21449, and other signatures that no key has made."""
    zero, one, order = bytes(32), (1).to_bytes(32), N256.to_bytes(32)
    signed_as("ES256 of zeros", zero + zero)
    signed_as("ES256 with r zero", zero + one)
    signed_as("ES256 with s zero", one + zero)
    signed_as("ES256 with r and s the order", order + order)
    signed_as("ES256 of ones", b"\xff" * 64)
    signed_as("ES256 of 63 bytes", b"\x01" * 63)
    signed_as("ES256 of 65 bytes", b"\x01" * 65)
    signed_as("ES256 of 96 bytes", b"\x01" * 96)
    signed_as("ES256 of one byte", b"\x00")
    signed_as("ES384 of zeros", bytes(96), "ES384", "p384")
    signed_as("EdDSA of zeros", bytes(64), "EdDSA", "ed")
    signed_as("EdDSA of ones", b"\xff" * 64, "EdDSA", "ed")
    signed_as("EdDSA of 63 bytes", b"\x01" * 63, "EdDSA", "ed")
    signed_as("RS256 of zeros", bytes(256), "RS256", "rsa")
    signed_as("RS256 of one", (1).to_bytes(256), "RS256", "rsa")
    signed_as("RS256 of ones", b"\xff" * 256, "RS256", "rsa")
    signed_as("RS256 of 512 bytes", b"\x01" * 512, "RS256", "rsa")
    signed_as("PS256 of zeros", bytes(256), "PS256", "pss")

    def der(issuer: Published) -> str:
        message = f"{packed({'alg': 'ES256', 'kid': 'p256'})}.{packed(claims(issuer))}"
        return f"{message}.{encoded(P256.sign(message.encode(), ec.ECDSA(SHA256())))}"

    def altered(issuer: Published) -> str:
        head, _, end = good(issuer).split(".")
        return f"{head}.{packed(claims(issuer, sub='root'))}.{end}"

    def swapped(issuer: Published) -> str:
        other = forged({"alg": "RS256", "kid": "rsa"}, claims(issuer, sub="bob"), RSA)
        return ".".join([*good(issuer).split(".")[:2], other.split(".")[2]])

    def unlabelled(issuer: Published) -> str:
        return ".".join([packed({"alg": "RS256"}), *good(issuer).split(".")[1:]])

    def flipped(issuer: Published) -> str:
        head, body, end = good(issuer).split(".")
        return f"{head}.{body}.{'B' if end[0] == 'A' else 'A'}{end[1:]}"

    case("ES256 in DER", "signature", der)
    case("payload altered", "signature", altered)
    case("signature of another token", "signature", swapped)
    case("header altered", "signature", unlabelled)
    case("bit of the signature flipped", "signature", flipped)
    case("signature cut", "signature", lambda issuer: good(issuer)[:-8])
    case("signature doubled", "signature", lambda issuer: good(issuer) + good(issuer)[-342:])


def _headers() -> None:
    """Keys that a token brings along, references to others, and tokens for other purposes."""
    own = jwk_of(STRANGER, kid="mine")
    bad, unknown = "signature", "unknown key"
    rs: dict[str, Any] = {"key": STRANGER, "alg": "RS256"}
    header("embedded jwk", bad, **rs, kid="rsa", jwk=own)
    header("embedded jwk without kid", bad, **rs, jwk=own)
    header("embedded jwk with its kid", unknown, **rs, kid="mine", jwk=own)
    header("embedded secret", "wrong alg", SECRET, "HS256", alg="HS256", jwk={"kty": "oct"})
    header("jku", bad, **rs, kid="rsa", jku="https://attacker.test/keys")
    header("jku with its kid", unknown, **rs, kid="mine", jku="https://attacker.test/keys")
    header("jku to a file", bad, **rs, kid="rsa", jku="file:///etc/passwd")
    header("x5u", bad, **rs, kid="rsa", x5u="https://attacker.test/chain")
    header("x5c", bad, **rs, kid="rsa", x5c=["MIIB"])
    header("x5t", bad, **rs, kid="rsa", x5t="AAAA")
    header("jwk that is text", bad, kid="rsa", alg="RS256", jwk="own")
    kids = {
        "path": "../../../../dev/null",
        "query": "rsa' OR '1'='1",
        "command": "rsa;id|id",
        "url": "https://attacker.test/key",
        "nul": "rsa\x00",
        "case": "RSA",
        "space": " rsa",
        "line": "rsa\r\nX: y",
        "empty": "",
        "long": "k" * 2000,
        "template": "{{7*7}}${jndi:ldap://a}",
        "unknown": "unknown",
    }
    for name, kid in kids.items():
        header(f"kid {name}", unknown, STRANGER, alg="RS256", kid=kid)
    for value in (7, None, ["rsa"], {"kid": "rsa"}, True):
        header(f"kid {value!r}", "kid", alg="RS256", kid=value)
    for typ in (
        *("dpop+jwt", "DPoP+JWT", "application/dpop+jwt", "oauth-id-jag+jwt", "logout+jwt"),
        *("secevent+jwt", "token-introspection+jwt", "client-authentication+jwt", "JWE", "JOSE"),
        *("at+jwt ", "", "jwt\x00", "application/", "x/at+jwt", "entity-statement+jwt"),
    ):
        header(f"typ {typ!r}", "wrong typ", alg="RS256", kid="rsa", typ=typ)
    for value in (7, ["JWT"], {"typ": "JWT"}, False):
        header(f"typ {value!r}", "wrong typ", alg="RS256", kid="rsa", typ=value)
    header("typ null", "no typ", alg="RS256", kid="rsa", typ=None)
    for critical in (["exp"], [], "exp", ["unknown"], None, [7], {"exp": 1}, ["alg"], ["b64"]):
        header(
            f"crit {critical!r}", "crit", alg="RS256", kid="rsa", crit=critical, exp=1, unknown=1
        )
    header("b64 false", "b64", alg="RS256", kid="rsa", b64=False)
    header("b64 false and critical", "crit", alg="RS256", kid="rsa", b64=False, crit=["b64"])
    header("b64 text", "b64", alg="RS256", kid="rsa", b64="false")


def _forms() -> None:
    """Texts that are not a signed token, or more than one."""
    form = "not a signed JWT"
    for name, token in {
        "one part": "abcdefghijkl",
        "two parts": "abcdefgh.abcdefgh",
        "four parts": "abcdefgh.abcdefgh.abcdefgh.abcdefgh",
        "encrypted": "eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIn0..abcdefgh.abcdefgh.abcdefgh",
        "many dots": "a" + "." * 4000 + "a",
        "dots": "...",
        "empty header": ".abcdefgh.abcdefgh",
        "empty payload": "eyJhbGciOiJSUzI1NiJ9..abcdefgh",
        "opaque": "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    }.items():
        case(name, form, lambda _, token=token: token)  # type: ignore[misc]
    case("trailing dot", form, lambda issuer: good(issuer) + ".")
    case("leading dot", form, lambda issuer: "." + good(issuer))
    case("padding", form, lambda issuer: good(issuer) + "==")
    case("standard base64", form, lambda issuer: good(issuer)[:-4] + "+/+/")
    case("tilde", form, lambda issuer: good(issuer) + "~")
    case("signature removed", form, lambda issuer: good(issuer).rpartition(".")[0] + ".")
    case("header of one character", form, lambda issuer: "e." + good(issuer).partition(".")[2])
    case("header twice", form, lambda issuer: good(issuer).partition(".")[0] + "." + good(issuer))
    case("two tokens", form, lambda issuer: good(issuer) + "." + good(issuer))
    heads: dict[str, bytes] = {
        "not JSON": b"RS256",
        "array": b'["RS256"]',
        "number": b"7",
        "null": b"null",
        "cut": b'{"alg":"RS256"',
        "not UTF-8": b'{"alg":"RS256","x":"\xff"}',
        "UTF-16": '{"alg":"RS256"}'.encode("utf-16"),
        "mark": b'\xef\xbb\xbf{"alg":"RS256"}',
        "repeated alg": b'{"alg":"none","alg":"RS256"}',
        "repeated kid": b'{"alg":"RS256","kid":"mine","kid":"rsa"}',
        "escaped repetition": b'{"alg":"RS256","\\u0061lg":"none"}',
        "deep": b'{"alg":"RS256","x":' + b"[" * 2000 + b"]" * 2000 + b"}",
        "NaN": b'{"alg":"RS256","x":NaN}',
        "two objects": b'{"alg":"RS256"}{"alg":"RS256"}',
        "single quotes": b"{'alg':'RS256'}",
    }
    for name, head in heads.items():
        case(
            f"header {name}",
            "header of the token is not a JSON object",
            lambda issuer, head=head: forged(head, claims(issuer), RSA, scheme="RS256"),  # type: ignore[misc]
        )


def _payloads() -> None:
    """A good signature of a payload without claims, or with two readings."""
    form = "payload of the token is not a JSON object"
    begin = f'{{"iss":"https://a","aud":"{RESOURCE}","sub":"ada"'
    for name, body in {
        "array": b"[]",
        "text": b'"ada"',
        "null": b"null",
        "cut": b'{"iss":',
        "not JSON": b"iss=a&sub=ada",
        "not UTF-8": b'{"sub":"\xc3\x28"}',
        "UTF-16": '{"sub":"ada"}'.encode("utf-16"),
        "mark": b'\xef\xbb\xbf{"sub":"ada"}',
        "surrogate": b'{"sub":"\xed\xa0\x80"}',
        "trailing text": b"{}x",
        "comment": b'{"sub":"ada"/*,"exp":1*/}',
        "deep": b'{"x":' + b"[" * 2500 + b"]" * 2500 + b"}",
        "NaN": begin.encode() + b',"exp":NaN}',
        "infinity": begin.encode() + b',"exp":Infinity}',
        "digits": begin.encode() + b',"exp":' + b"9" * 5000 + b"}",
        "repeated exp": begin.encode() + b',"exp":9999999999,"exp":1}',
        "repeated sub": begin.encode() + b',"sub":"root"}',
        "repeated aud": begin.encode() + b',"aud":"https://other.test"}',
        "repeated iss": begin.encode() + b',"iss":"https://b"}',
        "escaped repetition": begin.encode() + b',"\\u0073ub":"root"}',
        "nested repetition": begin.encode() + b',"act":{"sub":"a","sub":"b"}}',
        "compressed": zlib.compress(begin.encode() + b"}"),
    }.items():
        text(f"payload {name}", form, body)
    case(
        "nested token",
        form,
        lambda issuer: forged({"alg": "RS256", "kid": "rsa", "cty": "JWT"}, good(issuer), RSA),
    )


def _issuers() -> None:
    """RFC 9207, 2.4, and RFC 8414, 3.3: compared as strings."""
    for name, change in {
        "with a slash": lambda url: url + "/",
        "in upper case": str.upper,
        "with another port": lambda url: url + "0",
        "over https": lambda url: url.replace("http:", "https:"),
        "with a path": lambda url: url + "/tenant",
        "with a query": lambda url: url + "?x",
        "with a fragment": lambda url: url + "#x",
        "with a space": lambda url: url + " ",
        "with a user": lambda url: url.replace("//", "//a@"),
        "by name": lambda url: url.replace("127.0.0.1", "localhost"),
        "as prefix": lambda url: url + ".attacker.test",
        "as suffix": lambda url: "https://attacker.test/" + url,
        "as list": lambda url: [url],
        "as object": lambda url: {"iss": url},
        "cut": lambda url: url[:-1],
        "another": lambda url: "https://attacker.test",
        "empty": lambda url: "",
        "null": lambda url: None,
        "a number": lambda url: 7,
        "percent-encoded": lambda url: url.replace(":", "%3A"),
        "missing": lambda url: MISSING,
    }.items():
        case(
            f"issuer {name}",
            "iss",
            lambda issuer, change=change: forged(  # type: ignore[misc]
                {"alg": "RS256", "kid": "rsa"}, claims(issuer, iss=change(issuer.url)), RSA
            ),
        )


def _audiences() -> None:
    """2026-07-28, authorization, "Token Handling": tokens for others are refused."""
    origin = RESOURCE.removesuffix("/mcp")
    for name, value in {
        "another": "https://other.example.com/mcp",
        "origin": origin,
        "origin with a slash": origin + "/",
        "with a slash": RESOURCE + "/",
        "below": RESOURCE + "/admin",
        "prefix": RESOURCE[:-1],
        "suffix": RESOURCE + "2",
        "host as prefix": origin + ".attacker.test/mcp",
        "upper case": RESOURCE.upper(),
        "port": origin + ":443/mcp",
        "http": RESOURCE.replace("https", "http"),
        "query": RESOURCE + "?x=1",
        "fragment": RESOURCE + "#x",
        "space": RESOURCE + " https://other.example.com",
        "wildcard": "*",
        "host": "mcp.example.com",
        "list of others": ["https://a.test", "https://b.test"],
        "empty list": [],
        "empty": "",
        "nested list": [[RESOURCE]],
        "list with a number": [RESOURCE, 7],
        "list with null": [RESOURCE, None],
        "object": {RESOURCE: True},
        "number": 7,
        "true": True,
        "null": None,
        "missing": MISSING,
        "client": "web",
    }.items():
        payload(f"audience {name}", "aud", aud=value)


def _times() -> None:
    """RFC 7519, 4.1.4 to 4.1.6, with 30 s of leeway."""
    for name, value in {
        "past": NOW - 3600,
        "zero": 0,
        "just past": NOW - 31,
        "negative": -1,
        "text": str(NOW + 600),
        "date": "2099-01-01T00:00:00Z",
        "true": True,
        "list": [NOW + 600],
        "object": {"at": NOW + 600},
        "overflow": 1e308,
        "milliseconds": (NOW + 600) * 1000,
        "huge": 10**40,
        "null": None,
        "missing": MISSING,
        "empty": "",
    }.items():
        payload(f"exp {name}", "exp", exp=value)
    text("exp infinite", "exp", b'{"iss":"https://a","aud":"b","exp":1e999}')
    for name, value in {
        "far": NOW + 10**6,
        "hours": NOW + 7200,  # a run of all tests may take more than an hour
        "text": "0",
        "true": True,
        "list": [0],
        "negative": -1,
        "huge": 10**40,
    }.items():
        payload(f"nbf {name}", "nbf", nbf=value)
        payload(f"iat {name}", "iat", iat=value)


def _others() -> None:
    """Claims that decide on the identity and the rights of the client."""
    payload("subject missing", "neither a subject nor a client", sub=MISSING)
    payload("subject null", "neither a subject nor a client", sub=None)
    payload("subject empty", "neither a subject nor a client", sub="")
    for name, value in {"number": 0, "list": ["ada"], "object": {"a": 1}, "true": True}.items():
        payload(f"subject {name}", "sub", sub=value)
        payload(f"client {name}", "client_id", client_id=value)
        payload(f"azp {name}", "azp", azp=value)
    for name, value in {"number": 7, "object": {"a": 1}, "mixed": ["a", 7], "true": True}.items():
        payload(f"scope {name}", "scope", scope=value)
        payload(f"scp {name}", "scp", scp=value)
    payload("subject half of a pair", "half of a surrogate pair", sub="ada\ud800")
    payload("client half of a pair", "half of a surrogate pair", client_id="\udc00app")
    payload("scope half of a pair", "half of a surrogate pair", scope="read \ud800")
    payload("bound to a certificate", "cnf", cnf={"x5t#S256": "AAAA"})
    payload("bound to key and certificate", "cnf", cnf={"jkt": "A", "x5t#S256": "A"})
    payload("bound to nothing", "cnf", cnf={})
    payload("bound to text", "cnf", cnf="AAAA")


for group in (
    *(_confusion, _schemes, _signatures, _headers, _forms, _payloads),
    *(_issuers, _audiences, _times, _others),
):
    group()


async def sent(
    endpoint: Endpoint, *headers: tuple[bytes, bytes], query: str = ""
) -> httpx.Response:
    """Send a call to *endpoint* with *headers* as they are."""
    plain = call("whoami")
    raw = [(name.encode(), value.encode()) for name, value in plain["headers"].items()]
    transport = httpx.ASGITransport(endpoint)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.post(f"/mcp{query}", content=plain["content"], headers=[*raw, *headers])


def shows_a_part(where: str, token: str) -> list[str]:
    """Return the parts of *token* that occur in *where*: 12 characters of payload and signature."""
    parts = [part for part in token.split(".")[1:] if len(part) >= 12]
    pieces = [part[at : at + 12] for part in parts for at in range(0, len(part) - 11, 6)]
    return [piece for piece in pieces if piece in where]


def test_there_are_many_cases() -> None:
    """The table is filled when the module is imported."""
    assert len(CASES) > 250


async def test_good_token_is_accepted(issuer: Published, endpoint: Endpoint) -> None:
    """Or else the refusals below mean nothing."""
    for key, alg, kid in (
        *((RSA, "RS256", "rsa"), (RSA, "PS512", "rsa"), (PSS, "PS256", "pss")),
        *((P256, "ES256", "p256"), (P384, "ES384", "p384"), (ED, "EdDSA", "ed")),
        *((RSA, "RS256", None), (P256, "ES256", None)),
    ):
        members = {"alg": alg, "typ": "at+jwt", **({"kid": kid} if kid else {})}
        token = forged(members, claims(issuer), key)
        response = await sent(endpoint, (b"authorization", f"Bearer {token}".encode()))
        assert response.status_code == 200, (alg, kid, response.text)
        assert f"{issuer.url} sub ada" in response.text


@pytest.mark.parametrize("name", CASES)
async def test_hostile_token_is_refused(
    name: str, issuer: Published, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP 401 with a challenge; the log names the fault, and no part of the token is shown."""
    caplog.set_level(logging.DEBUG)
    token = CASES[name].make(issuer)
    issuer.requests.clear()

    response = await sent(endpoint, (b"authorization", f"Bearer {token}".encode()))

    assert response.status_code == 401
    challenge = response.headers["www-authenticate"]
    assert challenge.startswith("Bearer ")
    assert 'error="invalid_token"' in challenge
    assert "resource_metadata=" in challenge
    assert response.json()["error"] == "invalid_token"
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert CASES[name].logged in warnings[0]
    shown = caplog.text + response.text + repr(response.headers)
    assert shows_a_part(shown, token) == []
    # Nothing but metadata and keys is fetched, whatever the token names.
    assert set(issuer.requests) <= {"/.well-known/oauth-authorization-server", "/keys"}


@pytest.mark.parametrize("name", [*CASES][::9])
async def test_hostile_token_is_refused_again(
    name: str, issuer: Published, endpoint: Endpoint
) -> None:
    """The second request with it is answered from the verdicts, and not in another way."""
    authorization = (b"authorization", f"Bearer {CASES[name].make(issuer)}".encode())

    first, second = await sent(endpoint, authorization), await sent(endpoint, authorization)

    assert (first.status_code, first.content) == (second.status_code, second.content)


@pytest.mark.parametrize(
    ("values", "query", "status", "error"),
    [
        ([b"bearer TOKEN"], "", 200, None),
        ([b"BEARER  TOKEN "], "", 200, None),
        ([b"Bearer TOKEN", b"Bearer TOKEN"], "", 400, "invalid_request"),
        ([b"Bearer TOKEN", b"Basic YTpi"], "", 400, "invalid_request"),
        ([b"Bearer TOKEN", b""], "", 400, "invalid_request"),
        ([], "?access_token=TOKEN", 400, "invalid_request"),
        ([b"Bearer TOKEN"], "?access_token=TOKEN", 400, "invalid_request"),
        ([b"Bearer TOKEN"], "?a=b&access%5Ftoken=x", 400, "invalid_request"),
        ([b"Bearer"], "", 400, "invalid_request"),
        ([b"Bearer "], "", 400, "invalid_request"),
        ([b"Bearer TOKEN TOKEN"], "", 400, "invalid_request"),
        ([b"Bearer TOKEN,TOKEN"], "", 400, "invalid_request"),
        ([b"Bearer TOKEN, Basic YTpi"], "", 400, "invalid_request"),
        ([b'Bearer "TOKEN"'], "", 400, "invalid_request"),
        ([b"Bearer token=TOKEN"], "", 400, "invalid_request"),
        ([b"Bearer TOKEN\xff\xfe"], "", 400, "invalid_request"),
        ([b"Bearer TOKEN\x00"], "", 400, "invalid_request"),
        ([b"Bearer Bearer TOKEN"], "", 400, "invalid_request"),
        ([b"Bearer " + b"a" * 8193], "", 431, None),
        ([b"TOKEN"], "", 401, "unauthorized"),
        ([b"Basic TOKEN"], "", 401, "unauthorized"),
        ([b"Token TOKEN"], "", 401, "unauthorized"),
        ([b"BearerTOKEN"], "", 401, "unauthorized"),
        ([b"Bearer\tTOKEN"], "", 401, "unauthorized"),
        ([b"Negotiate TOKEN"], "", 401, "unauthorized"),
        ([b""], "", 401, "unauthorized"),
        ([], "", 401, "unauthorized"),
        ([], "?token=TOKEN", 401, "unauthorized"),
    ],
)
async def test_token_is_accepted_in_one_place(
    values: list[bytes],
    query: str,
    status: int,
    error: str | None,
    issuer: Published,
    endpoint: Endpoint,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """RFC 6750, 2.1 and 3.1: in one header, once. A good token elsewhere has no effect."""
    caplog.set_level(logging.DEBUG, "genmcp")
    token = good(issuer)
    headers = [(b"authorization", each.replace(b"TOKEN", token.encode())) for each in values]
    # Its verdict is kept, so that there is a fast path for it.
    await sent(endpoint, (b"authorization", b"Bearer " + token.encode()))

    response = await sent(endpoint, *headers, query=query.replace("TOKEN", token))

    assert response.status_code == status
    assert error is None or response.json()["error"] == error
    if status == 401:
        assert "error=" not in response.headers["www-authenticate"]
    assert shows_a_part(caplog.text + response.text + repr(response.headers), token) == []
