"""Text of a peer, made fit for a log or a terminal."""

__all__ = ["printable"]


def printable(text: str, length: int = 200) -> str:
    """Return *text* with its unprintable characters escaped, cut to about *length* characters.

    Line ends, control characters and terminal sequences in what a peer sends would otherwise forge
    log lines, or change the terminal that shows them.
    """
    shown = text if len(text) <= length else text[:length] + "..."
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )
