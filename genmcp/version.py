"""The version of the package, which is also sent in `User-Agent` and in `clientInfo`."""

__version__ = "0.2.0"
