"""`genmcp login`, `logout` and `auth`, and calls with `--login` and `--token`."""

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.cli.guarded import Guarded, guarded
from tests.cli.test_command_line import AWAY, REMOTE

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"^\$ genmcp (\w+) https://mcp\.\S+\n((?:(?!\$ |```).*\n)*)", re.MULTILINE)
SERVE = Callable[..., Guarded]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SERVE]:
    """Serve a guarded server until the end of the test; a browser follows each login."""
    browser = Path(__file__).with_name("browsing.py")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("BROWSER", f"{sys.executable} {browser} %s")
    monkeypatch.setattr("webbrowser._tryorder", None)  # read $BROWSER again
    for name in ("GENMCP_TOKEN", "GENMCP_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        def start(**options: Any) -> Guarded:
            context = guarded(tmp_path / "data" / "genmcp", **options)
            return runner.run(stack.enter_async_context(context))

        yield start
        runner.run(stack.aclose())


@pytest.fixture
def server(serve: SERVE) -> Guarded:
    return serve()


def test_login_is_used_by_calls_until_the_logout(server: Guarded, run: Run) -> None:
    """A browser is sent to the authorization server once; the logout revokes both tokens."""
    status, said, noise = run("login", server.url)
    assert (status, said.splitlines()[0]) == (0, f"logged in at {server.issuer.url}")
    assert re.search(r"^  access token +expires in (59m|1h)$", said, re.MULTILINE)
    assert re.search(r"^  scopes +parts:read$", said, re.MULTILINE)
    assert "open this URL in a browser" in noise
    secrets = server.secrets

    assert run("call", server.url, "whoami", "--login")[:2] == (0, "mia\n")
    assert run("tools", server.url, "--login")[0] == 0
    status, explained, _ = run("auth", server.url)
    assert status == 0
    assert "ok  stored" in explained
    assert len(server.issuer.received("authorize")) == 1

    status, said, noise = run("logout", server.url)
    assert (status, said, noise) == (0, f"logged out of {server.issuer.url}\n", "")
    revoked = [each.params["token"] for each in server.issuer.received("revoke")]
    assert revoked == secrets[::-1]
    assert server.records == []
    assert not any(secret in text for secret in secrets for text in [said, explained])


def test_call_without_a_login_names_the_command(server: Guarded, run: Run) -> None:
    """Without a terminal nobody can be asked: a script fails at once."""
    status, said, noise = run("call", server.url, "whoami")
    assert (status, said) == (1, "")
    assert "HTTP 401" in noise
    assert f"genmcp login {server.url}" in noise

    status, said, noise = run("call", server.url, "whoami", "--login")
    assert (status, said) == (1, "")
    assert f"no usable login is stored: run `genmcp login {server.url}`" in noise
    assert server.issuer.received("register") == []


@pytest.mark.parametrize(
    "words",
    [
        *(("tools",), ("resources",), ("prompts",), ("discover",), ("lint",)),
        *(("read", "a://b"), ("prompt", "greet"), ("complete", "greet", "city")),
    ],
    ids=" ".join,
)
def test_each_command_names_the_login_that_it_needs(
    words: tuple[str, ...], server: Guarded, run: Run
) -> None:
    """In one line, with status 1."""
    command, *rest = words
    status, said, noise = run(command, server.url, *rest)

    assert (status, said, noise.count("\n")) == (1, "", 1)
    assert f"genmcp login {server.url}" in noise


def test_refused_token_is_named_by_its_variable(
    server: Guarded, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has given credentials, and needs the reason."""
    monkeypatch.setenv("GENMCP_TOKEN", "nonsense")
    noise = run("call", server.url, "whoami", "--token")[2]

    assert "(the server refuses the token in GENMCP_TOKEN; its log has the reason)" in noise
    assert "nonsense" not in noise


SCOPED = """
from genmcp import Suite, tool

@tool(scopes=["parts:write"])
async def order() -> None: ...

suite = Suite(name="parts", version="1", tools=[order])
"""


def test_server_of_this_process_cannot_be_logged_in_at(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no URL that a login could be for."""
    (tmp_path / "scoped_parts.py").write_text(SCOPED)
    monkeypatch.chdir(tmp_path)
    noise = run("call", "scoped_parts:suite", "order")[2]

    assert "serve this one, and call its URL" in noise
    assert "genmcp login" not in noise


def test_expired_token_is_renewed(server: Guarded, run: Run) -> None:
    """A day later the same command works without a login."""
    run("login", server.url)
    server.change(expires=1.0)

    assert run("call", server.url, "whoami", "--login")[:2] == (0, "mia\n")
    assert [each.params["grant_type"] for each in server.issuer.received("token")] == [
        "authorization_code",
        "refresh_token",
    ]
    assert server.record["renewals"] == 1


def test_token_is_taken_from_the_environment(
    server: Guarded, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither an argument, which other users of the machine see, nor sent unasked."""
    token = server.issuer.token("ann", ["parts:read"], audience=server.url)
    monkeypatch.setenv("GENMCP_TOKEN", token)
    status, _, noise = run("call", server.url, "whoami")
    assert status == 1
    assert "--token sends the token in GENMCP_TOKEN, which is not sent without it" in noise
    assert run("call", server.url, "whoami", "--token")[:2] == (0, "ann\n")

    status, _, noise = run("call", server.url, "order", "--token")
    assert status == 1
    assert "parts:write" in noise
    assert "genmcp login" not in noise  # it would not change this token

    monkeypatch.setenv("GENMCP_TOKEN", f"{token[:-4]}AAAA")
    status, _, noise = run("call", server.url, "whoami", "--token")
    assert status == 1
    assert token[:-4] not in noise


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("tools", "URL", "--token"), "the variable GENMCP_TOKEN is not set"),
        (("tools", "URL", "--login", "--token"), "--login cannot be combined with --token"),
        (("tools", "tests.cli.shop:suite", "--login"), "--login applies only to a URL"),
        (("tools", "URL", "--login", "--header", "authorization: Bearer x"), "Authorization"),
        (("login", "tests.cli.shop:suite"), "is not a URL: only servers over HTTP"),
        (("login", "http://"), "is not a URL"),
        (("auth", "http://[::1"), "is not a URL"),
        (("logout", "URL", "--scope", "a"), "--scope"),
        (("login", "URL", "--port", "70000"), "port"),
        (("login", "URL", "--issuer", "login.example.com"), "issuer"),
    ],
)
def test_wrong_options_are_usage_errors(
    arguments: tuple[str, ...], text: str, serve: SERVE, run: Run
) -> None:
    """Before any request is sent."""
    url = "http://127.0.0.1:9/mcp"
    status, said, noise = run(*(url if each == "URL" else each for each in arguments))

    assert (status, said) == (2, "")
    assert text in noise


def test_public_storage_is_refused(server: Guarded, run: Run) -> None:
    """The error has the command that mends it."""
    run("login", server.url)
    (record,) = server.records
    record.chmod(0o644)

    for command in (("login", server.url), ("tools", server.url, "--login")):
        status, _, noise = run(*command)
        assert status == 2
        assert f"chmod 600 '{record}'" in noise


def test_logins_can_be_stored_elsewhere(
    server: Guarded, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the data folder that the environment names."""
    assert run("login", server.url)[0] == 0
    with monkeypatch.context() as other:
        other.setenv("XDG_DATA_HOME", str(tmp_path / "other"))
        assert run("call", server.url, "whoami", "--login")[0] == 1
        assert run("logout", server.url)[1] == f"there is no login for {server.url}\n"

    assert run("call", server.url, "whoami", "--login")[:2] == (0, "mia\n")


def test_scopes_can_be_chosen(server: Guarded, run: Run) -> None:
    """One option with several, or several options; a second login adds scopes."""
    run("login", server.url, "--scope", "parts:read parts:write", "--scope", "parts:admin")
    assert set(server.record["scopes"]) == {"parts:read", "parts:write", "parts:admin"}
    assert run("call", server.url, "order", "--login")[:2] == (0, "ordered\n")


def test_missing_scope_needs_another_login(server: Guarded, run: Run) -> None:
    """The token of the first login lacks the scope of a tool; a script cannot ask for it."""
    run("login", server.url)
    status, _, noise = run("call", server.url, "order", "--login")
    assert status == 1
    assert f"genmcp login {server.url} --scope 'parts:read parts:write'" in noise

    run("login", server.url, "--scope", "parts:write")
    assert run("call", server.url, "order", "--login")[:2] == (0, "ordered\n")


def test_client_of_the_operator_is_used_again(
    server: Guarded, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where clients cannot register: the id is stored, and the secret stays in the environment."""
    server.issuer.faults.metadata = {"registration_endpoint": None}
    server.issuer.add_client(
        "parts-cli", secret="of the operator", redirect_uris=["http://127.0.0.1/callback"]
    )
    status, _, noise = run("login", server.url)
    assert status == 1
    assert "--client-id" in noise
    assert run("auth", server.url)[0] == 1

    monkeypatch.setenv("GENMCP_CLIENT_SECRET", "of the operator")
    status, _, noise = run("login", server.url, "--client-id", "parts-cli")
    assert (status, "--issuer" in noise) == (2, True)
    chosen = ("--client-id", "parts-cli", "--issuer", server.issuer.url)
    assert run("login", server.url, *chosen)[0] == 0
    server.change(expires=1.0)
    assert run("call", server.url, "whoami", "--login")[:2] == (0, "mia\n")
    assert "of the operator" not in server.records[0].read_text()
    assert run("auth", server.url)[0] == 0
    assert run("logout", server.url)[0] == 0


def test_denied_login_is_an_error(server: Guarded, run: Run) -> None:
    """The user has pressed "deny"."""
    server.issuer.consent = "deny"
    status, said, noise = run("login", server.url)

    assert (status, said) == (1, "")
    assert "access_denied" in noise


def test_failed_revocation_is_reported(server: Guarded, run: Run) -> None:
    """The record is removed all the same, and the status says that a token may live on."""
    run("login", server.url)
    secrets = server.secrets
    server.issuer.faults.fail("revoke", 503)
    status, said, _ = run("logout", server.url)

    assert status == 1
    assert "the refresh token was not revoked: the revocation endpoint answered HTTP 503" in said
    assert server.records == []
    assert not any(secret in said for secret in secrets)


def test_open_server_beside_a_guarded_one(serve: SERVE, run: Run) -> None:
    """The metadata at the root of the host is that of the other server."""
    server = serve()
    open_url = server.url.replace("/mcp", "/open")

    root = httpx.get(server.url.replace("/mcp", "/.well-known/oauth-protected-resource"))
    status, said, _ = run("auth", open_url)

    assert root.json()["resource"] == server.url
    assert (status, said.splitlines()[-1]) == (0, "The server asks for no login.")


def test_server_without_a_login(serve: SERVE, run: Run) -> None:
    """Everybody may call it, so there is nothing to log in to."""
    server = serve(auth=False)

    status, said, _ = run("auth", server.url)
    assert status == 0
    assert said.splitlines() == [
        "ok  server                answers without a token",
        f"{'':26}{server.url}",
        "The server asks for no login.",
    ]
    status, _, noise = run("login", server.url)
    assert status == 1
    assert "the server asks for no login" in noise


def test_login_of_a_configuration_file_is_used(server: Guarded, run: Run, tmp_path: Path) -> None:
    """As a hub uses it; without a terminal, no login begins."""
    path = tmp_path / "servers.json"
    entry = {"url": server.url, "auth": {"type": "oauth"}}
    path.write_text(json.dumps({"mcpServers": {"parts": entry}}))
    assert f"genmcp login {server.url}" in run("call", str(path), "whoami")[2]

    run("login", server.url)
    assert run("call", str(path), "whoami")[:2] == (0, "mia\n")


@pytest.mark.parametrize("command", ["login", "auth"])
def test_closed_port_is_an_error(command: str, serve: SERVE, run: Run) -> None:
    """In one line, as with other commands."""
    status, said, noise = run(command, "http://127.0.0.1:9/mcp")

    assert (status, said) == (1, "")
    assert noise.startswith("genmcp: cannot reach http://127.0.0.1:9/mcp: connection refused")


@pytest.mark.parametrize(
    ("fault", "text", "option"),
    [
        (
            {"code_challenge_methods_supported": None},
            "does not list the PKCE method S256",
            ["--assume-pkce"],
        ),
        ({"issuer": "ISSUER/"}, "must be identical", ["--issuer", "ISSUER/"]),
    ],
)
def test_explanation_names_the_option_that_helps(
    fault: dict[str, Any], text: str, option: list[str], server: Guarded, run: Run
) -> None:
    """With the option, both the explanation and the login succeed."""
    issuer = server.issuer.url

    def filled(value: Any) -> Any:
        return value.replace("ISSUER", issuer) if isinstance(value, str) else value

    server.issuer.faults.metadata = {name: filled(value) for name, value in fault.items()}
    option = [filled(each) for each in option]
    status, said, _ = run("auth", server.url)
    last = said.splitlines()[-1]

    assert status == 1
    assert last.startswith("A client cannot log in: ")
    assert text in last
    assert option[0] in last
    assert text in run("login", server.url)[2]
    assert run("auth", server.url, *option)[0] == 0
    assert server.issuer.received("register") == []


def test_explanation_of_another_resource(serve: SERVE, run: Run) -> None:
    """A server that its clients reach by another name than it knows of."""
    server = serve(host="localhost")
    resource = server.url.replace("127.0.0.1", "localhost")
    status, said, _ = run("auth", server.url)

    assert status == 1
    assert f"--resource '{resource}' accepts it" in said.splitlines()[-1]
    assert run("auth", server.url, "--resource", resource)[0] == 0
    assert run("login", server.url, "--resource", resource)[0] == 0
    assert run("call", server.url, "whoami", "--login")[:2] == (0, "mia\n")


def test_explanation_of_an_unavailable_authorization_server(server: Guarded, run: Run) -> None:
    """Each URL that was asked is shown with its status; a login fails for the same reason."""
    server.issuer.faults.fail("metadata", 404)
    server.issuer.faults.fail("openid", 503)
    status, said, _ = run("auth", server.url)

    assert status == 1
    lines = said.splitlines()
    assert lines[-1].startswith("A client cannot log in: ")
    assert "HTTP 503" in lines[-1]
    at = [number for number, line in enumerate(lines) if line[4:].startswith("server metadata")]
    assert [lines[number][26:] for number in at] == [
        "no document (HTTP 404)",
        "it answered HTTP 503",
    ]
    assert [lines[number + 1].strip() for number in at] == [
        f"{server.issuer.url}/.well-known/oauth-authorization-server",
        f"{server.issuer.url}/.well-known/openid-configuration",
    ]
    assert "HTTP 503" in run("login", server.url)[2]


def test_explanation_describes_the_stored_login(server: Guarded, run: Run) -> None:
    """Its lifetime in a readable unit; a token that can no longer be used is marked."""
    run("login", server.url)
    for members, text in (
        ({"expires": time.time() + 300_000}, "ok  stored .*access token expires in 3d;"),
        ({"expires": time.time() + 90.5}, "ok  stored .*access token expires in 1m;"),
        ({"expires": None}, "ok  stored .*access token of an unknown lifetime;"),
        ({"expires": 1.0}, "ok  stored .*access token has expired; refresh token yes;"),
        ({"refresh_token": None}, "--  stored .*access token has expired; refresh token no;"),
        ({"access_token": None}, "--  stored .*access token none: a login is needed;"),
    ):
        server.change(**members)
        assert re.search(f"^{text}", run("auth", server.url)[1], re.MULTILINE)


def test_needed_login_is_one_line_of_each_command(server: Guarded, run: Run) -> None:
    """With status 1, nothing on standard output, and the command that logs in."""
    for words in REMOTE:
        if words[0] not in ("login", "auth"):
            typed = [server.url if each == AWAY else each for each in words]
            status, shown, noise = run(*typed)

            assert (status, shown) == (1, ""), words
            assert noise.startswith("genmcp: "), words
            assert f"`genmcp login {server.url}` and --login" in noise, words
            assert noise.count("\n") == 1, words


def test_explanation_is_that_of_the_page(server: Guarded, run: Run) -> None:
    """docs/how-to/login-command.md shows what the commands print, but for the hosts."""
    page = (ROOT / "docs" / "how-to" / "login-command.md").read_text()
    shown = dict(SHOWN.findall(page))

    def printed(command: str) -> str:
        said = run(command, server.url)[1]
        origin = server.url.removesuffix("/mcp")
        said = said.replace(origin, "https://mcp.example.com")
        said = said.replace(server.issuer.url, "https://login.example.com")
        return re.sub(r"(client +)\S+$", r"\1c-17", said, flags=re.MULTILINE)

    assert [*shown] == ["auth", "login", "logout"]
    for command, text in shown.items():
        assert printed(command) == text


class Terminal:
    """A command at a terminal of its own; standard output is a pipe."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.screen = ""
        command = [sys.executable, "-m", "genmcp", *arguments]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT
        )
        os.close(theirs)

    def read_until(self, *texts: str) -> None:
        """Read the screen until all *texts* are on it."""
        while not all(text in self.screen for text in texts):
            self.screen += os.read(self._ours, 65536).decode()

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._ours, f"{text}\n".encode())

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._ours)


def test_redirect_can_be_pasted(server: Guarded) -> None:
    """The browser is on another machine: the URL in its address bar is pasted."""
    with Terminal("login", server.url, "--no-browser") as terminal:
        terminal.read_until("Paste its URL here", "/authorize?")
        (url,) = re.findall(r"http\S+/authorize\?\S+", terminal.screen)
        redirect = httpx.get(url).headers["location"]
        assert "code" in parse_qs(urlsplit(redirect).query)
        terminal.type(redirect)
        out, _ = terminal.process.communicate(timeout=30)
    assert terminal.process.returncode == 0
    assert out.decode().startswith(f"logged in at {server.issuer.url}\n")
    assert server.secrets[0] not in terminal.screen


def test_call_at_a_terminal_logs_in(server: Guarded) -> None:
    """The first time, and again for the scope of a tool; the output is that of the call."""
    for tool, said in (("whoami", b"mia\n"), ("order", b"ordered\n")):
        with Terminal("call", server.url, tool, "--login") as terminal:
            out, _ = terminal.process.communicate(timeout=30)
        assert out == said
    assert len(server.issuer.received("authorize")) == 2
    assert set(server.record["scopes"]) == {"parts:read", "parts:write"}


def test_one_of_many_processes_renews_the_token(server: Guarded, run: Run) -> None:
    """The refresh token rotates, and a second use of it would end the login of all of them."""
    run("login", server.url)
    server.change(expires=1.0)
    command = [sys.executable, "-m", "genmcp", "call", server.url, "whoami", "--login"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=ROOT)
        for _ in range(8)
    ]
    out = [process.communicate(timeout=50)[0] for process in processes]

    assert out == [b"mia\n"] * 8
    grants = [each.params["grant_type"] for each in server.issuer.received("token")]
    assert grants == ["authorization_code", "refresh_token"]
    assert len(server.issuer.received("authorize")) == 1
    assert run("call", server.url, "whoami", "--login")[:2] == (0, "mia\n")


def test_commands_without_a_login_import_none() -> None:
    """A server that is started with `genmcp serve` has no use for it."""
    code = "import genmcp.cli.serve, genmcp.cli.remote, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
    modules = done.stdout.decode().split()

    assert not {"genmcp.client.auth.oauth", "genmcp.core.auth.flow", "keyring"} & {*modules}
