"""The workshop as a showcase: its index of concepts, a call that runs once, and `genmcp lint`."""

import importlib
import re
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

import example_app
from example_app.database import Database
from example_app.seed import fill
from example_app.suite import create_suite
from example_app.workshop import Workshop
from genmcp import Client, Mux
from tests.example_app.connecting import REPOSITORY

pytestmark = pytest.mark.slow

INDEX = re.findall(r"^\| (.+) \| ([\w.]+) \| (.+) \|$", example_app.__doc__ or "", re.MULTILINE)


@pytest.mark.parametrize(("concept", "module", "explained"), INDEX[1:])
def test_workshop_index_names_the_page_of_each_concept(
    concept: str, module: str, explained: str
) -> None:
    """The docstring of the module says the same as the index."""
    docstring = importlib.import_module(f"example_app.{module}").__doc__ or ""

    assert explained in " ".join(docstring.split())
    for step in re.findall(r"steps? ([\d, and]+) of the tutorial", explained):
        assert {*re.findall(r"\d", step)} <= {*"12345678"}


def test_workshop_index_has_every_module_that_uses_genmcp() -> None:
    """A new module of the example is a concept, or a part of the application itself."""
    folder = REPOSITORY / "example_app"
    using = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if re.search(r"^from genmcp", path.read_text("utf-8"), re.MULTILINE)
    }

    assert using - {"login_server"} == {module for _, module, _ in INDEX[1:]}


async def test_workshop_withdrawal_that_is_sent_again_takes_nothing(tmp_path: Path) -> None:
    """The same request id, after a response that was lost, say."""
    workshop = Workshop(Database(tmp_path / "workshop.db"))
    workshop.database.create(fill)
    mux = Mux(create_suite(), assigns={"workshop": workshop, "user": "ines"}, secret="a" * 32)
    before = workshop.part("CH-103").stock
    wanted = {"part": "CH-103", "repair": 2, "request_id": "7b1f"}
    async with aclosing(mux), Client(mux) as client:
        first = await client.call("withdraw_part", wanted)
        again = await client.call("withdraw_part", wanted)

    assert not first.is_error, first.text
    assert again.text == first.text
    assert workshop.part("CH-103").stock == before - 1


def test_workshop_has_no_tool_that_clients_reject(tmp_path: Path) -> None:
    """`genmcp lint` finds nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "genmcp", "lint", "example_app:mux"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.endswith(" 0 violations\n"), done.stderr
