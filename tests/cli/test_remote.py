"""`genmcp tools`, `call`, `read`, `prompt`, `discover` and so on, against real servers."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SHOP = "tests.cli.shop:suite"
STUBBORN = shlex.join([sys.executable, str(Path(__file__).with_name("stubborn.py"))])
STDIO = shlex.join([sys.executable, "-m", "genmcp", "serve", SHOP, "--stdio"])

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("target", [SHOP, STDIO])
def test_remote_commands_use_a_server(target: str, run: Run) -> None:
    """One in this process, and one that is a process of its own."""
    status, tools, _ = run("tools", target)
    added = run("call", target, "add", "a=1", "b=2", "c:=3")

    assert (
        status,
        tools.partition("draw")[0],
    ) == (0, "add a=integer b=integer [c=integer]\n    Adds up.\nfail\n")
    assert added[:2] == (0, "6\n")
    assert "warning: adding" in added[2]
    assert run("read", target, "greeting://Oslo")[:2] == (0, "Hello Oslo\n")
    assert run("read", target, "greeting://bytes")[:2] == (0, "\x00\x01")
    assert run("prompt", target, "greet", "city=Rome")[:2] == (0, "user: Greet Rome\n")
    status, said, _ = run("discover", target)
    assert status == 0
    lines = said.splitlines()
    assert [lines[0], *lines[-2:]] == ["shop 2", "instructions:", "    Buy something."]
    assert "revision: 2026-07-28 (also 2025-11-25, " in said
    assert "\nextensions: io.modelcontextprotocol/tasks\n" in said


def test_remote_commands_list_components(run: Run) -> None:
    """Tools in the form in which they are called, with their arguments; and the other lists."""
    tools = run("tools", SHOP)[1]

    assert "\nplan [city=string] [by=boat|train] [stops=string,...]\n" in tools
    assert "\n    Plans a trip by land or by sea, and returns its duration." in tools
    assert "\n    city: Where to go.\n" in tools
    assert "In days" not in tools
    assert run("resources", SHOP) == (0, "greeting://Oslo  Oslo\n", "")
    assert run("templates", SHOP)[1] == "greeting://{city}  greeting\n    Greetings, by city.\n"
    assert "greet city\ntravel city [by]\n    Completes cities: " in run("prompts", SHOP)[1]


def test_remote_commands_say_that_there_is_nothing(run: Run, tmp_path: Path) -> None:
    """On standard error: the list is empty."""
    path = tmp_path / "bare.py"
    path.write_text("from genmcp import *\nsuite = Suite(name='bare', version='1')")
    command = f"env PYTHONPATH={tmp_path} {sys.executable} -m genmcp serve bare:suite --stdio"

    status, said, noise = run("tools", command)
    assert (status, said) == (0, "")
    assert "has no tools" in noise
    assert run("tools", command, "--json")[:2] == (0, "[]\n")


def test_remote_commands_use_a_server_that_refuses_much(run: Run) -> None:
    """A server without logging, and without a list: the list is empty."""
    status, said, noise = run("resources", STUBBORN)

    assert (status, said) == (0, "")
    assert f"genmcp: {STUBBORN} has no resources\n" in noise
    assert run("prompts", STUBBORN, "--json")[:2] == (0, "[]\n")
    assert run("tools", STUBBORN)[:2] == (0, "ask\n")


def test_remote_commands_show_json_and_nothing_else(run: Run) -> None:
    """The whole result; output printed by a tool goes to standard error."""
    status, said, noise = run("call", SHOP, "plan", "--json")
    tools = json.loads(run("tools", SHOP, "--json")[1])

    assert (status, json.loads(said)["structuredContent"]) == (0, {"days": 2})
    assert "planned\n" in noise
    assert "by a child\n" in noise
    names = ["add", "fail", "draw", "data", "plan", "book", "get_call_result"]
    assert names == [each["name"] for each in tools]
    assert json.loads(run("call", SHOP, "data")[1]) == {"a": 1}


def test_remote_commands_write_bytes_to_pipes_and_files(run: Run) -> None:
    """A picture is worth nothing as JSON."""
    assert run("call", SHOP, "draw")[1] == "\ufffdPNG\r\n\x1a\n"


def test_call_takes_arguments_as_an_object(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is, or from standard input; key=value adds to it."""
    path = tmp_path / "arguments.json"
    path.write_text('{"a": 1, "b": 2}')

    assert run("call", SHOP, "add", "--arguments", path.read_text())[1] == "3\n"
    assert run("call", SHOP, "add", "--arguments", path.read_text(), "c=5")[1] == "8\n"
    with path.open() as given:
        monkeypatch.setattr("sys.stdin", given)
        assert run("call", SHOP, "add", "--arguments", "-")[1] == "3\n"
    assert run("call", SHOP, "add", "--arguments", "[1]")[:2] == (2, "")
    assert run("call", SHOP, "add", "--arguments", '{"a":' + "[" * 100_000)[:2] == (2, "")
    assert run("call", SHOP, "add", "--arguments", "@arguments.json")[:2] == (2, "")


