"""`OAuthServer` and the official suite's scenarios for authorization servers."""

import asyncio
import re
import runpy
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import kill
from tests.support.oauth.server import OAuthServer

pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),  # the first run installs the suite
]
CONFORMANCE = Path(__file__).parents[2] / "scripts" / "conformance"


@pytest.mark.parametrize("secret", [None, "known to both"])
async def test_issuer_passes_the_official_suite(secret: str | None, free_port: int) -> None:
    """Its metadata, and a complete code grant of a public client and of one with a secret."""
    redirect = f"http://127.0.0.1:{free_port}/callback"
    issuer = OAuthServer(resources=["https://mcp.example.com/mcp"])
    method = "client_secret_post" if secret else "none"
    issuer.add_client("suite", secret=secret, redirect_uris=[redirect], method=method)
    # If "none" is listed as well, the suite (0.2.0-alpha.12) does not send its secret.
    issuer.faults.metadata = {"token_endpoint_auth_methods_supported": [method]}
    command: list[str] = runpy.run_path(str(CONFORMANCE))["suite_command"]()
    client = ["--client-id", "suite", *(["--client-secret", secret] if secret else [])]
    options = ["--port", str(free_port), "--resource", "https://mcp.example.com/mcp"]
    async with asyncio.timeout(60), issuer.serve() as url, httpx.AsyncClient() as browser:
        process = await asyncio.create_subprocess_exec(
            *command, "authorization", "--url", url, *client, *options, stdout=PIPE, stderr=STDOUT
        )
        try:
            assert process.stdout
            lines = []
            async for line in process.stdout:
                lines.append(line.decode())
                if target := re.search(r"\S+/authorize\?\S+", lines[-1]):
                    location = (await browser.get(target[0])).headers["location"]
                if "Callback server started" in lines[-1]:
                    await browser.get(location)
            status = await process.wait()
        finally:
            await kill(process)

    assert status == 0, "".join(lines)
    assert "Total: 3 passed, 0 failed" in "".join(lines)
