"""Errors have the codes and the data that the schema defines."""

from typing import Any

import pytest

from genmcp import errors
from genmcp.protocol.revisions.chain import LEGACY, MODERN
from tests.support.definitions import definitions, validator

ERRORS = {
    "HeaderMismatchError": errors.HeaderMismatch("Mcp-Name"),
    "InternalError": errors.InternalError(),
    "InvalidParamsError": errors.InvalidParams("no such tool"),
    "InvalidRequestError": errors.InvalidRequest("not a request"),
    "MethodNotFoundError": errors.MethodNotFound("no/such"),
    "MissingRequiredClientCapabilityError": errors.MissingCapability({"elicitation": {}}),
    "ParseError": errors.ParseError("not JSON"),
    "UnsupportedProtocolVersionError": errors.UnsupportedVersion("1999-01-01", ["2026-07-28"]),
}


def test_error_codes_are_all_of_the_schema() -> None:
    """Each error of the schema has a class in genmcp."""
    names = {name for name in definitions("2026-07-28") if name.endswith("Error")}

    assert names - {"Error"} == set(ERRORS)


@pytest.mark.parametrize("name", ERRORS)
def test_error_codes_and_data_satisfy_the_schema(name: str) -> None:
    """The code and data of each error are valid by its definition."""
    raised = ERRORS[name]
    error: dict[str, Any] = {"code": raised.code, "message": raised.message}
    if raised.data is not None:
        error["data"] = raised.data
    whole = "jsonrpc" in definitions("2026-07-28")[name]["properties"]

    sent = {"jsonrpc": "2.0", "id": 1, "error": error} if whole else error

    assert validator("2026-07-28", name).is_valid(sent)
    assert not validator("2026-07-28", name).is_valid({**sent, "code": -1, "error": {"code": -1}})


def test_error_codes_of_a_resource_not_found() -> None:
    """Before 2026-07-28 this error had a code of its own."""
    assert {errors.ResourceNotFound("a:b").code} == {each.resource_not_found for each in MODERN}
    assert {each.resource_not_found for each in LEGACY} == {-32002}
