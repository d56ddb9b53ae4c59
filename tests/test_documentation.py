"""The code in the README and in the docs runs, and prints the output shown."""

import asyncio
import importlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from mcp import Client
from mcp.types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

import genmcp
from genmcp import Command, Endpoint, Hub, load_servers
from genmcp.auth.extensions.dpop import Dpop
from genmcp.server import Server
from tests.client.auth.logins import guarded_place
from tests.support.asgi import until
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "design").glob("*.md")),
]
PATIENCE = 40  # seconds for a session at a terminal
# A module; for a program also the output shown below it.
BLOCK = re.compile(
    r"^```python\n# (\w+)\.py\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
PROJECT = re.compile(r"^```toml\n# pyproject\.toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
SERVERS = re.compile(r"^```json\n(\{\s*\"mcpServers\".*?)^```$", re.MULTILINE | re.DOTALL)

ENTRY = re.compile(r"^```json\n(\{\n  \"\w+\": \{ \"url\".*?)^```$", re.MULTILINE | re.DOTALL)

TEXTS = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in PAGES}
README = TEXTS["README.md"]
# Pages whose files and commands are run by tests/test_tutorial.py, in folders of their own.
APART = {
    *(name for name in TEXTS if "/tutorial/" in name),
    "docs/how-to/from-fastmcp.md",
    "docs/how-to/from-sdk.md",
}
TOGETHER = [text for name, text in TEXTS.items() if name not in APART]
BLOCKS = [block for text in TOGETHER for block in BLOCK.findall(text)]
MODULES = {name: code for name, code, _ in BLOCKS}
ENTRIES = [entries for text in TEXTS.values() for entries in ENTRY.findall(text)]
# Parts to be copied, which tests/auth and tests/client/auth run.
RECIPES = {"both_kinds", "github_tokens", "keyring_tokens", "store_tokens"}
TESTS = sorted(name for name in MODULES if name.startswith("test_"))
GUARDED = {name for name, code in MODULES.items() if "auth=Bearer(" in code} - {*TESTS}
# Examples that start a server of their own, where a browser logs in.
LOGINS = {name for name, code in MODULES.items() if 'Client("https://mcp.example.com' in code}
PROGRAMS = {name: printed for name, code, printed in BLOCKS if printed or "asyncio.run(" in code}
PRINTED_BY_LOGINS = {name: PROGRAMS.pop(name) for name in LOGINS & PROGRAMS.keys()}
COMMANDS = [
    command
    for text in TOGETHER
    for session in SESSION.findall(text)
    for command in COMMAND.findall(session)
]
BIN = Path(sys.executable).parent


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return each code block as a module named by its first line. Blocks can import each other."""
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def applications(module: ModuleType) -> list[Any]:
    """Return the names in a block that can be served."""
    served = [
        getattr(module, name) for name in ("app", "as_route", "bare") if hasattr(module, name)
    ]
    suites = [value for value in vars(module).values() if isinstance(value, Server)]
    return served or [Endpoint(suite) for suite in suites]


def test_pages_import_only_public_modules() -> None:
    """CONTRIBUTING lists the public modules: exactly the ones that the pages import from."""
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    ((listed),) = re.findall(r"^- \*\*Public API\.\*\* (.*?)^- ", contributing, re.M | re.DOTALL)
    public = set(re.findall(r"`(genmcp[\w.]*)`", listed))
    pages = "\n".join(text for page, text in TEXTS.items() if not page.startswith("design"))
    imported = set(re.findall(r"^\s*(?:from|import) (genmcp[\w.]*)", pages, re.MULTILINE))

    def is_public(module: str) -> bool:
        return any(f"{module}.".startswith(f"{each}.") for each in public - {"genmcp"})

    assert {each for each in imported if not is_public(each)} == {"genmcp"}
    assert not [module for module in imported if "._" in module]
    assert [each for each in public if not re.search(rf"\b{re.escape(each)}\b", pages)] == []
    for module in public:
        importlib.import_module(module)


@pytest.mark.parametrize(
    "name", sorted(MODULES.keys() - PROGRAMS.keys() - LOGINS - GUARDED - RECIPES - {*TESTS})
)
async def test_documentation_is_served_to_a_client(name: str, modules: Path) -> None:
    """A real client lists the tools of each example, however it is mounted."""
    module = importlib.import_module(name)
    served = applications(module)
    assert served

    for app in served:
        async with serve(app) as url, Client(f"{url}/mcp") as client:
            tools = (await client.list_tools()).tools
            assert tools or (await client.list_resource_templates()).resource_templates


@pytest.mark.parametrize("name", sorted(GUARDED - PROGRAMS.keys()))
async def test_documentation_of_guarded_server_requires_a_token(name: str, modules: Path) -> None:
    """The 401 response names the metadata, which can be fetched."""
    module = importlib.import_module(name)
    (app,) = applications(module)
    public = module.endpoint.authenticator.bearer.resource

    async with serve(app) as url, httpx.AsyncClient() as http:
        refused = await http.post(public.replace("https://mcp.example.com", url))
        (named,) = re.findall('resource_metadata="([^"]*)"', refused.headers["www-authenticate"])
        metadata = await http.get(named.replace("https://mcp.example.com", url))

    assert refused.status_code == 401
    assert metadata.json()["resource"] == public


def printed(command: str | list[str]) -> str:
    """Run *command* and return its output, on either stream."""
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_documentation_shows_the_output_of_a_program(name: str, modules: Path) -> None:
    """The output of a program is exactly as shown below it."""
    assert printed([sys.executable, f"{name}.py"]) == PROGRAMS[name]


@pytest.mark.parametrize("name", sorted(PRINTED_BY_LOGINS))
async def test_documentation_shows_the_output_of_a_login(name: str, modules: Path) -> None:
    """A browser follows the URL that the program opens, and logs in."""
    program = modules / f"{name}.py"
    issuer, idp = OAuthServer(), OAuthServer()
    suite = importlib.import_module("search").suite
    async with guarded_place(issuer, suite=suite, verify=Dpop()) as place, idp.serve():
        for client in ("reports", "agent"):
            issuer.add_client(client, secret="known to both")
        idp.add_client("agent-at-idp", secret="known to both", known_as="agent")
        issuer.trust(idp.url, idp.jwks)
        assertion = modules / "assertion"
        assertion.write_text(idp.id_token("pod", issuer.url))
        code = MODULES[name].replace("https://mcp.example.com/mcp", place.url)
        code = code.replace("https://idp.example.com", idp.url)
        program.write_text(code.replace("https://login.example.com", issuer.url))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(program)),
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "BROWSER": f"{sys.executable} -m tests.support.browser %s",
                "PARTS_TOKEN": issuer.token("ann", ["parts:read"], audience=place.url),
                **dict.fromkeys(("REPORTS_SECRET", "AGENT_SECRET", "IDP_SECRET"), "known to both"),
                "WORKLOAD_TOKEN_FILE": str(assertion),
                "ID_TOKEN": idp.id_token("ann", "agent-at-idp"),
                "XDG_DATA_HOME": str(modules),
            },
            stdin=DEVNULL,
            stdout=PIPE,
        )
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert output.decode() == PRINTED_BY_LOGINS[name]


@pytest.mark.parametrize("text", ENTRIES)
def test_documentation_of_servers_can_be_loaded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub loads the configuration shown on the page."""
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, "secret")
    entries = json.loads(text)
    assert [each.name for each in load_servers({"mcpServers": entries})] == [*entries]


