"""Named servers of this process, which are called without a transport or served as one server."""

from genmcp.composite.errors import RegistrySessionNotFound as RegistrySessionNotFound
from genmcp.registry.endpoint import RegistryEndpoint as RegistryEndpoint
from genmcp.registry.registry import SessionRegistries as SessionRegistries