def test_call_warns_of_unknown_arguments(run: Run, tmp_path: Path) -> None:
    """Where the server would take them, and do nothing with them."""
    path = tmp_path / "old.py"
    path.write_text(OLD)
    target = shlex.join([sys.executable, str(path)])
    status, said, noise = run("call", target, "t\x1b[2J", "b=1")

    assert (status, said) == (0, "called\n")
    assert "has no argument 'b', only a" in noise
    assert "'bb', only a\n" in run("call", target, "t\x1b[2J", "bb=1")[2]
    assert "'aa', only a; did you mean 'a'?" in run("call", target, "t\x1b[2J", "aa=1")[2]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["call", SHOP, "fail"], 1, "out of paper"),
        (["call", SHOP, "nothing"], 1, "Unknown tool"),
        (["call", SHOP, "plam"], 1, "no tool 'plam' is listed; did you mean 'plan'?"),
        (["call", SHOP, "plan", "cty=Rome"], 2, 'did you mean "city"?'),
        (
            ["prompt", SHOP, "gret", "city=Rome"],
            1,
            "no prompt 'gret' is listed; did you mean 'greet'?",
        ),
        (["tols", SHOP], 2, "genmcp: there is no command 'tols'; did you mean 'tools'?"),
        (["jobs", "lst"], 2, "genmcp: there is no command 'lst'; did you mean 'list'?"),
        (["tools", SHOP, "--jsn"], 2, "No such option"),
        (["tools", "http://127.0.0.1:1/mcp"], 1, "cannot reach http://127.0.0.1:1/mcp"),
        (["call", SHOP, "add", "a"], 2, "genmcp: 'a' is not key=value\n"),
        (["call", SHOP, "add", "a=x"], 2, "a: 'x' is not a whole number"),
        (["call", SHOP, "add", "a=1"], 2, 'missing required property "b"'),
        (["call", SHOP, "plan", "by=car"], 2, 'by: expected "boat" or "train"'),
        (["call", SHOP, "add", "a=1", "a=2"], 2, "a is given twice"),
        (["call", "python", "shop.py", "add", "a=1"], 2, "'python' alone is no server (a command"),
        (
            ["tools", "python", "shop.py"],
            2,
            "'python' alone is no server (a command of",
        ),
        (["tools", SHOP, "--no"], 2, "--no"),
        (["run", SHOP], 2, "there is no command 'run'; did you mean 'serve'?"),
        (["dev", SHOP], 2, "did you mean 'serve --reload --console'?"),
        (["prompt", SHOP, "greet", "city"], 2, "'city' is not key=value\n"),
    ],
)
def test_remote_commands_report_errors(
    arguments: list[str], status: int, said: str, run: Run
) -> None:
    """With 1 if the server has failed, with 2 if the command makes no sense."""
    found, shown, noise = run(*arguments)

    assert status == found
    assert said in shown + noise


def test_complete_shows_how_an_argument_may_go_on(run: Run) -> None:
    """Of a prompt, and of a resource template."""
    assert run("complete", SHOP, "travel", "city", "Ro") == (0, "Rome\nRouen\n", "")
    assert run("complete", SHOP, "travel", "city", "R", "by=boat") == (0, "Rouen\n", "")
    assert run("complete", SHOP, "greeting://{city}", "city") == (0, "Oslo\n", "")
    assert '"ref/prompt", "name": "git:commit"' in run("complete", STUBBORN, "git:commit", "a")[1]
    assert '"uri": "git://commit"' in run("complete", STUBBORN, "git://commit", "a")[1]


def test_remote_command_can_be_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trace."""

    def interrupt(work: Any) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("genmcp.cli.remote.asyncio.run", interrupt)

    assert run("tools", SHOP) == (130, "", "")


OLD = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    match said["method"]:
        case "initialize":
            about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "old\\x1b[1m", "version": "1"}, "instructions": "\\x9b2J"}
        case "tools/list":
            about = {"tools": [{"name": "t\\x1b[2J", "description": " \\n ",
                "inputSchema": {"type": "object", "properties": {"a": {}}}}]}
        case "tools/call":
            about = {"content": [{"type": "text", "text": "called"}]}
        case method:
            about = None
    if "id" in said:
        error = {"code": -32601, "message": "Method not found"}
        what = {"error": error} if about is None else {"result": about}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], **what}), flush=True)
"""


