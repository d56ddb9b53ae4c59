"""A browser for programs under test: `python -m tests.support.browser URL` completes a login."""

import sys

import httpx

if __name__ == "__main__":
    httpx.get(sys.argv[1], follow_redirects=True, trust_env=False).raise_for_status()
