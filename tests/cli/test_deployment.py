"""The pages on deployment, and their files: their syntax, their commands, and that these run."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from configparser import ConfigParser
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from genmcp import Client, ClientOptions
from genmcp.cli.command import commands
from tests.cli.test_operating import Process, until_ready
from tests.support.asgi import PATIENCE
from tests.support.balancer import Balancer
from tests.support.postgres_server import fresh_schema, shared_postgres
from tests.support.stores import shared_store

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "deploy"
PAGES = ("deploy", "many-machines", "docker", "kubernetes", "systemd", "store-postgres")
PAGE = "\n".join((ROOT / "docs" / "how-to" / f"{page}.md").read_text("utf-8") for page in PAGES)
UNITS = ["press.service", "press-worker.service"]
COMPOSE = ["compose.yaml", "compose.postgres.yaml"]
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FILES / name).read_text("utf-8"))
    return found


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects of the Kubernetes example by their kind and name."""
    objects = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text("utf-8"))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def parsed(words: Sequence[str]) -> Any:
    """Return the arguments of a `genmcp` command; the test fails if it has no such options."""
    name, *rest = words
    with commands.make_context("genmcp", [*words]) as context:
        command = commands.get_command(context, name)
        assert command is not None
        return SimpleNamespace(**command.make_context(name, rest).params)


def commands_of_page() -> list[str]:
    lines = "\n".join(SHELL.findall(PAGE)).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("genmcp ")]


def test_page_shows_the_files() -> None:
    """Byte for byte, so that a reader may copy either."""
    for name, language in (
        ("press.py", "python"),
        ("compose.yaml", "yaml"),
        ("kubernetes.yaml", "yaml"),
        *((unit, "ini") for unit in UNITS),
    ):
        assert f"```{language}\n{(FILES / name).read_text('utf-8')}```\n" in PAGE, name


def test_commands_of_the_page_exist() -> None:
    """With their options."""
    assert len(commands_of_page()) >= 3
    for command in commands_of_page():
        parsed(shlex.split(command, comments=True)[1:])


@pytest.mark.parametrize("name", UNITS)
def test_systemd_unit_fits_the_commands(name: str) -> None:
    """The options exist, and the process has enough time to stop."""
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((FILES / name).read_text("utf-8"))
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    command = parsed(words)

    assert program.endswith("/genmcp")
    assert int(unit["Service"]["TimeoutStopSec"]) > getattr(command, "drain", 0) + command.grace


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_file_fits_the_commands(name: str) -> None:
    """Each service has an image or a build, options that exist, and enough time to stop."""
    services = loaded(name)["services"]
    for service in services.values():
        assert ("image" in service) != ("build" in service)
        for other in service.get("depends_on", ()):
            assert other in services
        if "build" in service:
            parsed(shlex.split(service["command"]))
            assert service["environment"].keys() == {"GENMCP_STORE", "GENMCP_SECRET"}
    for role in ("server", "worker"):
        service = services[role]
        arguments = parsed(shlex.split(service["command"]))
        needed = arguments.grace + (getattr(arguments, "drain", None) or 0)
        assert float(service["stop_grace_period"].removesuffix("s")) > needed
    probe = services["worker"]["healthcheck"]["test"]
    health = parsed(shlex.split(services["worker"]["command"])).health
    assert f"http://{health}/ready" in probe[-1]
    compile(probe[-1], "the probe", "exec")


def test_balancer_asks_the_servers_of_the_compose_file() -> None:
    """At their port, whether they are ready."""
    text = (FILES / "haproxy.cfg").read_text("utf-8")
    server = loaded("compose.yaml")["services"]["server"]
    arguments = parsed(shlex.split(server["command"]))
    assert f"server {server['deploy']['replicas']} server:{arguments.port or 8000}\n" in text
    assert "httpchk GET /ready\n" in text


def test_kubernetes_probes_fit_the_commands() -> None:
    """Their paths and ports are served, and a pod has more time to stop than its process needs."""
    for name in ("press-server", "press-worker"):
        deployment = manifests()["Deployment", name]
        assert deployment["apiVersion"] == "apps/v1"
        pod = deployment["spec"]["template"]
        assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        (container,) = pod["spec"]["containers"]
        arguments = parsed(container["args"])
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        is_server = name == "press-server"
        served = 8000 if is_server else arguments.health.port
        paths = {"readinessProbe": "/ready", "livenessProbe": "/health"}
        for probe, path in paths.items():
            wanted = container[probe]["httpGet"]
            assert (wanted["path"], ports[wanted["port"]]) == (path, served)
        # Longer than `Health.timeout`, so that a store that hangs is reported and not a probe.
        assert container["readinessProbe"]["timeoutSeconds"] > 2
        drain = arguments.drain if is_server else 0
        assert pod["spec"]["terminationGracePeriodSeconds"] > arguments.grace + drain
        if is_server:
            readiness = container["readinessProbe"]
            assert drain >= readiness["periodSeconds"] * readiness["failureThreshold"]
            assert arguments.host == "0.0.0.0"


