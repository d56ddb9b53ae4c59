"""Text of a server, bare of what a terminal would obey."""

__all__ = ["line", "plain"]


def plain(text: str) -> str:
    """Return *text* of a server without what a terminal would obey."""
    return "".join(each for each in text if each.isprintable() or each in "\n\t")


def line(text: str) -> str:
    """Return *text* of a server in one line."""
    return " ".join(plain(text).split())
