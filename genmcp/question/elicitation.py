"""Elicitation: forms and URLs for the user of the client (2026-07-28, client/elicitation)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar, overload
from urllib.parse import urlsplit

from genmcp.errors import ConfigurationError, ContractError
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.client_features import ElicitRequest, ElicitRequestParams
from genmcp.question.form import Form, form_of_schema, form_of_type
from genmcp.question.question import Elicited, Question, find_type, import_name, read_elicitation
from genmcp.question.urls import HTTPS, check_schemes, check_url

T = TypeVar("T")


@overload
def elicit(message: str, form: type[T]) -> Question[T]: ...
@overload
def elicit(message: str, form: Mapping[str, Any] | None = None) -> Question[dict[str, Any]]: ...
def elicit(message: str, form: Mapping[str, Any] | type | None = None) -> Question[Any]:
    """Ask the user to confirm, or to fill in a form.

        elicit("Delete 3 files?").then(self.delete)
        elicit("Who are you?", Contact).then(self.greet, self.say_goodbye)

    If the user accepts, the first method of `then` gets the content of the form: an instance of the
    type *form*, or a dict. Otherwise the second method gets `Declined()` or `Cancelled()`. The hook
    `continue_` gets `Done` with `Accepted(content)`, `Declined()` or `Cancelled()`. A form MUST NOT
    ask for secrets, since the client sees them; use `elicit_url`.

    Args:
        message: the text that is shown to the user.
        form: a struct, dataclass, TypedDict or pydantic model of texts, numbers, booleans, choices
            (`Literal` or an Enum of texts) and lists of choices, defined at the top level of a
            module; or a restricted JSON Schema (2026-07-28, client/elicitation, "Requested
            Schema"), which is sent unchanged. Default None: a confirmation without a form.

    Raises:
        ConfigurationError: (a ValueError) a form cannot have this type. The message names the
            property.
        ContractError: (a TypeError) the message is not a str, or empty.
    """
    _check_message("elicit", message)
    if form is None:
        return FormQuestion(message)
    if isinstance(form, Mapping):
        return FormQuestion(message, schema=form_of_schema(form).document)
    form_of_type(form)
    return FormQuestion(message, type_name=import_name(form))


def elicit_url(message: str, url: str, *, schemes: Sequence[str] = HTTPS) -> Question[None]:
    """Ask the user to open *url*, for an interaction that the client must not see.

    The outcome is `Done` with `Accepted()`, `Declined()` or `Cancelled()`. Accepted means that the
    user agreed to open the URL, not that the interaction is complete. The URL MUST NOT contain
    secrets and MUST NOT authenticate its user (2026-07-28, client/elicitation, "Safe URL
    Handling").

    Args:
        message: the text that is shown to the user.
        url: an absolute URL.
        schemes: further allowed schemes. https, and http to a loopback address, are always allowed.
            The list of the client (`ClientHandler.url_schemes`) must allow the scheme, too.

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
    """A question with a form, which is described by a schema or a type; or a confirmation."""

    method: ClassVar[str] = "elicitation/create"

    message: str
    schema: Mapping[str, Any] | None = None
    type_name: str | None = None

    def form(self) -> Form:
        """Return the form, which is cached for each schema and each type.

        Raises:
            ConfigurationError: the type is not found in this process, or cannot be a form.
        """
        if self.type_name is not None:
            return form_of_type(find_type(self.type_name))
        return form_of_schema(_NOTHING if self.schema is None else self.schema)

    @property
    def request(self) -> ElicitRequest:
        """The request the client gets."""
        return ElicitRequest(
            ElicitRequestParams(self.message, requested_schema=self.form().document, mode="form")
        )

    def missing_capabilities(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return the capability `elicitation`, or its member `form`, if the client lacks it."""
        if capabilities.elicitation is None:
            return {"elicitation": {}}
        return {} if capabilities.elicitation.takes_forms else {"elicitation": {"form": {}}}

    def read(self, answer: Any) -> Elicited:
        """Return the decision of the user; if accepted, with the validated content of the form."""
        return read_elicitation(answer, self.form().read)


class UrlQuestion(Question, frozen=True, tag="url"):
    """A question with a URL for the user to open."""

    method: ClassVar[str] = "elicitation/create"

    message: str
    url: str

    @property
    def request(self) -> ElicitRequest:
        """The request the client gets."""
        return ElicitRequest(ElicitRequestParams(self.message, url=self.url, mode="url"))

    def missing_capabilities(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return the member `url` of the capability `elicitation` if the client lacks it."""
        elicitation = capabilities.elicitation
        able = elicitation is not None and elicitation.takes_urls
        return {} if able else {"elicitation": {"url": {}}}

    def read(self, answer: Any) -> Elicited:
        """Return the decision of the user. Content in *answer* is ignored."""
        return read_elicitation(answer, lambda content: None)


def _check_message(owner: str, message: Any) -> None:
    if not isinstance(message, str) or not message.strip():
        raise ContractError(f"{owner}: the message must be a non-empty str, not {message!r}")


def host_of(url: str) -> str:
    """Return the host of a URL that passed `check_url`; empty if it has none."""
    return urlsplit(url).hostname or ""