def test_kubernetes_objects_refer_to_each_other() -> None:
    """By labels, ports and the secret that the page creates."""
    objects = manifests()
    server = objects["Deployment", "press-server"]["spec"]["template"]
    service = objects["Service", "press"]["spec"]
    assert service["selector"].items() <= server["metadata"]["labels"].items()
    assert "sessionAffinity" not in service
    (port,) = service["ports"]
    assert port["targetPort"] in [each["name"] for each in server["spec"]["containers"][0]["ports"]]
    budget = objects["PodDisruptionBudget", "press-server"]["spec"]
    assert budget["selector"]["matchLabels"] == server["metadata"]["labels"]
    secret = server["spec"]["containers"][0]["envFrom"][0]["secretRef"]["name"]
    assert f"kubectl create secret generic {secret} " in PAGE


def test_image_contains_the_module_and_the_clients() -> None:
    """The module, the clients of both stores, and the command itself as the first process."""
    text = (FILES / "Dockerfile").read_text("utf-8")
    assert "COPY press.py ." in text
    assert 'genmcp[fast,postgres,redis]"' in text
    assert 'ENTRYPOINT ["genmcp"]' in text


# A job and its stream then move to another process at once, and are not waited for.
_LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--drain", "0", "--grace", "0")


@contextmanager
def running(command: str, url: str, log: Path, *options: str) -> Iterator[Process]:
    """Run a command in the folder of the files."""
    words = [sys.executable, "-m", "genmcp", *shlex.split(command), *options]
    secret = "a secret of at least 16 bytes"
    environment = {**os.environ, "GENMCP_STORE": url, "GENMCP_SECRET": secret}
    environment["PYTHONPATH"] = str(ROOT)
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, cwd=FILES, env=environment, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield Process(process, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@asynccontextmanager
async def deployed(name: str, url: str, folder: Path) -> AsyncIterator[tuple[str, list[Process]]]:
    """Run two servers and a worker of a compose file behind a balancer.

    The commands are those of the file, on free ports of loopback.
    """
    services = loaded(name)["services"]
    async with AsyncExitStack() as stack:
        processes = stack.enter_context(ExitStack())
        started = [
            processes.enter_context(
                running(services[role]["command"], url, folder / f"{role}{number}.log", *options)
            )
            for role, number, options in (
                ("server", 1, _LOOPBACK),
                ("server", 2, _LOOPBACK),
                ("worker", 1, ("--health", "127.0.0.1:0", "--grace", "0")),
            )
        ]
        servers = [await each.find(r"at (http://\S+)/mcp") for each in started[:2]]
        probes = [*servers, await started[2].find(r"/ready at (http://\S+)")]
        async with httpx.AsyncClient() as http:
            for each in probes:
                await until_ready(http, each)
        balancer = await stack.enter_async_context(Balancer(servers))
        yield f"{balancer.url}/mcp", started


@asynccontextmanager
async def empty_store(name: str, folder: Path) -> AsyncIterator[str]:
    """Give the URL of a store of the kind that a compose file has."""
    services = loaded(name)["services"]
    if "migrate" not in services:
        async with shared_store("redis", folder) as store:
            yield store.url
        return
    url = f"{await asyncio.to_thread(shared_postgres)}?schema={fresh_schema()}"
    with running(services["migrate"]["command"], url, folder / "migrate.log") as migrating:
        status = await asyncio.to_thread(migrating.process.wait, PATIENCE)
        assert status == 0, migrating.log
    yield url


@pytest.mark.parametrize("name", COMPOSE)
async def test_deployment_completes_calls_while_processes_are_stopped(
    name: str, tmp_path: Path
) -> None:
    """A call is started, followed and answered by any of them; each may be stopped meanwhile.

    A client without tasks resumes its event stream on another server, where it ended.
    """
    async with (
        empty_store(name, tmp_path) as store,
        deployed(name, store, tmp_path) as (url, processes),
    ):
        legacy = ClientOptions(revision="2025-06-18")
        async with Client(url) as client, Client(url, options=legacy) as old:
            assert (await client.call("print", {"pages": 2})).data == "Printed 2 pages."
            task = await client.call_task("print", {"pages": 200})
            assert task.id is not None
            begun = [asyncio.Event() for _ in range(4)]
            calls = [
                asyncio.create_task(old.call("print", {"pages": 200}, progress=_set(each)))
                for each in begun
            ]
            for each in begun:
                await each.wait()
            first, _, worker = processes
            assert await worker.stop() == 0
            await first.stop()
            results = [await task.wait(), *[await each for each in calls]]
        assert [each.data for each in results] == ["Printed 200 pages."] * 5
        assert all("secret of" not in each.log for each in processes)


def _set(event: asyncio.Event) -> Any:
    return lambda *_: event.set()
