"""Every case of the official JSON-Schema-Test-Suite, for the three dialects that are supported.

All verdicts are the same. Cases that need another document are rejected when the schema is made,
since nothing is ever fetched. They are listed here.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError

FOLDER = Path(__file__).resolve().parents[2] / ".venv" / "json-schema-test-suite"

DIALECTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}

METASCHEMA = "refers to the schema of the dialect, which is another document"
REMOTE = "refers to a document of the suite's own web server"
OWN_DIALECT = "is written in a dialect of its own, with other vocabularies"

REJECTED: dict[str, tuple[str, set[str]]] = {
    "defs.json": (METASCHEMA, {"validate definition against metaschema"}),
    "definitions.json": (METASCHEMA, {"validate definition against metaschema"}),
    "ref.json": (METASCHEMA, {"remote ref, containing refs itself"}),
    "dynamicRef.json": (
        REMOTE,
        {
            "strict-tree schema, guards against misspelled properties",
            "tests for implementation dynamic anchor and reference link",
            "$ref and $dynamicAnchor are independent of order - $defs first",
            "$ref and $dynamicAnchor are independent of order - $ref first",
            "$ref to $dynamicRef finds detached $dynamicAnchor",
        },
    ),
    "optional/cross-draft.json": (
        REMOTE,
        {
            "refs to future drafts are processed as future drafts",
            "refs to historic drafts are processed as historic drafts",
        },
    ),
    "vocabulary.json": (
        OWN_DIALECT,
        {
            "schema that uses custom metaschema with with no validation vocabulary",
            "ignore unrecognized optional vocabulary",
        },
    ),
    "optional/format-assertion.json": (
        OWN_DIALECT,
        {
            "schema that uses custom metaschema with format-assertion: false",
            "schema that uses custom metaschema with format-assertion: true",
        },
    ),
}


class Case(NamedTuple):
    """A schema, and its test values."""

    file: str
    description: str
    document: dict[str, Any]
    tests: list[dict[str, Any]]

    @property
    def is_to_be_rejected(self) -> bool:
        """Whether the case needs a document that is not part of its schema."""
        listed = self.file in REJECTED and self.description in REJECTED[self.file][1]
        return listed or self.file == "refRemote.json"

    def schema(self) -> Schema:
        """Return the schema; formats are asserted in the cases about formats."""
        return Schema(self.document, formats=self.file.startswith("optional/format/"))


@pytest.fixture(scope="module")
def archive() -> Iterator[tarfile.TarFile]:
    """Open the source distribution that contains the suite."""
    found = [*FOLDER.glob("jsonschema-*.tar.gz")]
    if len(found) != 1:
        pytest.fail(f"the JSON-Schema-Test-Suite is not in {FOLDER}: run `scripts/setup dev`")
    with tarfile.open(found[0]) as opened:
        yield opened


def cases(archive: tarfile.TarFile, draft: str) -> Iterator[Case]:
    """Yield all cases of one draft, the optional ones, too."""
    for member in archive:
        file = member.name.partition(f"/json/tests/{draft}/")[2]
        text = archive.extractfile(member) if file.endswith(".json") else None
        for case in json.load(text) if text else ():
            given = case["schema"]
            document = given if isinstance(given, dict) else {"allOf": [given]}
            whole = {"$schema": DIALECTS[draft], **document}
            yield Case(file, case["description"], whole, case["tests"])


@pytest.mark.parametrize("draft", DIALECTS)
def test_verdicts_are_those_of_the_suite(archive: tarfile.TarFile, draft: str) -> None:
    """This includes the optional cases; each rejection has an explanation."""
    differing = []
    count = 0
    for case in cases(archive, draft):
        if case.is_to_be_rejected:
            continue
        schema = case.schema()
        for test in case.tests:
            count += 1
            faults = schema.check(test["data"])
            if bool(faults) is test["valid"] or "" in faults:
                differing.append((case.file, case.description, test["description"], faults))

    assert not differing
    assert count > 1_000


@pytest.mark.parametrize("draft", DIALECTS)
def test_case_that_needs_another_document_is_rejected(archive: tarfile.TarFile, draft: str) -> None:
    """The error states that nothing is fetched, or which dialects are supported."""
    count = 0
    for case in cases(archive, draft):
        if case.is_to_be_rejected:
            count += 1
            with pytest.raises(ConfigurationError, match=r"nothing is ever fetched|the dialect '"):
                case.schema()

    assert count > 10
