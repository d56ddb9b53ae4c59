"""The tutorial and the ported servers work as they stand, in an empty folder."""

import ast
import importlib.metadata
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmcp import Accepted, Client, ClientHandler, ClientOptions, Command
from tests.cli.users import at_terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
PATIENCE = 60  # seconds for a command; a job of a killed process is taken over after 30
STEPS = sorted((ROOT / "docs" / "tutorial").glob("[1-9]-*.md"))
FILE = re.compile(r"^```(?:python|toml)\n# (\w+\.(?:py|toml))\n(.*?)^```$", re.M | re.S)
PART = re.compile(r"^```console\n(.*?)^```$|^Open <(.*?)>", re.M | re.S)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.M)
# Parts of the output that differ from run to run, and their replacements.
DIFFERENT = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}": "NOW",
    r"process \[\d+\]": "process [PID]",
    r"passed in [\d.]+s": "passed in SECONDS",
    r"^[\w-]{27}$": "ID",
    r"(?<=% )\d+s left ": "LEFT ",
}


def comparable(output: str) -> str:
    """Return *output* without the parts that differ, and with the last state of each bar."""
    output = re.sub(r"\x1b\[K", "", output.replace("\r\n", "\n"))
    output = re.sub(
        r"^\[[# ]{30}\].*[\r\n](?=\[[# ]{30}\])", "", output.replace("\r", "\n"), flags=re.M
    )
    for pattern, replacement in DIFFERENT.items():
        output = re.sub(pattern, replacement, output, flags=re.M)
    return "\n".join(line for line in output.splitlines() if line)


def assert_shown(output: str, shown: str) -> None:
    """Compare *output* with the page, where a line of three dots stands for any lines."""
    expected = re.escape(comparable(shown)).replace(r"\.\.\.", r"(?:.*\n)*?.*")
    assert re.fullmatch(expected, comparable(output)), f"{output}\nis not as shown:\n{shown}"


