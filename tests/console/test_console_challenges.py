"""The page reads challenges and metadata as the package does."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import pytest

from genmcp.core.auth.challenges import find_challenge, parse_challenges
from genmcp.core.auth.metadata import covers

HEADERS = [
    'Bearer error="invalid_token", scope="a b"',
    'Bearer error_description="needs scope=\\"evil\\", Bearer", scope="a"',
    'Bearer error_description="scope=\'x\', realm=1", SCOPE="a"',
    'DPoP algs="ES256", scope="other", Bearer scope="a", resource_metadata="https://x.example/m"',
    "Negotiate oWcwBaEDCgEA, Bearer scope=a",
    'Basic realm="Bearer scope=1", bearer resource_metadata=https://x.example/m',
    'DPoP scope="only"',
    "Bearer",
    'Bearer scope="open',
    ", , =, Bearer scope=a, scope=b",
    "",
]


URL = "https://a.example/shop/mcp"
RESOURCES = [
    *(URL, f"{URL}/", "https://A.example:443/shop/mcp", "https://a.example/shop", f"{URL}?a=b"),
    *("https://a.example", "https://a.example/", "https://a.example/shop/m", f"{URL}/more"),
    *("https://b.example/shop/mcp", "http://a.example/shop/mcp", "https://a.example:8443/"),
    *(f"{URL}#a", f"{URL}#", "https://me@a.example/shop/mcp", "no URL", ""),
]


def on_the_page(expression: str, values: Sequence[str]) -> Any:
    """Return the values of *expression*, in which `each` is one of *values*."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    source = (files("genmcp.console") / "page" / "challenges.js").read_text("utf-8")
    program = (
        f"{source}\nconst values = {json.dumps(values)};\n"
        f"console.log(JSON.stringify(values.map((each) => {expression})));"
    )
    done = subprocess.run(
        [node, "--input-type=module", "-e", program], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_page_reads_challenges_as_the_package_does() -> None:
    """One grammar in two languages: the cases are compared."""
    found = [find_challenge(parse_challenges([each]), "Bearer") for each in HEADERS]
    shown = on_the_page("challengeOf(each, 'Bearer')", HEADERS)
    assert shown == [each and dict(each.params) for each in found]


def test_page_accepts_the_metadata_that_the_package_accepts() -> None:
    """RFC 9728, 3.3: that of another resource could send the user to log in elsewhere."""
    expected = [covers(each, URL) for each in RESOURCES]
    assert expected.count(True) == 6
    assert on_the_page(f"covers(each, {URL!r})", RESOURCES) == expected
