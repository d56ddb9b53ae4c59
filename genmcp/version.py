"""The version of genmcp: of the package, of `User-Agent`, and of the client's `clientInfo`."""

__version__ = "0.1.0"
