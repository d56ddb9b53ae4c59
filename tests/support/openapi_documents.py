"""The OpenAPI documents of real APIs, from npm packages that are installed once."""

from functools import cache
from typing import Any

import msgspec
import yaml

from tests.support.npm import npm_package
from tests.support.peers import FIGMA_OPENAPI, GITHUB_OPENAPI


@cache
def github() -> dict[str, Any]:
    """Return GitHub's document: 13 MB of JSON, OpenAPI 3.0."""
    package, version = GITHUB_OPENAPI
    _, modules = npm_package(package, version)
    text = (modules / package / "generated" / "api.github.com.json").read_bytes()
    return dict(msgspec.json.decode(text))


@cache
def figma() -> dict[str, Any]:
    """Return Figma's document: 400 kB of YAML, OpenAPI 3.1."""
    package, version = FIGMA_OPENAPI
    _, modules = npm_package(package, version)
    text = (modules / package / "openapi" / "openapi.yaml").read_bytes()
    return dict(yaml.safe_load(text))
