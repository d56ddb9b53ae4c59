"""The official JSON schemas, and the type of genmcp for each of their definitions."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema_rs

from genmcp.protocol import (
    capabilities,
    client_features,
    content,
    params,
    prompts,
    resources,
    tools,
    value,
)
from genmcp.protocol.methods import METHODS, Method
from genmcp.protocol.revisions import v2025_11_25
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Value

SCHEMAS = Path(__file__).parents[1] / "protocol" / "schemas"


def structs(*modules: ModuleType) -> Mapping[str, type[Value]]:
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }


CANONICAL = structs(
    capabilities,
    client_features,
    content,
    params,
    prompts,
    resources,
    tools,
    value,
)
VALUES: Mapping[str, type[Value]] = {
    **structs(v2025_11_25),
    **CANONICAL,
    "BlobResourceContents": content.ResourceContents,
    "ElicitRequestFormParams": client_features.ElicitRequestParams,
    "ElicitRequestURLParams": client_features.ElicitRequestParams,
    "EmptyResult": value.Result,
    "Prompt": prompts.PromptDefinition,
    "RequestMetaObject": params.RequestMeta,
    "Resource": content.ResourceDefinition,
    "ResourceReference": prompts.ResourceTemplateReference,
    "ResourceTemplate": resources.ResourceTemplateDefinition,
    "TextResourceContents": content.ResourceContents,
    "Tool": tools.ToolDefinition,
}


@cache
def schema(version: str) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = json.loads((SCHEMAS / f"{version}.json").read_text())
    return loaded


def definitions(version: str) -> Mapping[str, Any]:
    whole = schema(version)
    found: Mapping[str, Any] = whole.get("$defs") or whole["definitions"]
    return found


@cache
def validator(version: str, name: str) -> jsonschema_rs.Validator:
    """Return a validator for the definition *name*."""
    where = "$defs" if "$defs" in schema(version) else "definitions"
    return jsonschema_rs.validator_for({**schema(version), "$ref": f"#/{where}/{name}"})


def method(revision: Revision, name: str) -> Method | None:
    """Return the method of a request or notification by the name of its definition."""
    if name == "ClientNotification":  # in 2026-07-28, a union of one
        return None
    of = definitions(revision.version)[name].get("properties", {}).get("method", {}).get("const")
    return revision.methods.get(of)


def type_of(revision: Revision, name: str) -> type[Value] | None:
    """Return the type for the definition *name*; for a method, the type of its params."""
    found = method(revision, name)
    if found is None:
        return VALUES.get(name)
    return METHODS.get(found.name, found).params