@pytest.mark.parametrize("name", TESTS)
def test_documentation_of_tests_passes(name: str, modules: Path) -> None:
    """A test module shown on a page contains tests, and they pass."""
    (settings,) = PROJECT.findall(TEXTS["docs/how-to/testing.md"])
    (modules / "pyproject.toml").write_text(settings, encoding="utf-8")
    output = printed([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{name}.py"])

    assert re.search(r"^\d+ passed in", output, re.MULTILINE), output


@pytest.mark.parametrize(("command", "output"), COMMANDS)
def test_documentation_shows_the_output_of_a_command(
    command: str, output: str, modules: Path
) -> None:
    """The output of a command is exactly as shown below it."""
    assert printed(command) == output


@pytest.mark.parametrize("page", [name for name, text in TEXTS.items() if SERVERS.search(text)])
async def test_documentation_of_a_desktop_client_starts_the_server(
    page: str, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration for a desktop client works in any working directory."""
    (text,) = SERVERS.findall(TEXTS[page])
    here = text.replace("/home/ada/greeter/.venv/bin", str(BIN)).replace(
        "/home/ada/greeter", str(modules)
    )
    monkeypatch.chdir("/")

    async with Hub() as hub:
        failed = await hub.add_all(load_servers(json.loads(here)))
        assert not failed
        assert [tool.name for tool in hub.tools()] == ["greeter/greet"]


async def test_documentation_of_a_program_over_stdio_is_a_server(modules: Path) -> None:
    """A client can start the program that serves over stdio."""
    async with genmcp.Client(Command(sys.executable, ["over_stdio.py"])) as client:
        assert [tool.name for tool in await client.tools()] == ["reorder_part"]


@pytest.mark.parametrize(
    ("name", "tool", "arguments", "expected"),
    [
        ("server", "greet", {"name": "Ada"}, "Hello, Ada."),
        ("slow", "transcribe", {"minutes": 2}, "2 minutes of silence."),
        ("search", "search", {"day": "2026-11-21"}, "at most 10 orders of 2026-11-21"),
        ("importing", "import_lines", {"text": "a\nb"}, "2 lines for nobody"),
        ("chart", "chart", {"year": 1999}, "no sales of 1999"),
        ("with_starlette", "reorder_part", {"part": "M6x20"}, '{"order":1,"count":1}'),
        (
            "with_fastapi",
            "reorder_part",
            {"part": "M7"},
            "There is no part M7. Search for it first.",
        ),
        ("outcomes", "look_up", {"ends": "well"}, "3 of well"),
        ("outcomes", "look_up", {"ends": "shown"}, "That went wrong: There is no such part."),
        ("excerpts", "excerpt", {}, "line 1, line 2"),
        ("queues", "film", {"scene": "Dawn"}, "Dawn, rendered"),
        ("queues", "sketch", {"scene": "Dawn"}, "Dawn, in outline"),
        ("indexing", "index", {"document": "Report"}, "Indexed: Report, page 1"),
        ("pages", "describe", {"page": "a page"}, "A Page: 6 characters"),
        ("mirrors", "title", {"page": "a page"}, "A Page, from here"),
        ("outcomes", "look_up", {"ends": "hidden"}, "Nothing was found: it failed unexpectedly"),
        ("outcomes", "look_up", {"ends": "late"}, "Try again later."),
        ("countdown", "countdown", {"seconds": 3}, "Lift-off."),
        ("billing", "charge", {"account": "Ada", "cents": 3}, "Charged 3 cents."),
        ("scanning", "archive", {}, "4 pages archived."),
        ("with_jobs", "charge", {"account": "Ada", "cents": 3}, "Charged 3 cents."),
        ("kept", "charge", {"account": "Ada", "cents": 3}, "Charged 3 cents."),
        ("reports", "report", {}, "November: 12 pages from the ledger, for Ada"),
        ("press", "print", {"pages": 2}, "Printed 2 pages."),
        ("print_shop", "print", {"order": "7"}, "Printed 3 sheets."),
        ("print_page", "print_page", {"number": 3}, "Printed page 3."),
        ("archiving", "report", {"year": 1999}, "stored stored the report of 1999"),
        ("everything", "greeter/greet", {"name": "Ada"}, "Hello, Ada."),
        ("everything", "parts/reorder_part", {"part": "M6x20"}, '{"order":1,"count":1}'),
        ("tenants", "greeter/greet", {"name": "Ada"}, "Hello, Ada."),
        ("pooled", "in_stock", {"part": "screw"}, "7"),
        ("mounted", "find", {"number": "M6x20"}, "520 of M6x20"),
        ("mounted", "kb_lookup", {"term": "leak"}, "How to mend a leak"),
    ],
)
async def test_documentation_shows_the_results_of_its_tools(
    name: str, tool: str, arguments: dict[str, Any], expected: str, modules: Path
) -> None:
    """The tools on the pages return the results shown there."""
    app = applications(importlib.import_module(name))[0]

    async with serve(app) as url, Client(f"{url}/mcp") as client:
        result = await client.call_tool(tool, arguments)

    assert expected in result.content[0].text  # type: ignore[union-attr]


async def test_documentation_of_mounted_jobs_needs_no_request(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted host continues the jobs in its store by itself."""
    monkeypatch.setenv("GENMCP_STORE", f"sqlite:///{modules / 'calls.db'}")
    monkeypatch.setenv("GENMCP_SECRET", "a secret of the test")
    billing = importlib.import_module("billing")
    mux = genmcp.Mux(billing.suite, jobs=genmcp.JobOptions(queues=["another"]))
    async with genmcp.Client(mux) as client:
        await client.call_task("charge", {"account": "Ada", "cents": 3})
    await mux.aclose()
    assert not billing.BOOKED

    async with serve(importlib.import_module("with_jobs").app):
        await until(lambda: billing.BOOKED, pause=0.05)


async def fill_in(context: Any, params: Any) -> ElicitResult:
    """Accept everything, and fill in the required fields of a form."""
    known: dict[str, str | int] = {"language": "French", "nights": 3, "by": "boat", "hour": 20}
    fields = params.requested_schema["properties"]
    return ElicitResult(action="accept", content={k: known[k] for k in known if k in fields})


async def write(context: Any, params: Any) -> CreateMessageResult:
    text = TextContent(type="text", text="Rain, and a warm room.")
    return CreateMessageResult(role="assistant", model="m", content=text)


async def folders(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri="file:///home/notes")])  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("name", "tool", "arguments", "expected"),
    [
        ("studio", "transcribe", {"minutes": 2}, "2 minutes of silence, in French."),
        ("hotel", "reserve", {"name": "Fjord"}, "Reserved: 3 nights in Fjord."),
        ("tables", "reserve_table", {"guests": 4}, "A table for 4, at 20."),
        ("hours", "book_table", {"guests": 4}, "Booked for 4 at 20, at attempt 1."),
        ("trips", "book_trip", {"city": "Porto"}, "Booked 3 nights in Porto, by boat."),
        ("drafts", "draft", {}, "Rain, and a warm room. For: notes"),
    ],
)
async def test_documentation_asks_clients_of_each_era(
    name: str, tool: str, arguments: dict[str, Any], expected: str, mode: Any, modules: Path
) -> None:
    """One tool can ask questions in every revision."""
    app = applications(importlib.import_module(name))[0]

    async with (
        serve(app) as url,
        Client(
            f"{url}/mcp",
            mode=mode,
            elicitation_callback=fill_in,
            sampling_callback=write,
            list_roots_callback=folders,
        ) as client,
    ):
        result = await client.call_tool(tool, arguments)

    assert expected == result.content[0].text  # type: ignore[union-attr]


