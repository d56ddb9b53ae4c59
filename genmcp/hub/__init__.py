"""A client of many servers, which can also serve all of them as one server."""

from genmcp.composite.errors import AlreadyRegistered as AlreadyRegistered
from genmcp.composite.errors import CompositeError as CompositeError
from genmcp.composite.errors import ReconnectError as ReconnectError
from genmcp.composite.errors import ServerDisabled as ServerDisabled
from genmcp.composite.errors import UnknownServer as UnknownServer
from genmcp.composite.errors import UnknownTool as UnknownTool
from genmcp.hub.config import Retry as Retry
