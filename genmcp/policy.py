"""How calls that run long are handled."""

from math import inf
from typing import Any, Final, Literal

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import ToolAnnotations

__all__ = ["HOLD", "NEVER_A_TASK", "RESULT_TOOL", "OnLost", "Policy", "TaskUse"]

RESULT_TOOL: Final = "get_call_result"
"""The tool that a client without tasks asks for the result of a call that was held over."""

HOLD: Final = 50.0
"""Seconds for which a call is held if its client can fetch the result later.

Many clients time out after 60 seconds, and would lose the result.
"""

TaskUse = Literal["never", "auto", "always"]
OnLost = Literal["rerun", "fail"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How long-running calls of one route are handled; times in seconds. See `Tool`.

    auto_hold: whether `max_hold` is `HOLD` if the result tool is offered, and None otherwise.

    Raises:
        ConfigurationError: a value is invalid.
    """

    task: TaskUse = "auto"
    requires_tasks: bool = False
    promote_after: float = 10.0
    result_ttl: float = 86400.0
    max_hold: float | None = None
    auto_hold: bool = False
    single_use: bool = False
    on_worker_lost: OnLost = "fail"

    @property
    def eager(self) -> bool:
        """Whether something has to be decided before the call runs."""
        return self.task == "always" or self.requires_tasks

    @classmethod
    def of(cls, owner: str, provider: Any, annotations: ToolAnnotations | None) -> "Policy":
        """Return the policy of *provider*, a tool.

        Raises:
            ConfigurationError: one is invalid; the message names *owner* and the attribute.
        """
        values = {name: getattr(provider, name) for name in _TIMES | _CHOICES.keys() | _FLAGS}
        if values["max_hold"] == "auto":
            values["max_hold"], values["auto_hold"] = None, True
        for name, allowed in _CHOICES.items():
            if values[name] not in allowed:
                taken = " or ".join(map(repr, allowed))
                raise ConfigurationError(f"{owner}.{name} must be {taken}, not {values[name]!r}")
        for name in _TIMES:
            value = values[name]
            if value is None and name == "max_hold":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
                raise ConfigurationError(
                    f"{owner}.{name} must be a positive number of seconds, not {value!r}"
                )
        if values["task"] == "never" and values["requires_tasks"]:
            raise ConfigurationError(f"{owner}: task = 'never', and requires_tasks: which?")
        if values["on_worker_lost"] is None:
            values["on_worker_lost"] = "rerun" if _may_rerun(annotations) else "fail"
        return cls(**values)


NEVER_A_TASK: Final = Policy(task="never")
"""The policy of prompts and resources."""

_TIMES = {"promote_after", "result_ttl", "max_hold"}
_FLAGS = {"requires_tasks", "single_use"}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "task": ("never", "auto", "always"),
    "on_worker_lost": ("rerun", "fail", None),
}


def _may_rerun(annotations: ToolAnnotations | None) -> bool:
    """Whether a tool says of itself that doing its work twice does no harm."""
    return annotations is not None and bool(
        annotations.idempotent_hint or annotations.read_only_hint
    )