class Reader:
    """Types the commands of a step into two terminals: servers run in the first one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        self.server: subprocess.Popen[bytes] | None = None
        self.logged_pid = 0  # as a reader finds it in the output of the server
        self.task = ("", "")  # the id of the last task, on the page and here

    def run(self, command: str, shown: str) -> None:
        """Run *command* and compare its output with *shown*."""
        command = command.replace(":8000", f":{self.port}")
        shown = shown.replace(":8000", f":{self.port}")
        match command.split():
            case ["export", *_]:
                name, _, value = command.removeprefix("export ").partition("=")
                self.environment[name] = value.strip('"')
            case ["kill", "-9", _]:
                assert self.server is not None
                os.kill(self.logged_pid, signal.SIGKILL)
                assert self.server.wait(PATIENCE) == -signal.SIGKILL
            case ["uvicorn", *_] | ["genmcp", "serve", *_]:
                self.serve(command, shown)
            case ["genmcp", *arguments]:
                on_page, here = self.task
                output = self.type([here if each == on_page else each for each in arguments], shown)
                assert_shown(output, shown)
                if arguments[-1] == "--detach":
                    self.task = shown.strip(), output.strip()
            case _:
                done = subprocess.run(
                    command.split(),
                    cwd=self.folder,
                    env=self.environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE if command.startswith("curl") else subprocess.STDOUT,
                    timeout=PATIENCE,
                    check=False,
                )
                assert_shown(done.stdout.decode(), shown)

    def type(self, arguments: list[str], shown: str) -> str:
        """Run `genmcp` at a terminal and type the answers that are shown; return the screen."""
        with at_terminal(
            *arguments,
            cwd=self.folder,
            COLUMNS="100",
            PATH=self.environment["PATH"],
            PYTHONPATH=self.environment["PYTHONPATH"],
        ) as user:
            screen = ""
            for prompt, answer in re.findall(r"^(  \w.*: )(.*)$", shown, re.M):
                screen += user.sees(prompt)
                user.types(f"{answer}\n")
            return screen + user.ends()[1]

    def serve(self, command: str, shown: str) -> None:
        """Start a server, and wait for the last line of its output on the page."""
        self.stop()
        self.server = subprocess.Popen(
            [*command.split(), "--port", self.port],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.server.stdout is not None
        output, last = "", comparable(shown).splitlines()[-1]
        for line in self.server.stdout:
            output += line.decode()
            if comparable(output).endswith(last):
                break
        assert_shown(output, shown)
        self.logged_pid = int(re.findall(r"Started server process \[(\d+)\]", output)[0])

    def stop(self) -> None:
        """Press Ctrl-C in the terminal of the server."""
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)  # does nothing after its death
            self.server.communicate(timeout=PATIENCE)
            self.server = None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_tutorial_step_prints_the_output_shown(step: Path, reader: Reader) -> None:
    """A newcomer who has this page alone, and does as it says, sees the output that it shows."""
    text = step.read_text("utf-8")
    for packages in re.findall(r"^pip install (.*)$", text, re.M):
        assert all(importlib.metadata.version(each) for each in packages.split())
    for name, code in FILE.findall(text):
        (reader.folder / name).write_text(code, "utf-8")

    for session, page in PART.findall(text):
        if page:
            url = page.replace(":8000", f":{reader.port}")
            assert "<html" in httpx.get(url, headers={"accept": "text/html"}).text
        for command, shown in COMMAND.findall(session):
            reader.run(command, shown)


def test_tutorial_has_eight_steps_with_a_recap() -> None:
    """Each step has what to install, to write, to run and to see, and a recap."""
    assert len(STEPS) == 8
    for number, step in enumerate(STEPS, 1):
        text = step.read_text("utf-8")
        assert text.startswith(f"# {number}. ")
        assert re.findall(r"^## (.*)$", text, re.M) == ["Write this", "Run this", "Recap"]
        assert "pip install genmcp" in text and FILE.search(text) and COMMAND.search(text)


class Customer(ClientHandler):
    """Has parts sent to Oslo."""

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Accepted:
        return Accepted({"city": "Oslo"})


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("find", {"number": "M6x20"}),
    ("find", {"number": "M7"}),
    ("search", {"text": "M", "limit": 1}),
    ("price", {"number": "M8x30", "count": 3}),
    ("shortages", {}),
    ("count", {"shelves": 2}),
    ("order", {"number": "M6x20"}),
    ("cancel", {"order": 7, "reason": "late"}),
    ("label", {"number": "M6x20"}),
    ("deliveries", {"day": "2026-11-28"}),
    ("export_stock", {}),
]
PORTS = ["from-fastmcp.md", "from-sdk.md"]


async def ported(program: Path) -> list[object]:
    """Return the tools of *program* and its answers to one of each request."""
    # The others ask clients before 2026-07-28 only.
    options = ClientOptions(revision="2025-11-25")
    command = Command(sys.executable, [str(program)])
    async with Client(command, handler=Customer(), options=options) as client:
        answers: list[object] = [
            (each.name, each.description, each.annotations)
            for each in await client.tools()
            if each.name != "get_call_result"  # which the page describes
        ]
        answers += [(each.uri_template, each.description) for each in await client.templates()]
        for name, arguments in CALLS:
            progress: list[object] = []

            def note(*values: object, progress: list[object] = progress) -> None:
                progress.append(values)

            result = await client.call(name, arguments, progress=note)
            # The others wrap a text as {"result": ...}, as the page says, and may name the tool in
            # an error.
            structured = result.structured
            if structured == {"result": result.text}:
                structured = None
            text = result.text.removeprefix(f"Error executing tool {name}: ")
            kinds = [type(each) for each in result.content]
            if structured is not None:
                text, kinds = "", []  # the same again, with other spaces, or a block for each item
            answers.append((name, result.is_error, text, kinds, structured, progress))
        read = await client.read("stock://M6x20")
        answers += [(json.loads(each.text or ""), each.mime_type) for each in read.contents]
        return [*answers, (await client.prompt("review", {"number": "M6x20"})).messages]


@pytest.mark.parametrize("page", PORTS)
async def test_ported_server_gives_the_same_results(page: str, tmp_path: Path) -> None:
    """The two servers on the page have the same tools, and the same calls have the same results."""
    results = []
    for name, code in FILE.findall((ROOT / "docs" / "how-to" / page).read_text("utf-8")):
        (tmp_path / name).write_text(code, "utf-8")
        results.append(await ported(tmp_path / name))

    before, after = results
    assert before == after


def lines_beside_imports(code: str) -> list[str]:
    """Return the lines of *code* that are neither blank nor part of an import."""
    imports = {
        line
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = enumerate(code.splitlines(), 1)
    return [line for number, line in lines if line.strip() and number not in imports]


@pytest.mark.parametrize("page", PORTS)
def test_port_of_ten_tools_changes_few_lines(page: str) -> None:
    """A line that was replaced counts once; both pages name the number."""
    text = (ROOT / "docs" / "how-to" / page).read_text("utf-8")
    (_, before), (_, after) = FILE.findall(text)
    old, new = lines_beside_imports(before), lines_beside_imports(after)
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed = sum(max(b - a, d - c) for kind, a, b, c, d in blocks if kind != "equal")

    assert len(re.findall(r"^@server\.tool", before, re.M)) == 10
    assert f"\n{changed} lines change besides the imports" in text
    assert changed <= 25
