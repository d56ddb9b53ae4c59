from genmcp.composite.errors import RegistrySessionNotFound as RegistrySessionNotFound
from genmcp.registry.endpoint import RegistryEndpoint as RegistryEndpoint
from genmcp.registry.live import LiveRegistry as LiveRegistry
from genmcp.registry.live import SessionRegistries as SessionRegistries
