"""The structs of the specification, in its newest revision."""

from genmcp.protocol.capabilities import *
from genmcp.protocol.client_features import *
from genmcp.protocol.content import *
from genmcp.protocol.params import *
from genmcp.protocol.prompts import *
from genmcp.protocol.resources import *
from genmcp.protocol.revisions.chain import protocol_version as protocol_version
from genmcp.protocol.tasks import *
from genmcp.protocol.tools import *
from genmcp.protocol.value import *
