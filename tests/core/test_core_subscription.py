"""The changes that a subscriber may be notified of."""

import msgspec
import pytest

from genmcp.core.subscription import (
    PROMPTS,
    RESOURCES,
    TOOLS,
    ServerChange,
    acknowledgement,
    changes_of,
    completion,
    is_at_or_below,
    session_filter,
    supported_subset,
    updated,
)
from genmcp.protocol.capabilities import (
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.params import SUBSCRIPTION_ID
from genmcp.protocol.resources import SubscriptionFilter

ALL = ServerCapabilities(
    tools=ToolsCapability(list_changed=True),
    prompts=PromptsCapability(list_changed=True),
    resources=ResourcesCapability(list_changed=True, subscribe=True),
)
SILENT = ServerCapabilities(
    tools=ToolsCapability(), prompts=PromptsCapability(), resources=ResourcesCapability()
)
WANTED = SubscriptionFilter(
    tools_list_changed=True,
    prompts_list_changed=True,
    resources_list_changed=True,
    resource_subscriptions=["a:b", "a:c", "a:b"],
)


@pytest.mark.parametrize(
    ("uri", "subscribed", "concerned"),
    [
        ("x://a/1", "x://a/1", True),
        ("x://a/1/b", "x://a/1", True),
        ("x://a/1?page=2", "x://a/1", True),
        ("x://a/1#top", "x://a/1", True),
        ("x://a/1/b", "x://a/1/", True),
        ("file:///a", "file:///", True),
        ("x://a/12", "x://a/1", False),
        ("x://a/1", "x://a/1/b", False),
        ("x://a/1", "x://a/1/", False),
    ],
)
def test_update_of_a_part_is_one_of_the_resource(
    uri: str, subscribed: str, concerned: bool
) -> None:
    """A part begins after a slash, a question mark or a hash."""
    assert is_at_or_below(uri, subscribed) is concerned


def test_filter_keeps_the_supported_changes() -> None:
    """Every supported member, and each existing URI once."""
    received = supported_subset(WANTED, ALL, lambda uri: uri == "a:b")

    assert [TOOLS, PROMPTS, RESOURCES, updated("a:b")] == [*changes_of(received)]


@pytest.mark.parametrize("capabilities", [SILENT, ServerCapabilities()])
def test_filter_drops_undeclared_capabilities(capabilities: ServerCapabilities) -> None:
    """A capability that is not declared is left out, even if its component exists."""
    assert supported_subset(WANTED, capabilities, lambda uri: True) == SubscriptionFilter()


def test_filter_adds_nothing() -> None:
    """A member that is omitted or false stays out."""
    wanted = SubscriptionFilter(tools_list_changed=False)

    assert [*changes_of(supported_subset(wanted, ALL, lambda uri: True))] == []


def test_session_receives_lists_and_its_own_resources() -> None:
    """Before 2026-07-28 changes of lists need no subscription."""
    assert [TOOLS, PROMPTS, RESOURCES, updated("a:b")] == [
        *changes_of(session_filter(ALL, ["a:b"]))
    ]


@pytest.mark.parametrize("change", [TOOLS, updated("a:b")])
def test_change_has_its_subscription_and_resource(change: ServerChange) -> None:
    """Both are in the notification where they apply."""
    bare = msgspec.to_builtins(change.params())
    named = msgspec.to_builtins(change.params("x"))

    assert ({} if change is TOOLS else {"uri": "a:b"}) == bare
    assert {**bare, "_meta": {SUBSCRIPTION_ID: "x"}} == named


def test_first_and_last_message_name_the_subscription() -> None:
    """A client on a shared channel can distinguish the streams."""
    received = SubscriptionFilter(tools_list_changed=True)

    first, last = (
        msgspec.to_builtins(each) for each in (acknowledgement(received, 0), completion(0))
    )

    assert first == {"notifications": {"toolsListChanged": True}, "_meta": {SUBSCRIPTION_ID: 0}}
    assert last == {"_meta": {SUBSCRIPTION_ID: 0}}
