"""`Resource`, a single resource, and `ResourceRepo`, all resources with one prefix of their URIs.

class Books(ResourceRepo):
    \"\"\"The books of the library.\"\"\"

    name = "book"
    template = "library://books/{id}"

    async def list(self, cursor: Any, channel: Channel) -> Any:
        page, cursor = await books_after(cursor)
        return [ResourceDefinition(f"library://books/{b.id}", b.title) for b in page], cursor

    async def read(self, key: dict[str, str], channel: Channel) -> Any:
        return await book(key["id"])  # None if there is no such book
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import isfunction
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.component import (
    DescribedComponent,
    Metadata,
    annotations_of,
    check_continues,
    check_metadata,
    definition_of,
    instance_of,
    set_options,
)
from genmcp.component_route import ComponentRoute
from genmcp.content import contents_of, size_of
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError, ResourceNotFound
from genmcp.hook import Hook, overrides
from genmcp.protocol.content import Annotations, ResourceDefinition
from genmcp.protocol.resources import ReadResourceResult, ResourceTemplateDefinition
from genmcp.protocol.value import CacheScope, Result
from genmcp.signature import Signature, name_of
from genmcp.text_arguments import TextArguments, text_arguments
from genmcp.uri_template import UriTemplate

# A scheme and the characters of a URI (RFC 3986, appendix A). The structure after the scheme is
# not checked.
_URI = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*:(?:[!#$&-;=?-Z\[\]_a-z~]|%[0-9A-Fa-f]{2})*""")


class Description(Metadata, total=False):
    """The attributes of `ReadableComponent`, as keyword arguments."""

    mime_type: str
    annotations: Annotations | Mapping[str, Any]
    cache_ttl: float
    cache_scope: CacheScope


class ReadableComponent(DescribedComponent):
    """The base of `Resource` and `ResourceRepo`: the metadata of their list entries.

    Attributes:
        name: as listed. Default None.
        title: a name for people, as listed. Default None.
        description: as listed. Default: the docstring of the class.
        icons: as listed. Default: no icons.
        meta: the `_meta` of the list entry. Default None.
        mime_type: the media type of contents that do not state one. Default None.
        annotations: annotations, or a mapping of them (`{"audience": ["user"], "priority": 0.5}`).
            Default None.
        cache_ttl: seconds for which a client may cache contents and list entries. Default 0.
        cache_scope: "public" if a cache may share them between users, else "private". Default
            "private".
        scopes: the scopes of an access token that reads, subscriptions and completions need, see
            `ServerComponent`. Default: none.
    """

    __genmcp_hook__ = "read"

    name: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | Mapping[str, Any] | None = None

    def describe(self, attributes: Description) -> None:
        """Set *attributes* on this instance.

        Raises:
            ConfigurationError: an attribute does not exist.
        """
        set_options(self, type(self).__name__, attributes, Description.__annotations__)

    def check(self) -> None:
        """Check the attributes.

        Raises:
            ConfigurationError: an attribute is invalid; the message names it and the class.
        """
        owner = getattr(self, "__name__", type(self).__name__)
        attributes = {key: getattr(self, key) for key in Description.__annotations__}
        check_metadata(owner, attributes, annotations=Annotations)
        given = self.given_annotations
        if given is not None and given.priority is not None and not 0 <= given.priority <= 1:
            raise ConfigurationError(
                f"{owner}.annotations: priority must be 0 to 1, not {given.priority!r}"
            )

    @property
    def given_annotations(self) -> Annotations | None:
        """The annotations as a struct; None if they are not set.

        Raises:
            ConfigurationError: an annotation is unknown, or of another type.
        """
        return annotations_of(type(self).__name__, self.annotations, Annotations)


