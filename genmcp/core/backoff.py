"""Exponential backoff, for jobs, requests, event streams and connections."""


def backoff(failures: int, first: float, limit: float) -> float:
    """Return the seconds to wait after a number of failures in a row: doubling from *first*.

    Args:
        failures: failed attempts in a row; 0 for no delay.
        first: the delay after the first failure.
        limit: the longest delay.
    """
    # The exponent is bounded, since a float overflows at 2 ** 1024.
    return min(first * 2.0 ** min(failures - 1, 64), limit) if failures else 0.0
