"""The routes of resources and of their repositories."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isfunction
from typing import Any, Final

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.component import check_continues, definition_of, instance_of
from genmcp.component_route import ComponentRoute
from genmcp.content import contents_of, size_of
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError, ResourceNotFound
from genmcp.hook import Hook
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.resources import ReadResourceResult, ResourceTemplateDefinition
from genmcp.protocol.value import Result
from genmcp.resources.resource import (
    Description,
    ReadableComponent,
    Resource,
    ResourceRepo,
    template_of,
)
from genmcp.signature import Signature, name_of
from genmcp.text_arguments import TextArguments, text_arguments
from genmcp.uri_template import UriTemplate


class ResourceRoute(ComponentRoute, frozen=True, kw_only=True):
    """The route of a resource, or of a repository of resources.

    `ttl_ms` and `cache_scope` apply to the contents too.

    Attributes:
        fixed: the result of every read if the content is a value; None if a hook returns it.
    """

    provider: ReadableComponent
    reader: Hook
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
        if isinstance(made, Resource) and "{" not in str(getattr(made, "uri", "")):
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
        try:
            request = await self.begin(request, channel)
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
    """The route of a function that gets the variables of a URI template as its parameters.

    Attributes:
        uri: the template; a URI without variables is one, too.
        variables: the types of the variables.
    """

    uri: UriTemplate
    variables: TextArguments

    @classmethod
    def of(cls, provider: Any) -> "TemplateRoute":
        """Return the route of a function under `@resource`, or of a `Resource` with a template.

        Raises:
            ConfigurationError: the URI is not a template, its variables are not the parameters of
                the function, or an attribute is invalid.
        """
        ReadableComponent.check(provider)
        function = getattr(provider, "_function", None) or _content_of(provider)
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
        return replace(
            route, definition=definition_of(ResourceDefinition, owner, listed, uri=uri.text)
        )

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


def _content_of(provider: Any) -> Any:
    """Return the function of *provider*, a Resource with a template."""
    if isfunction(provider.content) or inspect.ismethod(provider.content):
        return provider.content
    raise ConfigurationError(
        f"{type(provider).__name__} {provider.uri}: a template needs a function, which gets its "
        f"variables; a class with read is a ResourceRepo"
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
    owner = f"{type(resource).__name__} {resource.uri}"
    function = resource.content if isfunction(resource.content) else None
    listed = _listed(resource, function, resource.uri)
    reader = resource.reader
    route = ResourceRoute(
        owner=type(resource).__name__,
        place=resource.uri,
        key=resource.uri.removesuffix("*"),
        is_prefix=resource.uri.endswith("*"),
        reader=reader or Hook(partial(_given, resource.content), is_async=True),
        **ResourceRoute.members_of(resource),
    )
    if route.is_prefix:
        template = UriTemplate(route.key + _REST)
        return replace(route, **_template(owner, resource, template, listed))
    # A content that is a value is encoded once, when the resource is registered.
    fixed, size = None, resource.size
    if reader is None:
        try:
            contents = contents_of(resource.content, resource.uri, resource.mime_type)
        except ContractError as error:
            raise ConfigurationError(f"{owner}: {error}") from None
        fixed = ReadResourceResult(
            contents=contents, ttl_ms=route.ttl_ms, cache_scope=route.cache_scope
        )
        size = size_of(contents) if size is None else size
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
        shared=getattr(repo, "shared", False),
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
    return {**values, "annotations": provider.given_annotations}


_REST: Final = "{+path}"
"""The variable of the template for a wildcard."""


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


async def _given(value: Any, uri: str, channel: Channel) -> Any:
    return value