def test_remote_commands_show_an_older_server_as_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that logs nothing and describes its tool by blanks; a terminal is not its to use."""
    path = tmp_path / "old.py"
    path.write_text(OLD)
    target = shlex.join([sys.executable, str(path)])
    piped = run("tools", target)[:2]
    monkeypatch.setattr("genmcp.cli.output.os.isatty", lambda _: True)
    shown = run("tools", target)[:2]
    about = run("discover", target)[:2]

    assert piped == (0, "t\x1b[2J [a=any]\n")
    assert shown == (0, "t[2J [a=any]\n")
    assert (about[0], about[1].splitlines()[::4]) == (0, ["old[1m 1", "    2J"])


def test_remote_commands_say_once_that_a_process_has_ended(run: Run) -> None:
    """Its standard error is passed through, and not repeated in the message."""
    target = shlex.join([sys.executable, "-c", "raise SystemExit('no key')"])
    status, _, noise = run("tools", target)

    assert status == 1
    *said, last = noise.splitlines()
    assert {*said} == {"no key"}  # it is started again, for an older revision
    assert f"genmcp: {sys.executable} *** has ended, with exit status 1" in last
    assert "last line of stderr" not in last


@pytest.mark.parametrize(
    ("shell", "status", "said"),
    [
        ("tools {shop} | true", 141, ""),
        ("tools {shop} > /dev/full", 1, "genmcp: cannot write the output: No space left on device"),
        ("tools {shop} >&-", 1, "genmcp: cannot write the output: standard output is closed"),
        ("call {shop} fail --json >/dev/null 2>&-", 1, ""),
        ("tools {shop} >/dev/null 2>&-", 0, ""),
        ("tools {shop} >/dev/null 2>&- <&-", 0, ""),
        (
            "call {shop} add --arguments - <&-",
            2,
            "genmcp: --arguments: standard input is closed",
        ),
        ("serve {shop} --stdio <&-", 2, "genmcp: --stdio: standard input is closed"),
    ],
)
def test_command_reports_unwritable_output(shell: str, status: int, said: str) -> None:
    """A closed pipe is not an error, as for any command before `head`."""
    command = f"{shlex.quote(sys.executable)} -m genmcp {shell.format(shop=SHOP)}"
    if "|" in command:
        command = command.replace("| true", "| (exec <&-; true)")
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        stderr=subprocess.PIPE,
        check=False,
        timeout=30,
    )

    assert (status, said) == (ended.returncode, ended.stderr.decode().strip())


HOSTILE = shlex.join([sys.executable, str(Path(__file__).with_name("hostile.py"))])


def test_remote_commands_log_no_terminal_sequences() -> None:
    """Nor a record that a server has forged: lines after the first are indented."""
    command = [sys.executable, "-m", "genmcp", "tools", HOSTILE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    noise = done.stderr

    assert "WARNING: " in noise
    assert "\n  WARNING: forged" in noise
    assert "\nWARNING: forged" not in noise
    assert not set("\x1b\x07") & set(noise)


def test_arguments_refused_by_a_hostile_schema_are_plain(run: Run) -> None:
    """The name of the missing property comes from the server."""
    status, _, noise = run("call", HOSTILE, "t")

    assert status == 2
    assert "missing required property" in noise
    assert not set("\x1b\x07") & set(noise)


def test_remote_commands_show_skills(run: Run, tmp_path: Path) -> None:
    """The list, a skill by its name or URI, and its files; with two of one name, the URI only."""
    for path in ("team/refunds", "shop/refunds", "returns"):
        folder = tmp_path / "skills" / path
        folder.mkdir(parents=True)
        text = f"---\nname: {folder.name}\ndescription: How to.\n---\nDo it.\n"
        (folder / "SKILL.md").write_text(text)
    (tmp_path / "skills" / "returns" / "a.bin").write_bytes(b"\x00\x01")
    module = tmp_path / "skilled.py"
    module.write_text(
        "from genmcp import Suite\nfrom genmcp.extensions import Skills\n"
        f"suite = Suite('s', extensions=[Skills({str(tmp_path / 'skills')!r})])"
    )
    command = f"{module}:suite"

    assert run("skills", command)[1] == (
        "returns  skill://returns/SKILL.md\n    How to.\n"
        "refunds  skill://shop/refunds/SKILL.md\n    How to.\n"
        "refunds  skill://team/refunds/SKILL.md\n    How to.\n"
    )
    assert run("skills", command, "returns")[1].endswith("---\nDo it.\n")
    assert run("skills", command, "skill://team/refunds/SKILL.md")[0] == 0
    assert run("skills", command, "returns", "a.bin")[1] == "\x00\x01"
    assert json.loads(run("skills", command, "--json")[1])[0]["frontmatter"]["name"] == "returns"
    assert "skill://shop/refunds/SKILL.md, skill://team/" in run("skills", command, "refunds")[2]
    assert "did you mean 'returns'" in run("skills", command, "return")[2]
    assert run("skills", command, "returns", "../b")[0] == 1
    assert "has no skills" in run("skills", SHOP)[2]
