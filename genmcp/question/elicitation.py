"""Asking the client's user: 2026-07-28, client/elicitation."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar, overload

from genmcp.errors import ConfigurationError, ContractError
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.elicitation import ElicitRequest, ElicitRequestParams
from genmcp.question.answers import Elicited, elicited
from genmcp.question.form import Form, form_of_schema, form_of_type
from genmcp.question.names import name_of, type_named
from genmcp.question.question import Question
from genmcp.question.urls import HTTPS, check_schemes, check_url

__all__ = ["FormQuestion", "UrlQuestion", "elicit", "elicit_url"]

T = TypeVar("T")


@overload
def elicit(message: str, asked: type[T]) -> Question[T]: ...
@overload
def elicit(message: str, asked: Mapping[str, Any] | None = None) -> Question[dict[str, Any]]: ...
def elicit(message: str, asked: Mapping[str, Any] | type | None = None) -> Question[Any]:
    """Ask the user to agree, or to fill in a form.

        elicit("Delete 3 files?").then(self.delete)
        elicit("Who are you?", Contact).then(self.greet, self.say_goodbye)

    asked: what to fill in. A struct, dataclass, TypedDict or pydantic model of texts, numbers,
        booleans, choices (`Literal` or an Enum of texts) and lists of choices, defined at the top
        level of a module; or a JSON Schema of the restricted form (2026-07-28, client/elicitation,
        "Requested Schema"), which is sent as it is. None asks for a yes or no alone.

    `then` gives what the user filled in to its first method, the type asked for or else a dict, and
    a `Declined()` or `Cancelled()` to its second one. The outcome for `continue_` is `Done` with
    `Accepted(content)`, `Declined()` or `Cancelled()`. Secrets MUST NOT be asked for like this,
    since the client sees them: that is what `elicit_url` is for.

    Raises:
        ConfigurationError: (a ValueError) a form may not ask for this; names the property.
        ContractError: (a TypeError) the message is no text.
    """
    _check_message("elicit", message)
    if asked is None:
        return FormQuestion(message)
    if isinstance(asked, Mapping):
        return FormQuestion(message, schema=form_of_schema(asked).document)
    form_of_type(asked)
    return FormQuestion(message, type_name=name_of(asked))


def elicit_url(message: str, url: str, *, schemes: Sequence[str] = HTTPS) -> Question[None]:
    """Ask the user to open *url*, for an interaction that the client must not see.

    The outcome is `Done` with `Accepted()`, `Declined()` or `Cancelled()`. Accepted means that the
    user agreed to open the URL, not that the interaction is complete. The URL MUST NOT contain
    secrets and MUST NOT authenticate its user (2026-07-28, client/elicitation, "Safe URL
    Handling").

    Args:
        message: the text that is shown to the user.
        url: an absolute URL.
        schemes: the schemes that are allowed besides https and http to loopback; default: none. A
            client has its own list (`ClientOptions.url_schemes`), which must allow the scheme, too.

    Raises:
        ConfigurationError: (a ValueError) the URL is not absolute, its scheme is not allowed, or
            *schemes* is invalid.
        ContractError: (a TypeError) the message is not a str.
    """
    _check_message("elicit_url", message)
    check_schemes("elicit_url: schemes", schemes)
    try:
        check_url(url, schemes)
    except ConfigurationError as error:
        raise ConfigurationError(f"elicit_url: {error}") from None
    return UrlQuestion(message, url)


_NOTHING: Final = {"type": "object", "properties": {}}


class FormQuestion(Question, frozen=True, tag="form"):
    """A question for a form: for nothing, for what a *schema* describes, or for a type."""

    method: ClassVar[str] = "elicitation/create"

    message: str
    schema: Mapping[str, Any] | None = None
    type_name: str | None = None

    def form(self) -> Form:
        """Return the form.

        Raises:
            ConfigurationError: its type is not found in this process, or is no form there.
        """
        if self.type_name is not None:
            return form_of_type(type_named(self.type_name))
        return form_of_schema(_NOTHING if self.schema is None else self.schema)

    @property
    def request(self) -> ElicitRequest:
        """The request the client gets."""
        return ElicitRequest(
            ElicitRequestParams(self.message, requested_schema=self.form().document, mode="form")
        )

    def lacking(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return `elicitation`, or its `form`, if the client shows no forms."""
        if capabilities.elicitation is None:
            return {"elicitation": {}}
        return {} if capabilities.elicitation.takes_forms else {"elicitation": {"form": {}}}

    def read(self, answer: Any) -> Elicited:
        """Return what the user did, and filled in."""
        return elicited(answer, self.form().read)


class UrlQuestion(Question, frozen=True, tag="url"):
    """A question whether the user goes to a URL."""

    method: ClassVar[str] = "elicitation/create"

    message: str
    url: str

    @property
    def request(self) -> ElicitRequest:
        """The request the client gets."""
        return ElicitRequest(ElicitRequestParams(self.message, url=self.url, mode="url"))

    def lacking(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return the `url` of `elicitation`, if the client sends its user nowhere."""
        elicitation = capabilities.elicitation
        able = elicitation is not None and elicitation.takes_urls
        return {} if able else {"elicitation": {"url": {}}}

    def read(self, answer: Any) -> Elicited:
        """Return whether the user agreed; there is no content, whatever the client says."""
        return elicited(answer, lambda content: None)


def _check_message(owner: str, message: Any) -> None:
    if not isinstance(message, str) or not message.strip():
        raise ContractError(f"{owner}: the message must be a text for the user, not {message!r}")