class Resource(ReadableComponent):
    """One resource: its URI, and its contents or a function that returns them.

        Resource("config://app", {"debug": False}, name="configuration")
        Resource("docs://{+page}", read_page, name="documentation", mime_type="text/markdown")

    Pass the attributes to the constructor, or set them in a subclass. A subclass may write the
    hook `read` instead of setting `content`.

    Attributes:
        uri: the URI; or a URI template (`files://{path}`), if *content* is a function. Required.
        content: one of the values that `genmcp.content` lists; or a function that returns such a
            value for each read, or None if the resource does not exist, as under `@resource`: its
            parameters are the variables of the template, or annotated `Channel`. Default: call
            `read`.
        name: as listed. Default: the name of the function, or the URI.
        title: a name for people, as listed. Default None.
        description: as listed. Default: the docstring of the function.
        icons: as listed. Default: no icons.
        meta: the `_meta` of the list entry. Default None.
        annotations: as of `ReadableComponent`. Default None.
        mime_type: the media type of contents that do not state one. Default None.
        size: the size in bytes, as listed. Default: the size of `content` if it is a value.
        cache_ttl: seconds for which a client may cache contents and list entries. Default 0.
        cache_scope: "public" if a cache may share them between users, else "private". Default
            "private".
        scopes: the scopes of an access token that reads, subscriptions and completions need, see
            `ServerComponent`. Default: none.

    Raises:
        ConfigurationError: an attribute does not exist. An invalid value of an attribute is
            reported when the resource is registered.
    """

    description: str | None = None
    uri: str
    content: Any = msgspec.UNSET
    size: int | None = None

    def __init__(
        self,
        uri: str | None = None,
        content: Any = msgspec.UNSET,
        *,
        size: int | None = None,
        **attributes: Unpack[Description],
    ) -> None:
        for key, value in (("uri", uri), ("size", size)):
            if value is not None:
                setattr(self, key, value)
        if content is not msgspec.UNSET:
            self.content = content
        self.describe(attributes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'uri', '')}>"

    def read(self, uri: str, channel: Channel, /) -> Any:
        """Return the contents of the resource, or a `Continue` to wait before.

        `genmcp.content` lists the values that are contents.

        Raises:
            ResourceNotFound: the resource does not exist. Returning None has the same effect.
        """
        raise NotImplementedError

    @property
    def has_function(self) -> bool:
        """Whether a function returns the contents, and not `read`; a template needs one."""
        is_template = "{" in str(getattr(self, "uri", ""))
        return is_template or (callable(self.content) and not overrides(self, "read", Resource))

    def check(self) -> None:
        """Check the attributes, including the URI and the size."""
        super().check()
        owner = type(self).__name__
        uri = getattr(self, "uri", None)
        if not isinstance(uri, str) or not _URI.fullmatch(uri):
            raise ConfigurationError(f"{owner}.uri must be a URI (RFC 3986), not {uri!r}")
        if not isinstance(self.size, int | None) or (self.size is not None and self.size < 0):
            raise ConfigurationError(f"{owner}.size must be bytes, not {self.size!r}")
        empty = self.content is msgspec.UNSET or self.content is None
        if empty and not overrides(self, "read", Resource):
            raise ConfigurationError(f"{owner} {uri} has no content")


class ResourceRepo(ReadableComponent):
    """All resources with one prefix of their URIs. Subclass it and write `read`.

    The hooks may be `def` or `async def`. A `def list`, `read` or `complete` runs in a pool of
    threads, so that it may block. A `def parse_uri` runs on the event loop and must not block.

    Attributes:
        prefix: the prefix of the URIs. A URI that several components cover is served by the one
            that was registered first. Default: the text of `template` before its first variable.
        template: a URI template (RFC 6570). If it is set, the repository is listed among the
            resource templates, under `name`. Default None.
        name, title, description, icons, meta, annotations, mime_type: as of `ReadableComponent`;
            they are listed with the template.
        cache_ttl: seconds for which a client may cache contents and list entries. Default 0.
        cache_scope: "public" if a cache may share them between users, else "private". Default
            "private".
        scopes: the scopes of an access token that reads, subscriptions and completions need, see
            `ServerComponent`. Default: none.
        shared: whether another server behind a hub or registry may have what this one does not,
            since they have the same prefix. Default False.

    Raises:
        ConfigurationError: an attribute is invalid, or `read` is missing. Raised when the
            repository is registered.
    """

    description: str | None = None
    prefix: str | None = None
    template: str | UriTemplate | None = None
    shared = False  # without an annotation: of classes, and no option of `@resource`

    def parse_uri(self, uri: str) -> Any:
        """Return the key that `read` gets for *uri*; None if no such resource exists.

        The default key is a dict of the variables of the template; *uri* itself without a template.
        """
        return uri if self.template is None else template_of(self.template).match(uri)

    def list(self, cursor: Any, channel: Channel, /) -> Any:
        """Return one page of the repository: a list of ResourceDefinition, or a list and a cursor.

        *cursor* is None for the first page, then the cursor that was returned with the previous
        page. A cursor is any JSON value. A page without a cursor is the last one. A page may have
        any number of resources: the suite divides them into pages of the size that clients get.

        Raises:
            InvalidParams: the cursor is out of date.
        """
        return ()

    def read(self, key: Any, channel: Channel, /) -> Any:
        """Return the contents of the resource *key*, or a `Continue` to wait before.

        *key* is the result of `parse_uri`. `genmcp.content` lists the values that are contents.

        Raises:
            ResourceNotFound: the resource does not exist. Returning None has the same effect.
        """
        raise NotImplementedError

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel, /
    ) -> Any:
        """Return completions of *value* for the variable *argument* of the template.

        *context* has the values of other variables. The hook returns a list of texts, the likeliest
        first; or a `Completion`; or None for a variable without completions.
        """
        return None


