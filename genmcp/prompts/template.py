"""Prompts that are texts with placeholders for their arguments.

| in a text | becomes |
|---|---|
| `{name}` | the argument *name*; empty if it was not given |
| `{?name?...}` | the text in between, if *name* was given and is not empty; otherwise empty |
| `{{` ... `}}` | single braces: `{{name}}` becomes `{name}` |
| any other brace | itself |

`{?name?...}` is a section. A section may contain placeholders and other sections; other braces in
it must be in pairs. Placeholders in the values of arguments are not replaced.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.component import Metadata, set_options
from genmcp.content import prompt_result
from genmcp.core.request import PromptRequest
from genmcp.errors import ConfigurationError, ContractError
from genmcp.prompts.prompt import Prompt
from genmcp.protocol.content import TextContent
from genmcp.protocol.prompts import GetPromptResult, PromptArgument, PromptMessage

_TOKEN: Final = re.compile(
    r"""
      \{\{                                # a brace, as is its pair
    | \{\?(?P<section>[^\W\d][\w.-]*)\?   # the begin of a section
    | \{(?P<place>[^\W\d][\w.-]*)\}
    | [{}]
    """,
    re.VERBOSE,
)


class _Place(msgspec.Struct, frozen=True):
    name: str

    def filled(self, values: Mapping[str, str]) -> str:
        return values.get(self.name, "")


class _Section(msgspec.Struct, frozen=True):
    name: str
    parts: Sequence["str | _Place | _Section"]

    def filled(self, values: Mapping[str, str]) -> str:
        return _filled(self.parts, values) if values.get(self.name) else ""


_Part = str | _Place | _Section


def _filled(parts: Sequence[_Part], values: Mapping[str, str]) -> str:
    return "".join([each if isinstance(each, str) else each.filled(values) for each in parts])


class Template:
    """A text with placeholders, parsed when it is made and then filled in any number of times.

    Attributes:
        names: the arguments that have placeholders or sections, in the order of the text.
        required: the arguments that have a placeholder outside of all sections.

    Raises:
        ConfigurationError: a section, or a `{{`, is not closed.
    """

    def __init__(self, text: str) -> None:
        self._parts = _parsed(text)
        self.names = tuple(dict.fromkeys(_names(self._parts)))
        self.required = frozenset(each.name for each in self._parts if isinstance(each, _Place))

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with *values* filled in."""
        return _filled(self._parts, values)


def _parsed(text: str) -> list[_Part]:
    parts: list[list[_Part]] = [[]]  # of the text and of each open section
    opened: list[re.Match[str]] = []
    at = 0
    # The text is parsed in one pass with a stack of open sections, in linear time.
    while token := _TOKEN.search(text, at):
        parts[-1].append(text[at : token.start()])
        at = token.end()
        if name := token["place"]:
            parts[-1].append(_Place(name))
        elif token["section"]:
            opened.append(token)
            parts.append([])
        elif token[0] != "}":
            # `{` and `{{` both become the text `{`. The token is kept on the stack, so that its
            # closing brace is not mistaken for the end of a section.
            opened.append(token)
            parts[-1].append("{")
        elif opened and (name := opened[-1]["section"]):
            opened.pop()
            inner = _Section(name, parts.pop())
            parts[-1].append(inner)
        else:
            if opened and opened.pop()[0] == "{{":
                if text[at : at + 1] != "}":
                    raise _unpaired(token, "a brace where `}}` was to end its `{{`")
                at += 1
            parts[-1].append("}")
    for token in opened:
        if token[0] != "{":
            raise _unpaired(token, f"`{token[0]}` is never ended")
    # Empty texts between two tokens have no effect.
    return [each for each in [*parts[0], text[at:]] if each != ""]


def _unpaired(token: re.Match[str], words: str) -> ConfigurationError:
    line = token.string.count("\n", 0, token.start()) + 1
    return ConfigurationError(f"line {line}: {words}")


def _names(parts: Sequence[_Part]) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, str):
            yield part.name
            if isinstance(part, _Section):
                yield from _names(part.parts)


class TemplateOptions(Metadata, total=False):
    """The attributes of a `PromptTemplate`, as keyword arguments."""

    arguments: Sequence[PromptArgument]
    completions: Mapping[str, Sequence[str]]
    messages: Any


class PromptTemplate(Prompt[dict[str, str]]):
    """A prompt without code. Its messages are texts with placeholders for the arguments.

        review = PromptTemplate(
            name="review",
            messages="Review this{?language? {language}} code:\\n{code}",
        )

    Pass the attributes, including those of `Prompt`, to the constructor, or set them in a subclass.

    Attributes:
        messages: a text, content, `user(...)`, `assistant(...)`, or a list of these. The head of
            this module describes the placeholders in their texts. Required.
        arguments: a list of PromptArgument. Default: the arguments with placeholders in the texts.
            An argument is then required if it has a placeholder outside of all sections.

    Raises:
        ConfigurationError: an attribute is invalid, a text cannot be parsed, or a text has a
            placeholder for an unknown argument.
    """

    description: str | None = None  # not the docstring of this class
    messages: Any = None

    def __init__(self, **options: Unpack[TemplateOptions]) -> None:
        owner = type(self).__name__
        set_options(self, owner, options, TemplateOptions.__annotations__)
        try:
            given = prompt_result(self.messages).messages
            self._messages = [_template_of(message) for message in given]
        except (ContractError, ConfigurationError) as error:
            raise ConfigurationError(f"{owner}.messages: {error}") from error
        templates = [each for each, _ in self._messages if each is not None]
        names = dict.fromkeys(name for template in templates for name in template.names)
        if self.arguments is None:
            required = frozenset().union(*(template.required for template in templates))
            self.arguments = [
                PromptArgument(name, required=name in required or None) for name in names
            ]
        self._check_places(owner, names)

    def _check_places(self, owner: str, names: Mapping[str, Any]) -> None:
        if not isinstance(self.arguments, list | tuple):
            raise ConfigurationError(f"{owner}.arguments must be a list of PromptArgument")
        known = [getattr(argument, "name", None) for argument in self.arguments]
        if unknown := [name for name in names if name not in known]:
            raise ConfigurationError(
                f"{owner}.messages: {unknown[0]} is no argument; braces around a word of the text "
                f"are written {{{{{unknown[0]}}}}}"
            )

    async def get(
        self, request: PromptRequest[dict[str, str]], channel: Channel
    ) -> GetPromptResult:
        """Return the messages, with the arguments of *request* in place of the placeholders."""
        values = request.arguments
        return GetPromptResult(
            messages=[
                message if template is None else _with_text(message, template.fill(values))
                for template, message in self._messages
            ]
        )


def _template_of(message: PromptMessage) -> tuple[Template | None, PromptMessage]:
    if isinstance(message.content, TextContent):
        return Template(message.content.text), message
    return None, message


def _with_text(message: PromptMessage, text: str) -> PromptMessage:
    content = msgspec.structs.replace(message.content, text=text)
    return PromptMessage(message.role, content)
