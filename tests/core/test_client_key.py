"""The client that a request counts towards."""

import pytest

from genmcp.core.client_key import LOCAL, ClientKey, address_of

ANONYMOUS = ("anonymous", "")


def test_principal_counts_for_itself_only() -> None:
    """An authenticated client shares nothing with the other clients of its address."""
    key = ClientKey("ada", "session", "10.0.0.1")

    assert key.shares == (("principal", "ada"),)
    assert key.client == "principal ada"


def test_anonymous_session_counts_for_its_address_too() -> None:
    """A client opens sessions at will: a session alone bounds nothing."""
    key = ClientKey(None, "s1", "10.0.0.1")

    assert key.shares == (("session", "s1"), ("address", "10.0.0.1"), ANONYMOUS)
    assert key.client == "address 10.0.0.1"


def test_anonymous_request_counts_for_its_address() -> None:
    """The address may be unknown, behind a Unix socket for example."""
    assert ClientKey(None, None, "").shares == (("address", ""), ANONYMOUS)


def test_local_client_has_no_share() -> None:
    """It is the only client of its process or pipe."""
    assert LOCAL.shares == ()
    assert LOCAL.client == ""


@pytest.mark.parametrize(
    ("key", "anonymous"),
    [(LOCAL, False), (ClientKey("ada"), False), (ClientKey(None, "s1", ""), True)],
)
def test_client_is_anonymous_if_it_is_one_of_many(key: ClientKey, anonymous: bool) -> None:
    """Without a principal, one at the other end of a pipe is known all the same."""
    assert key.is_anonymous is anonymous


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("tenant-7", "tenant-7"),
        ("", ""),
    ],
)
def test_ipv6_addresses_count_by_their_network(peer: str, counted: str) -> None:
    """One machine has a whole /64; other text comes from `client_key=`."""
    assert counted == address_of(peer)
