"""The template itself."""

from collections.abc import Mapping
from typing import Any, Final

from genmcp.errors import ConfigurationError
from genmcp.uri_template.expansion import expand
from genmcp.uri_template.grammar import Expression, parse
from genmcp.uri_template.matching import Matcher

__all__ = ["UriTemplate"]


class UriTemplate:
    """A URI with variables in it: RFC 6570, all four levels.

        books = UriTemplate("library://{shelf}/books{/path*}{?page}")
        books.expand({"shelf": "top", "path": ["a", "b"]})  # library://top/books/a/b
        books.match("library://top/books/a/b?page=2")
        # {"shelf": "top", "path": ["a", "b"], "page": "2"}

    text: the template as it was given. variables: their names, each once, as they stand in it.
    prefix: what every URI of it begins with.

    Raises:
        ConfigurationError: it is no template; or nothing tells where the variables end that
            stand in it with their names (`{?x}{&y}`: write `{?x,y}`).
    """

    __slots__ = ("_matcher", "_parts", "prefix", "text", "variables")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigurationError(f"a URI template is a text, not {text!r}")
        self.text: Final = text
        self._parts = parse(text)
        expressions = [part for part in self._parts if isinstance(part, Expression)]
        names = [variable.name for each in expressions for variable in each.variables]
        self.variables: Final = tuple(dict.fromkeys(names))
        first = self._parts[0] if self._parts else ""
        self.prefix: Final = first if isinstance(first, str) else ""
        try:
            self._matcher = Matcher(self._parts[1:] if self.prefix else self._parts)
        except ConfigurationError as error:
            raise ConfigurationError(f"URI template {text!r}: {error}") from None

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UriTemplate) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def expand(self, values: Mapping[str, Any]) -> str:
        """Return the URI with *values*: texts, numbers, and lists and mappings of these.

        A variable that is not among them, or None, or empty as a list or mapping, is left out.

        Raises:
            ContractError: a value is something else; or a list where `{name:3}` wants a text.
        """
        return expand(self._parts, values)

    def match(self, uri: str) -> dict[str, Any] | None:
        """Return the variables of *uri*, or None if it does not match.

        A variable is a text, percent-decoded once; an exploded one (`{name*}`) is a list of
        texts, empty if it is not there. What is missing is not in the dict, except that `{name}`
        and `{+name}` are then the empty text. Names (`{?x,y}`) may stand in any order. Lists
        without `*`, and mappings, expand, but do not match.

        Where a URI may be read in more than one way, what may be there is there, from the left,
        and takes as little as it can: `{name}{.type}` reads `a.tar.gz` as `a` and `tar.gz`.
        Only then is looked whether a variable that stands twice says the same, and whether
        `{name:3}` has at most 3 characters.
        """
        if not uri.startswith(self.prefix):
            return None
        return self._matcher.match(uri[len(self.prefix) :])
