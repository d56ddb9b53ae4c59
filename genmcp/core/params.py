"""Decoding of the params of requests and notifications, per revision, and the bound on names."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from genmcp.errors import MalformedParams
from genmcp.faults import decoding_fault, error_data
from genmcp.protocol.completion import CompleteRequestParams, PromptReference
from genmcp.protocol.methods import Method
from genmcp.protocol.params import (
    IDEMPOTENCY_KEY,
    NotificationParams,
    RequestId,
    RequestMeta,
    RequestParams,
)
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.revisions.v2025_11_25 import SubscribeRequestParams, UnsubscribeRequestParams
from genmcp.protocol.value import decoder_for
from genmcp.wire.jsonrpc import Message

__all__ = ["check_length", "check_names", "decoded", "notification_params", "session_params"]


class _CancelledParams(NotificationParams):
    """Cancellation in 2025-11-25, where `requestId` is optional because of experimental tasks."""

    request_id: RequestId | None = None


T = TypeVar("T")

_CANCELLED: Final = "notifications/cancelled"
_object_of_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any_object: Final = decoder_for(dict[str, Any])
_meta: Final = decoder_for(RequestMeta)
# An idempotency key makes a call run once: it must not be dropped silently.
_DROPPED: Final = frozenset(RequestMeta.__struct_encode_fields__) - {IDEMPOTENCY_KEY}


def decoded(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw) -> T:
    """Decode params; absent params are an empty object.

    Raises:
        MalformedParams: *decoder* does not accept them.
    """
    try:
        return decoder.decode(raw or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        data = error_data([decoding_fault(str(error))])
        raise MalformedParams(f"Invalid params: {error}", data) from None


def session_params(method: Method, raw: msgspec.Raw) -> tuple[RequestParams, msgspec.Raw]:
    """Decode the params of a request within a legacy session.

    Unusable members of `_meta` are left out: these revisions define only `progressToken`, and
    "implementations MUST NOT make assumptions about values" of other keys (2025-11-25, basic,
    "_meta"), which include those that only 2026-07-28 defines.

    Returns:
        The params, and their JSON without the members that were left out.

    Raises:
        MalformedParams: *method* does not accept them.
    """
    try:
        return decoded(method.params_decoder, raw), raw
    except MalformedParams:
        usable = _with_usable_meta(raw)
        if usable is None:
            raise
        return decoded(method.params_decoder, usable), usable


def notification_params(
    revision: Revision, message: Message
) -> NotificationParams | Mapping[str, Any]:
    """Decode the params of a notification.

    `null` counts as absent: some clients send it with `notifications/initialized`. For a
    notification that *revision* does not define, only the type is checked.

    Raises:
        MalformedParams: the params are not valid for the notification.
    """
    raw = b"" if bytes(message.params) == b"null" else message.params
    name = message.method or ""
    method = revision.methods.get(name)
    decoder = _any_object
    if name == _CANCELLED and not revision.modern:
        decoder = decoder_for(_CancelledParams)
    elif method is not None and method.is_notification:
        decoder = method.params_decoder
    params: NotificationParams | Mapping[str, Any] = decoded(decoder, raw)
    return params


def _with_usable_meta(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Return params without the unusable members of `_meta`; None if they have no `_meta`."""
    try:
        members = _object_of_raw(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    given = members.pop("_meta", None)
    if given is None:
        return None
    try:
        meta = _object_of_raw(given)
    except msgspec.DecodeError:
        meta = {}  # `_meta` is not an object
    usable = {key: value for key, value in meta.items() if _is_usable(key, value)}
    members["_meta"] = msgspec.Raw(msgspec.json.encode(usable))
    return msgspec.Raw(msgspec.json.encode(members))


def _is_usable(key: str, value: msgspec.Raw) -> bool:
    if key not in _DROPPED:
        return True
    try:
        _meta.decode(msgspec.json.encode({key: value}))
    except msgspec.DecodeError:
        return False
    return True


def check_length(name: str, most: int) -> None:
    """Check that a URI or *name* has at most *most* bytes in UTF-8.

    URIs and names are matched with templates, resolved as paths, stored with subscriptions and
    repeated in errors, so that a long one costs far more than its transfer.

    Raises:
        MalformedParams: it has more.
    """
    if len(name.encode()) > most:
        raise MalformedParams(
            f"Invalid params: a URI or name has more than {most} bytes (limit: max_uri_bytes)"
        )


def check_names(params: RequestParams, most: int) -> None:
    """Check the URIs and names in the *params* of methods that are not routed by a name.

    Raises:
        MalformedParams: one has more than *most* bytes.
    """
    match params:
        case CompleteRequestParams(ref=ref, argument=argument):
            check_length(ref.name if isinstance(ref, PromptReference) else ref.uri, most)
            check_length(argument.name, most)
        case SubscribeRequestParams(uri=uri) | UnsubscribeRequestParams(uri=uri):
            check_length(uri, most)