@lru_cache
def template_of(template: str | UriTemplate) -> UriTemplate:
    """Return *template* as a `UriTemplate`; parse it if it is a str."""
    return template if isinstance(template, UriTemplate) else UriTemplate(template)


class ResourceRoute(ComponentRoute, frozen=True, kw_only=True):
    """The route of a resource, or of a repository of resources.

    `ttl_ms` and `cache_scope` apply to the contents too.

    Attributes:
        fixed: the result of every read if the content is a value; None if *reader* returns it.
    """

    provider: ReadableComponent
    reader: Hook | None = None
    parse_uri: Callable[[str], Any] | None = None
    fixed: ReadResourceResult | None = None

    @classmethod
    def of(cls, provider: object) -> "ResourceRoute":
        """Return the route of *provider*: a Resource or ResourceRepo, or a class of them.

        Raises:
            ConfigurationError: *provider* is neither of them, or an attribute is invalid.
        """
        made = instance_of(provider, ReadableComponent)
        if made is None:
            raise ConfigurationError(
                f"{provider!r} is not a resource: give a Resource, a ResourceRepo or its class, or "
                f"a function under @resource"
            )
        if isinstance(made, ResourceRepo):
            return _of_repo(made)
        if isinstance(made, Resource) and not made.has_function:
            return _of_resource(made)
        return TemplateRoute.of(made)

    @property
    def pattern(self) -> str:
        """The URI; or for several URIs their prefix, followed by `*`."""
        return self.key + "*" if self.is_prefix else self.key

    def key_of(self, definition: Any) -> str:
        """Return the URI of *definition*, which the `list` hook of the repository returned."""
        if type(definition) is not ResourceDefinition:
            raise self.broken("list", definition, "each resource must be a ResourceDefinition")
        return definition.uri

    async def handle(self, request: Request, channel: Channel) -> ReadResourceResult | Continue:
        """Read the resource that *request* names, and return its contents or a wait.

        Raises:
            ResourceNotFound: the hook returned None, or raised this error.
        """
        if self.fixed is not None:
            return self.fixed
        assert self.reader is not None
        try:
            request = await self.prepare_on(request, channel)
            value = await self.reader(channel, self.first_of(request), channel)
        except ResourceNotFound as error:
            raise _not_found(request) from error
        if value is None:
            raise _not_found(request)
        if type(value) is Continue:
            return self.waiting("read", value)
        return self.result_of("read", value, request)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a read after its wait, and return the contents or another wait.

        Raises:
            ResourceNotFound: the resource does not exist.
        """
        try:
            step = await super().resume(continuation, outcome, channel)
        except ResourceNotFound as error:
            raise _not_found(channel.request) from error
        if isinstance(step, ReadResourceResult) and continuation.names:
            # A result that depends on the user's answers MUST NOT be cached (2026-07-28, caching,
            # "Cache Key").
            return replace(step, ttl_ms=0, cache_scope="private")
        return step

    def first_of(self, request: Request) -> Any:
        """Return the key of the requested resource."""
        return request.arguments

    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return a copy of *request* with, as arguments, the key of the requested resource.

        Raises:
            ResourceNotFound: `parse_uri` returned None for the URI.
        """
        uri: str = request.params.uri  # type: ignore[attr-defined]
        key = uri if self.parse_uri is None else self.parse_uri(uri)
        if inspect.isawaitable(key):
            key = await key
        if key is None:
            raise ResourceNotFound(uri)
        return replace(request, arguments=key)

    def result_of(self, hook: str, value: Any, request: Request) -> ReadResourceResult:
        """Convert *value*, which *hook* has returned, to the result of the read.

        Raises:
            ContractError: the hook must not return such a value.
        """
        if isinstance(value, ReadResourceResult):
            return value
        uri: str = request.params.uri  # type: ignore[attr-defined]
        try:
            contents = contents_of(value, uri, self.provider.mime_type)
        except ContractError as error:
            raise self.broken(hook, value, str(error)) from error
        return ReadResourceResult(
            contents=contents, ttl_ms=self.ttl_ms, cache_scope=self.cache_scope
        )


