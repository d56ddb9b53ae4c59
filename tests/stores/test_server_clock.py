"""The estimate of a server's clock."""

from genmcp.stores.clocks import ServerClock, steady


def test_slow_sample_counts_only_if_it_is_the_first() -> None:
    """A clock that is a minute off is worse than one that is off by a second."""
    clock, now = ServerClock(), steady()

    clock.measure(now - 2, now, 1_000.0)
    assert 999 <= clock.real() < 1_002

    clock.measure(now - 2, now, 5_000.0)
    assert clock.real() < 1_002

    clock.measure(now, now, 3_000.0)
    assert 3_000 <= clock.real() < 3_001