async def test_documentation_of_another_queue_is_notified_by_it(modules: Path) -> None:
    """A notification from the print shop ends the wait; no polling is needed."""
    shop = importlib.import_module("print_shop")

    async with serve(shop.app) as url, Client(f"{url}/mcp") as client:
        async with httpx.AsyncClient() as http:
            response = await http.post(f"{url}/printed/8", content="a poster")
        result = await client.call_tool("print", {"order": "8"})

    assert response.status_code == 204
    assert result.content[0].text == "Printed a poster."  # type: ignore[union-attr]
    assert "8" not in shop.PRINTED


async def test_documentation_of_a_restart_runs_as_it_stands(tmp_path: Path) -> None:
    """The README's commands, in a shell: the server is killed, and the review completes."""
    (session,) = re.findall(r"^```sh\n(url=.*?)^```$", README, re.MULTILINE | re.DOTALL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-euc",
        session,
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PORT": str(port),
        },
        stdout=PIPE,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert process.returncode == 0
    (result,) = [line for line in output.decode().splitlines() if line.startswith('{"')]
    changes = json.loads(result)["changes"]
    with closing(sqlite3.connect(tmp_path / "example.db")) as connection:
        minimums = dict(connection.execute("SELECT number, minimum FROM parts"))
    assert changes
    assert all(minimums[change["number"]] == change["minimum"] for change in changes)


