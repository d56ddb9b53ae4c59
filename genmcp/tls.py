"""The certificates that all HTTPS requests trust: of clients, logins and verifiers of tokens."""

import os
import ssl
from contextlib import suppress
from functools import lru_cache


def trusted_context() -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of the system and of certifi.

    Some Python installations, such as python.org's on macOS, find no certificates of the system.
    The environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` replace both.
    """
    return _context_for(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)  # reading the certificates takes tens of milliseconds
def _context_for(file: str | None, directory: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()  # OpenSSL reads both variables itself
    if not file and not directory:
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context
