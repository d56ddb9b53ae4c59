"""JSON Pointers (RFC 6901)."""

__all__ = ["escaped", "joined"]


def joined(pointer: str, *steps: str | int) -> str:
    """Return *pointer* with *steps* added."""
    return pointer + "".join("/" + escaped(str(step)) for step in steps)


def escaped(step: str) -> str:
    """Return *step* as it is written in a pointer."""
    if "~" in step or "/" in step:
        return step.replace("~", "~0").replace("/", "~1")
    return step