def test_documentation_of_conformance_has_the_recorded_numbers() -> None:
    """The README shows the numbers that `scripts/conformance` compares its result with."""
    recorded = json.loads((ROOT / "scripts" / "conformance.json").read_text("utf-8"))
    skipped = sum(
        len(checks) for scenarios in recorded["skipped"].values() for checks in scenarios.values()
    )
    sentence = (
        "In the official conformance suite, logins included, "
        "the server passes {server} checks and the client {client}, and none fails. "
        f"{skipped} checks are skipped, "
    )
    assert sentence.format(**recorded["passed"]) in " ".join(README.split())


async def test_documentation_shows_the_faults_of_its_first_tool(modules: Path) -> None:
    """The faults shown in the README are exactly those of its first tool."""
    app = importlib.import_module("server").app

    async with serve(app) as url, Client(f"{url}/mcp") as client:
        result = await client.call_tool("greet", {"excited": "yes"})

    text = result.content[0].text  # type: ignore[union-attr]
    assert text in README


def test_site_names_each_guide_once_and_where_it_is() -> None:
    """The order of the guides, and the sections of the text for language models."""
    docs = ROOT / "docs"
    guides = re.findall(r"- ([\w-]+\.md)$", (docs / "how-to/.nav.yml").read_text(), re.MULTILINE)
    assert sorted(guides) == sorted({*guides})
    assert [each for each in guides if not (docs / "how-to" / each).is_file()] == []
    sections = (ROOT / "mkdocs.yml").read_text().partition("sections:")[2]
    places = re.findall(r"^ +[\w -]+: \[(.*)\]$", sections, re.MULTILINE)
    assert places
    assert [each for each in places if not [*docs.glob(each)]] == []


def test_documentation_links_are_not_broken() -> None:
    """Every relative link is a path to an existing file."""
    for page in PAGES:
        for target in re.findall(r"\]\(((?!http)[^)#\s]+)[)#]", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"
