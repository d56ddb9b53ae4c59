"""The version of genmcp, for the package, its metadata, and what a client and a hub send."""

__version__ = "0.1.0"
