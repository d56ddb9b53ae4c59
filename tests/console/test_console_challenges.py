"""The page reads challenges as the package does."""

import json
import shutil
import subprocess
from importlib.resources import files

import pytest

from genmcp.core.auth.challenges import find_challenge, parse_challenges

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


def test_page_reads_challenges_as_the_package_does() -> None:
    """One grammar in two languages: the cases are compared."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    source = (files("genmcp.console") / "page" / "challenges.js").read_text("utf-8")
    program = (
        f"{source}\nconst headers = {json.dumps(HEADERS)};\n"
        "console.log(JSON.stringify(headers.map((each) => challengeOf(each, 'Bearer'))));"
    )
    done = subprocess.run(
        [node, "--input-type=module", "-e", program], check=True, capture_output=True, text=True
    )
    found = [find_challenge(parse_challenges([each]), "Bearer") for each in HEADERS]
    assert json.loads(done.stdout) == [each and dict(each.params) for each in found]
