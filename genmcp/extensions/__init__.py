"""Extensions of the protocol (SEP-2133): your own, skills (SEP-2640), and apps (SEP-1865).

Nothing else of the package loads these modules before a server or client has an extension. Each
name is imported at its first use.
"""

from importlib import import_module as _import_module

# Type checkers read `__init__.pyi`, which names the same.
_LATER = {
    "App": "genmcp.extensions.apps",
    "Csp": "genmcp.extensions.apps",
    "Extended": "genmcp.extensions.serving",
    "Extension": "genmcp.extensions.extension",
    "Method": "genmcp.protocol.methods",
    "NotificationParams": "genmcp.protocol.params",
    "PaginatedRequestParams": "genmcp.protocol.params",
    "PaginatedResult": "genmcp.protocol.value",
    "RequestParams": "genmcp.protocol.params",
    "Result": "genmcp.protocol.value",
    "Skill": "genmcp.extensions.remote_skills",
    "SkillRejected": "genmcp.extensions.remote_skills",
    "Skills": "genmcp.extensions.skills",
}
__all__ = [*_LATER]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Import the value of *name* at its first access (PEP 562)."""
    place = _LATER.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(place), name)
    return value
