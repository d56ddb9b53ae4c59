"""Every definition of every official schema has a type of genmcp, or is left out for a reason."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st

from genmcp.errors import MissingCapability
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Result
from tests.protocol.strategies import values
from tests.support.definitions import definitions, method, type_of, validator

pytestmark = pytest.mark.slow

ENVELOPE = "the JSON-RPC envelope, of wire.jsonrpc"
ERROR = "an error, of genmcp.errors"
UNION = "nothing but a union of other definitions"
SCALAR = "a string or number, not an object"
FREE = "an object of any members"
MIXIN = "members that others have, which they declare themselves"
FORM = "part of a form's schema, which is a JSON Schema like others"
TASKS = "the experimental tasks of 2025-11-25, which are not offered"

LEFT_OUT = {
    **dict.fromkeys(
        [
            "JSONRPCBatchRequest",
            "JSONRPCBatchResponse",
            "JSONRPCError",
            "JSONRPCErrorResponse",
            "JSONRPCMessage",
            "JSONRPCNotification",
            "JSONRPCRequest",
            "JSONRPCResponse",
            "JSONRPCResultResponse",
            "Notification",
            "PaginatedRequest",
            "Request",
            "CallToolResultResponse",
            "CompleteResultResponse",
            "DiscoverResultResponse",
            "GetPromptResultResponse",
            "ListPromptsResultResponse",
            "ListResourceTemplatesResultResponse",
            "ListResourcesResultResponse",
            "ListToolsResultResponse",
            "ReadResourceResultResponse",
            "SubscriptionsListenResultResponse",
        ],
        ENVELOPE,
    ),
    **dict.fromkeys(
        [
            "Error",
            "HeaderMismatchError",
            "InternalError",
            "InvalidParamsError",
            "InvalidRequestError",
            "MethodNotFoundError",
            "MissingRequiredClientCapabilityError",
            "ParseError",
            "URLElicitationRequiredError",
            "UnsupportedProtocolVersionError",
        ],
        ERROR,
    ),
    **dict.fromkeys(
        [
            "ClientNotification",
            "ClientRequest",
            "ClientResult",
            "ContentBlock",
            "InputRequest",
            "InputResponse",
            "SamplingMessageContentBlock",
            "ServerNotification",
            "ServerRequest",
            "ServerResult",
        ],
        UNION,
    ),
    **dict.fromkeys(
        ["Cursor", "LoggingLevel", "ProgressToken", "RequestId", "ResultType", "Role"], SCALAR
    ),
    **dict.fromkeys(
        [
            "InputRequests",
            "InputResponses",
            "JSONArray",
            "JSONObject",
            "JSONValue",
            "MetaObject",
            "NotificationMetaObject",
            "ResultMetaObject",
            "SubscriptionsListenResultMetaObject",
        ],
        FREE,
    ),
    **dict.fromkeys(["Annotated", "BaseMetadata", "Icons", "ResourceRequestParams"], MIXIN),
    **dict.fromkeys(
        [
            "BooleanSchema",
            "EnumSchema",
            "LegacyTitledEnumSchema",
            "MultiSelectEnumSchema",
            "NumberSchema",
            "PrimitiveSchemaDefinition",
            "SingleSelectEnumSchema",
            "StringSchema",
            "TitledMultiSelectEnumSchema",
            "TitledSingleSelectEnumSchema",
            "UntitledMultiSelectEnumSchema",
            "UntitledSingleSelectEnumSchema",
        ],
        FORM,
    ),
    **dict.fromkeys(
        [
            "CancelTaskRequest",
            "CancelTaskResult",
            "CreateTaskResult",
            "GetTaskPayloadRequest",
            "GetTaskPayloadResult",
            "GetTaskRequest",
            "GetTaskResult",
            "ListTasksRequest",
            "ListTasksResult",
            "RelatedTaskMetadata",
            "Task",
            "TaskAugmentedRequestParams",
            "TaskMetadata",
            "TaskStatus",
            "TaskStatusNotification",
            "TaskStatusNotificationParams",
            "ToolExecution",
        ],
        TASKS,
    ),
    "ElicitationCompleteNotification": "optional to send, and gone in 2026-07-28",
}


def definitions_with_a_type() -> Iterator[tuple[str, str]]:
    for revision in REVISIONS.values():
        for name in definitions(revision.version):
            if name not in LEFT_OUT and type_of(revision, name):
                yield revision.version, name


@pytest.mark.parametrize("revision", [*REVISIONS.values()], ids=[*REVISIONS])
def test_definitions_are_values_or_left_out(revision: Revision) -> None:
    """Each definition of the schemas has a type or a reason, and none has both."""
    names = set(definitions(revision.version))

    mapped = {name for name in names if type_of(revision, name)}

    assert names - mapped - set(LEFT_OUT) == set()
    assert mapped & set(LEFT_OUT) == set()


def test_definitions_left_out_all_exist() -> None:
    """Each definition that has a reason is in one of the schemas."""
    assert set(LEFT_OUT) == {
        name for name in LEFT_OUT if any(name in definitions(version) for version in REVISIONS)
    }


def wire(revision: Revision, name: str, value: Any) -> Any:
    """Return *value* as JSON, with the members that genmcp adds when it writes a message."""
    members = msgspec.json.decode(msgspec.json.encode(value))
    if revision.modern and isinstance(value, Result):
        members["resultType"] = value.result_type
    found = method(revision, name)
    if found is None:
        return members
    message = {"jsonrpc": "2.0", "method": found.name, "params": members}
    return message if found.result is None else message | {"id": 1}


def whole(message: Any) -> bool:
    """Return whether the message has one block: several are split (test_revisions.py)."""
    return not isinstance(message.content, list)


def single(result: Any) -> bool:
    """Return whether no answer has several values, which the revision cannot ask for."""
    return not any(isinstance(value, list) for value in (result.content or {}).values())


#: Where a definition is only for some values of its type: the condition for them.
ABOUT: Mapping[str | tuple[str, str], Callable[[Any], bool]] = {
    "BlobResourceContents": lambda contents: contents.blob is not None,
    "ElicitRequestFormParams": lambda params: params.url is None,
    "ElicitRequestURLParams": lambda params: params.url is not None,
    "TextResourceContents": lambda contents: contents.text is not None,
    ("2025-06-18", "ElicitResult"): single,
    ("2025-06-18", "SamplingMessage"): whole,
    ("2025-03-26", "SamplingMessage"): whole,
    ("2024-11-05", "SamplingMessage"): whole,
}


def expressed(revision: Revision, value: Any) -> Any:
    try:
        return revision.down(value)
    except MissingCapability:
        return reject()


@pytest.mark.parametrize(("version", "name"), [*definitions_with_a_type()])
@settings(max_examples=6, phases=[Phase.generate])
@given(data=st.data())
def test_definitions_hold_for_encoded_values(version: str, name: str, data: st.DataObject) -> None:
    """An encoded value satisfies its revision's schema, and is equal after decoding and `up`."""
    revision = REVISIONS[version]

    about = ABOUT.get(name) or ABOUT.get((version, name)) or (lambda _: True)
    type_ = type_of(revision, name)
    assert type_ is not None

    value = expressed(revision, data.draw(values(type_).filter(about)))

    encoded = msgspec.json.encode(value)
    validator(version, name).validate(wire(revision, name, value))
    assert encoded == msgspec.json.encode(msgspec.json.decode(encoded, type=type(value)))
    assert encoded == msgspec.json.encode(revision.down(revision.up(value)))
