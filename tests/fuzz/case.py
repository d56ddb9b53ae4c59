"""One case of the endpoint fuzzer: an HTTP request, and the behaviour of its client."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Headers = Sequence[tuple[bytes, bytes]]
Ending = Literal["whole", "cut", "hangs"]


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        ending: the event after the parts of the body: none (it was complete), a disconnect, or
            silence although more was announced.
        leaves: the number of loop iterations after the body until the client disconnects;
            None: it waits for the response.
        fails: the number of messages after which `send` raises, as ASGI servers do after a
            disconnect; None: never.
    """

    method: str = "POST"
    path: str = "/mcp"
    peer: str | None = "192.0.2.1"
    headers: Headers = ()
    parts: Sequence[bytes] = (b"",)
    ending: Ending = "whole"
    leaves: int | None = None
    fails: int | None = None

    @property
    def body(self) -> bytes:
        """All sent parts of the body."""
        return b"".join(self.parts)

    @property
    def stays(self) -> bool:
        """Whether the client waits for the response. A stream (GET) would not end."""
        patient = self.leaves is None and self.fails is None and self.ending != "cut"
        return patient and self.method != "GET"

    def text(self, names: Mapping[bytes, bytes]) -> str:
        """Return the case as one line. The keys of *names* are replaced by their values.

        Session ids are replaced by names, so that the line is valid in another process.
        """
        fields = {name: value for name, value in vars(self).items() if value != _DEFAULTS[name]}
        if "headers" in fields:
            pairs = [(name, _replaced(value, names)) for name, value in self.headers]
            fields["headers"] = [[name.decode("latin-1"), v.decode("latin-1")] for name, v in pairs]
        if "parts" in fields:
            fields["parts"] = [part.decode("latin-1") for part in self.parts]
        return json.dumps(fields)

    @classmethod
    def parse(cls, text: str, names: Mapping[bytes, bytes]) -> "Case":
        """Return the case of a line that `text` returned; *names* are those of this process."""
        fields = json.loads(text)
        if "headers" in fields:
            values = {name: value for value, name in names.items()}
            fields["headers"] = tuple(
                (name.encode("latin-1"), _replaced(value.encode("latin-1"), values))
                for name, value in fields["headers"]
            )
        if "parts" in fields:
            fields["parts"] = tuple(part.encode("latin-1") for part in fields["parts"])
        return cls(**fields)


_DEFAULTS = vars(Case())


def _replaced(value: bytes, names: Mapping[bytes, bytes]) -> bytes:
    for old, new in names.items():
        value = value.replace(old, new)
    return value