class TemplateRoute(ResourceRoute, frozen=True, kw_only=True):
    """The route of a function, which gets the variables of a URI template as its parameters.

    Attributes:
        uri: the template; a URI without variables is one, too.
        variables: the types of the variables.
    """

    uri: UriTemplate
    variables: TextArguments

    @classmethod
    def of(cls, provider: Any) -> "TemplateRoute":
        """Return the route of a function under `@resource`, or of a `Resource` with a function.

        Raises:
            ConfigurationError: the URI is not a template, its variables are not the parameters of
                the function, or an attribute is invalid.
        """
        ReadableComponent.check(provider)
        function = getattr(provider, "_function", None) or _function_of(provider)
        owner, uri = name_of(function), template_of(provider.uri)
        signature = getattr(provider, "_signature", None)
        if signature is None:  # a Resource
            check_continues(owner, function, provider)
            signature = Signature.of(function, decorator="Resource")
        _check_variables(owner, uri, signature)
        listed = _listed(provider, function, uri.text)
        variables = text_arguments(signature.arguments)
        route = cls(
            owner=owner,
            place=uri.text,
            key=uri.prefix,
            is_prefix=bool(uri.variables),
            uri=uri,
            variables=variables,
            reader=Hook(signature.hook(function), inspect.iscoroutinefunction(function)),
            lister=Hook.of(provider, "list", ReadableComponent),
            **cls.members_of(provider),
        )
        if route.is_prefix:
            return replace(
                route, **_template(owner, provider, uri, listed, options=variables.options)
            )
        for hook in ("list", "complete"):
            if getattr(provider, hook, None) is not None:
                raise ConfigurationError(f"{owner}: {uri.text} has no variables: remove {hook}")
        definition = definition_of(ResourceDefinition, owner, listed, uri=uri.text)
        return replace(route, definition=definition)

    @property
    def pattern(self) -> str:
        """The template, by which `Suite.remove` finds the resource."""
        return self.uri.text

    def first_of(self, request: Request) -> Any:
        """Return *request*, whose arguments are the variables."""
        return request

    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return a copy of *request* with the variables of its URI as arguments.

        Raises:
            ResourceNotFound: the URI is not one of the template.
            InvalidParams: a variable does not have the type of its parameter.
        """
        uri: str = request.params.uri  # type: ignore[attr-defined]
        found = self.uri.match(uri)
        if found is None:
            raise ResourceNotFound(uri)
        arguments = self.variables.read(found, f"Invalid variables in {uri}", uri=uri)
        return replace(request, arguments=arguments)


def _function_of(provider: Any) -> Any:
    """Return the function that is the content of *provider*, a Resource."""
    if isfunction(provider.content) or inspect.ismethod(provider.content):
        return provider.content
    raise ConfigurationError(
        f"{type(provider).__name__} {provider.uri}: its content is a value or a function; a "
        f"template needs a function, which gets its variables; a class with read is a ResourceRepo"
    )


def _check_variables(owner: str, uri: UriTemplate, signature: Signature) -> None:
    """Check that *uri* has a scheme, and that its variables are the parameters of a function."""
    if not _SCHEME.match(uri.prefix):
        raise ConfigurationError(f"{owner}: {uri.text!r} is not a URI: begin it with scheme:")
    if uri.text.endswith("*"):
        raise ConfigurationError(
            f"{owner}: write {uri.text[:-1]}{{+path}} for all URIs that begin with "
            f"{uri.text[:-1]}, and give the function a parameter path"
        )
    if missing := [each for each in uri.variables if each not in signature.names]:
        raise ConfigurationError(
            f"{owner}: {uri.text} has the variable {missing[0]}, and the function no such parameter"
        )
    # A method is decorated before it has an instance.
    known = {"self", *uri.variables}
    if unknown := [each for each in signature.names if each not in known]:
        what = (
            "the URI is channel.request.params.uri"
            if unknown[0] == "uri"
            else (f"add {{{unknown[0]}}} to the URI, annotate it Channel, or mark it with Depends")
        )
        raise ConfigurationError(
            f"{owner}: parameter {unknown[0]} is not a variable of {uri.text}: {what}"
        )


def _not_found(request: Request) -> ResourceNotFound:
    """Return the error for the URI that the client requested.

    It replaces an error of a hook, which may name another URI.
    """
    return ResourceNotFound(request.params.uri)  # type: ignore[attr-defined]


def _of_resource(resource: Resource) -> ResourceRoute:
    resource.check()
    route = ResourceRoute(
        owner=type(resource).__name__,
        place=resource.uri,
        key=resource.uri,
        reader=Hook.of(resource, "read", Resource),
        **ResourceRoute.members_of(resource),
    )
    owner = f"{type(resource).__name__} {resource.uri}"
    # A content that is a value is encoded once, when the resource is registered.
    fixed, size = None, resource.size
    if route.reader is None:
        try:
            contents = contents_of(resource.content, resource.uri, resource.mime_type)
        except ContractError as error:
            raise ConfigurationError(f"{owner}: {error}") from None
        fixed = ReadResourceResult(
            contents=contents, ttl_ms=route.ttl_ms, cache_scope=route.cache_scope
        )
        size = size_of(contents) if size is None else size
    listed = _listed(resource, None, resource.uri)
    definition = definition_of(ResourceDefinition, owner, listed, uri=resource.uri, size=size)
    return replace(route, definition=definition, fixed=fixed)


def _of_repo(repo: ResourceRepo) -> ResourceRoute:
    repo.check()
    owner = type(repo).__name__
    if not isinstance(repo.template, str | UriTemplate | None):
        raise ConfigurationError(
            f"{owner}.template must be a text or a UriTemplate, not {repo.template!r}"
        )
    template = None if repo.template is None else template_of(repo.template)
    prefix = repo.prefix
    if prefix is None and template is not None:
        prefix = template.prefix
    if not isinstance(prefix, str):
        raise ConfigurationError(f"{owner} needs a prefix or a template; prefix is {prefix!r}")
    if template is not None:
        if not prefix.startswith(template.prefix) and not template.prefix.startswith(prefix):
            raise ConfigurationError(
                f"{owner}: no URI has both the prefix {prefix!r} and the template {template.text!r}"
            )
        if repo.name is None:
            raise ConfigurationError(f"{owner} has a template, and no name to list it under")
    reader = Hook.of(repo, "read", ResourceRepo)
    if reader is None:
        raise ConfigurationError(f"{owner} has no read")
    return ResourceRoute(
        owner=owner,
        place=prefix + "*",
        key=prefix,
        is_prefix=True,
        reader=reader,
        parse_uri=repo.parse_uri,
        shared=repo.shared,
        lister=Hook.of(repo, "list", ResourceRepo),
        **({} if template is None else _template(owner, repo, template, _listed(repo))),
        **ResourceRoute.members_of(repo),
    )


def _listed(
    provider: ReadableComponent, function: Any = None, uri: str | None = None
) -> dict[str, Any]:
    """Return the attributes of *provider* that are listed for a resource or a template.

    The default name and description are those of its *function*. A lambda or a value is named by
    its *uri*.
    """
    values = {key: getattr(provider, key) for key in Description.__annotations__}
    name = getattr(function, "__name__", "")
    values["name"] = values["name"] or (name if name.isidentifier() else uri)
    if function is not None:
        values["description"] = values["description"] or inspect.getdoc(function)
    size = getattr(provider, "size", None)
    return {**values, "annotations": provider.given_annotations, "size": size}


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def _template(
    owner: str,
    provider: ReadableComponent,
    template: UriTemplate,
    listed: Mapping[str, Any],
    options: Mapping[str, Sequence[str]] = {},
) -> dict[str, Any]:
    """Return the fields of a route that is listed among the resource templates."""
    return {
        "template": definition_of(
            ResourceTemplateDefinition, owner, listed, uri_template=template.text
        ),
        "completer": Completer(
            owner=f"resource template {template.text}",
            names=template.variables,
            hook=Hook.of(provider, "complete", ResourceRepo),
            options=options,
        ),
    }
