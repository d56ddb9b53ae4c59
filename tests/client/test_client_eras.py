"""What a client remembers of servers it has met."""

from genmcp.client.eras import Eras


def test_eras_are_remembered_until_found_otherwise() -> None:
    """A server's revision is known until it speaks another."""
    eras = Eras()
    eras.remember("http://a", "2025-06-18")
    assert eras.get("http://a") == "2025-06-18"
    eras.remember("http://a", "2026-07-28")
    assert eras.get("http://a") == "2026-07-28"


def test_eras_forget_the_server_met_longest_ago() -> None:
    """The memory is bounded."""
    eras = Eras(2)
    for server in ("a", "b", "a", "c"):
        eras.remember(server, "2026-07-28")
    assert [eras.get(server) is None for server in "abc"] == [False, True, False]
