"""Escaping of text from a peer for logs and terminals."""

__all__ = ["printable"]


def printable(text: str, length: int = 200) -> str:
    """Return the first *length* characters of *text* with unprintable ones escaped.

    Line ends, control characters and terminal sequences from a peer could otherwise forge log
    records, or control the terminal that shows them. A cut is marked with `...`.
    """
    shown = text if len(text) <= length else text[:length] + "..."
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )
