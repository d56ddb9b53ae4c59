"""The client: drives any MCP server, of any revision, over HTTP, stdio or in memory."""

from genmcp.client.handler import Denied as Denied
from genmcp.client.transports.base import TransportSink as TransportSink
from genmcp.core.client.events import SendMessage as SendMessage
