"""Sessions of the revisions before 2026-07-28, at the same URL."""

import asyncio
import json
from typing import Any

import pytest

from genmcp import Channel, Endpoint, InvalidParams, Limits, Mux, Suite, Tool, ToolRequest, tool
from genmcp._mux import sessions
from genmcp.errors import ResourceNotFound
from tests.support.asgi import LEGACIES, MODERN, Client, serving
from tests.support.clock import Clock


@tool
async def echo(text: str) -> str:
    """Returns its argument."""
    return text


@pytest.fixture(params=LEGACIES)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def test_legacy_revisions_are_four() -> None:
    """Every revision since the first is tested here."""
    assert LEGACIES == ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]


async def test_legacy_initialize_begins_a_session(version: str) -> None:
    """The answer agrees on the version, and carries an id of visible ASCII."""
    client = Client(serving(echo), version)

    answer = await client.send(client.initialize(), headers={"mcp-protocol-version": None})

    result = answer.json["result"]
    assert (200, version) == (answer.status, result["protocolVersion"])
    assert result["serverInfo"]["name"] == "test"
    assert set(result["capabilities"]) == {"tools", "logging"}
    assert all(0x21 <= ord(letter) <= 0x7E for letter in answer.headers["mcp-session-id"])
    assert "resultType" not in result


@pytest.mark.parametrize("asked", ["2099-01-01", "1.0", ""])
async def test_legacy_unknown_version_is_answered_with_the_newest(asked: str) -> None:
    """2025-11-25, lifecycle, "Version Negotiation"."""
    client = Client(serving(echo), "2025-11-25")

    answer = await client.send(
        client.initialize(protocolVersion=asked), headers={"mcp-protocol-version": None}
    )

    assert answer.json["result"]["protocolVersion"] == "2025-11-25"


async def test_legacy_initialize_of_modern_version_gets_newest_legacy() -> None:
    """A handshake agrees on a version that has one."""
    client = Client(serving(echo), "2025-11-25")

    answer = await client.send(
        client.initialize(protocolVersion=MODERN), headers={"mcp-protocol-version": None}
    )

    assert answer.json["result"]["protocolVersion"] == "2025-11-25"


async def test_legacy_initialize_must_be_a_request_with_params() -> None:
    """Without an id, or without a required member, it is 400."""
    client = Client(serving(echo), "2025-11-25")
    told = client.initialize()

    silent = await client.send({key: told[key] for key in ("jsonrpc", "method", "params")})
    empty = await client.send({**told, "params": {}})

    assert (silent.status, silent.json["error"]["code"]) == (400, -32600)
    assert (empty.status, empty.json["error"]["code"], empty.json["id"]) == (400, -32602, "begin")


async def test_legacy_initialize_with_endless_capabilities_is_refused() -> None:
    """The session id repeats them in a header, so there is a bound, which the message names."""
    client = Client(serving(echo), "2025-11-25")

    answer = await client.send(
        client.initialize(capabilities={"experimental": {"x": {"y": "z" * 5000}}})
    )

    assert answer.json["error"]["code"] == -32602
    assert str(sessions._MAX_BYTES) in answer.json["error"]["message"]


async def test_legacy_calls_are_served_before_initialized_is_told(version: str) -> None:
    """notifications/initialized is accepted; requests do not wait for it."""
    client = await Client.begin(serving(echo), version)

    early = await client.send(client.call("echo", {"text": "x"}))
    told = await client.send(client.notification("notifications/initialized"))
    late = await client.send(client.call("echo", {"text": "y"}, id="b"))

    assert (early.status, told.status, late.status) == (200, 202, 200)
    assert told.body == b""
    assert late.json["result"]["content"] == [{"type": "text", "text": "y"}]
    assert "resultType" not in late.json["result"]


async def test_legacy_ping_list_and_levels(version: str) -> None:
    """ping and logging/setLevel are answered with nothing, tools/list with the tools."""
    client = await Client.begin(serving(echo), version)

    ping = await client.send(client.request("ping"))
    level = await client.send(client.request("logging/setLevel", {"level": "error"}))
    listed = await client.send(client.request("tools/list"))

    assert ping.json["result"] == {}
    assert level.json["result"] == {}
    (found,) = listed.json["result"]["tools"]
    assert found["name"] == "echo"
    assert set(listed.json["result"]) == {"tools"}


async def test_legacy_session_sets_the_level_of_its_log_messages(version: str) -> None:
    """ "info" by default; from then on less severe messages are not sent, in this session."""

    @tool
    async def work(channel: Channel) -> str:
        assert await channel.log("emergency", "out of paper")
        for level in ("debug", "info", "error"):
            await channel.log(level, level)
        return "done"

    endpoint = serving(work)
    client, other = [await Client.begin(endpoint, version) for _ in range(2)]

    async def received(client: Client) -> list[Any]:
        answer = await client.send(client.call("work"))
        return [m["params"]["data"] for m in answer.messages if "method" in m]

    assert await received(client) == ["out of paper", "info", "error"]
    await client.send(client.request("logging/setLevel", {"level": "debug"}))
    assert await received(client) == ["out of paper", "debug", "info", "error"]
    await client.send(client.request("logging/setLevel", {"level": "critical"}))
    assert await received(client) == ["out of paper"]
    assert await received(other) == ["out of paper", "info", "error"]


async def test_legacy_level_that_does_not_exist_is_refused(version: str) -> None:
    """-32602, in an answer like any other."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send(client.request("logging/setLevel", {"level": "loud"}))

    assert (answer.status, answer.json["error"]["code"]) == (200, -32602)


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("no/such", {}, -32601),
        ("server/discover", {}, -32601),
        ("resources/list", {}, -32601),
        ("sampling/createMessage", {}, -32601),
        ("tools/call", {"name": "sing"}, -32602),
        ("tools/call", {}, -32602),
        ("tools/call", {"name": "echo", "arguments": 3}, -32602),
        ("tools/list", {"cursor": "forged"}, -32602),
    ],
)
async def test_legacy_errors_of_accepted_requests_are_200(
    version: str, method: str, params: dict[str, Any], code: int
) -> None:
    """An error is an answer: its HTTP status is 200, so that clients read it."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send(client.request(method, params, id="x"))

    assert (answer.status, answer.json["id"]) == (200, "x")
    assert answer.json["error"]["code"] == code
    if code == -32601:
        assert answer.json["error"]["data"] == {"method": method}


@pytest.mark.parametrize("method", ["ping", "tools/list"])
async def test_legacy_null_params_are_absent_ones(version: str, method: str) -> None:
    """Many clients write the members that they do not use."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": None})
    notified = await client.send(
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed", "params": None}
    )

    assert (answer.status, notified.status) == (200, 202)
    assert "result" in answer.json


async def test_legacy_null_arguments_are_absent_ones(version: str) -> None:
    """A call with them is one without arguments."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send(client.request("tools/call", {"name": "echo", "arguments": None}))
    absent = await client.send(client.request("tools/call", {"name": "echo"}))

    assert "result" in answer.json
    assert answer.json == absent.json


async def test_legacy_argument_faults_are_results(version: str) -> None:
    """Hosts raise on an error response; a model corrects only results that it reads."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send(client.call("echo", {"text": 3}))

    assert answer.status == 200
    assert answer.json["result"]["isError"] is True
    (fault,) = answer.json["result"]["_meta"]["io.genmcp/error"]["faults"]
    assert (
        fault["pointer"],
        fault["expected"],
        fault["actual"],
    ) == ("/text", "a string", "the number 3")


@pytest.mark.parametrize("revision", [MODERN, "2025-11-25"])
async def test_resource_errors_have_the_code_of_the_revision(revision: str) -> None:
    """-32002 became -32602."""

    @tool
    async def read() -> str:
        raise ResourceNotFound("file:///x")

    client = await Client.begin(serving(read), revision)

    answer = await client.send(client.call("read"))

    assert answer.json["error"]["code"] == (-32602 if revision == MODERN else -32002)


@pytest.mark.parametrize("id", ["forged", "g1AAAAAAAAAA", "g1" + "A" * 200, "ü", ""])
async def test_legacy_forged_sessions_are_404(version: str, id: str) -> None:
    """An id that was never issued is not found; the response has the request's id."""
    client = await Client.begin(serving(echo), version)
    client.session = id

    posted = await client.send(client.request("ping", id=5))
    told = await client.send(client.notification("notifications/initialized"))
    got = await client.send(method="GET")
    ended = await client.send(method="DELETE")

    assert [each.status for each in (posted, told, got, ended)] == [404] * 4
    assert (posted.json["error"]["code"], posted.json["id"]) == (-32600, 5)


async def test_legacy_session_without_an_id_is_400(version: str) -> None:
    """2025-11-25, "Session Management", point 2; the message states the remedy."""
    client = Client(serving(echo), version)

    posted = await client.send(client.request("ping", id=5))
    told = await client.send(client.notification("notifications/initialized"))

    assert (posted.status, posted.json["error"]["code"], posted.json["id"]) == (400, -32600, 5)
    assert "initialize" in posted.json["error"]["message"]
    assert told.status == 400


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_legacy_streams_without_a_session_are_400(version: str, method: str) -> None:
    """2025-11-25, "Session Management", point 2: 400 without an id.

    2024-11-05 has no such id, nor does a request that names no revision: 405.
    """
    client = Client(serving(echo), version)

    answer = await client.send(method=method)
    unnamed = await client.send(method=method, headers={"mcp-protocol-version": None})

    assert (405 if version == "2024-11-05" else 400) == answer.status
    assert (unnamed.status, unnamed.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_legacy_unknown_version_header_is_400(version: str, method: str) -> None:
    """2025-11-25, "Protocol Version Header": an unsupported one MUST be 400."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send(
        client.request("ping") if method == "POST" else None,
        method=method,
        headers={"mcp-protocol-version": "1999-01-01"},
    )

    assert answer.status == 400
    assert "2025-11-25" in answer.json["error"]["data"]["supported"]


async def test_legacy_session_of_another_secret_is_404_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names the remedy, once: any client can send such ids."""
    client = await Client.begin(serving(echo), "2025-11-25")
    client.app = serving(echo)

    for _ in range(3):
        assert (await client.send(client.request("ping"))).status == 404

    (record,) = caplog.records
    assert "GENMCP_SECRET" in record.message


async def test_legacy_session_opens_where_the_secret_is_known() -> None:
    """Any process with the secret serves the session; another audience does not."""
    suite = Suite(name="test", version="1", tools=[echo])
    secret = "a secret that is long enough"
    client = await Client.begin(Endpoint(Mux(suite, secret=secret)), "2025-11-25")

    client.app = Endpoint(Mux(suite, secret=["another that is long enough", secret]))
    assert (await client.send(client.request("ping"))).status == 200

    client.app = Endpoint(Mux(suite, secret=secret, audience="other"))
    assert (await client.send(client.request("ping"))).status == 404


async def test_legacy_session_expires() -> None:
    """Its lifetime is absolute; after it the response is 404."""
    clock = Clock(1000.0)
    suite = Suite(name="test", version="1", tools=[echo])
    mux = Mux(suite, limits=Limits(session_ttl=60), clock=clock)
    client = await Client.begin(Endpoint(mux), "2025-11-25")

    clock.now += 59
    assert (await client.send(client.request("ping"))).status == 200

    clock.now += 2
    answer = await client.send(client.request("ping"))
    assert (answer.status, answer.json["error"]["message"]) == (404, "Session expired")


async def test_legacy_session_is_bound_to_its_principal() -> None:
    """Other principals cannot use it, nor can anonymous clients."""
    endpoint = serving(echo, principal=lambda scope: scope["who"])
    client = await Client.begin(endpoint, "2025-11-25", who="ada")

    assert (await client.send(client.request("ping"))).status == 200
    for who in ("bob", None):
        client.scope = {"who": who}
        assert (await client.send(client.request("ping"))).status == 404


async def test_legacy_ended_session_stays_dead(version: str) -> None:
    """204; then 404 for everything, a second DELETE among it."""
    client = await Client.begin(serving(echo), version)
    other = await Client.begin(client.app, version)

    ended = await client.send(method="DELETE")
    after = [
        await client.send(client.request("ping")),
        await client.send(client.notification("notifications/initialized")),
        await client.send(method="GET"),
        await client.send(method="DELETE"),
    ]

    assert (ended.status, ended.body) == (204, b"")
    assert [each.status for each in after] == [404] * 4
    assert (await other.send(other.request("ping"))).status == 200


async def test_legacy_delete_cancels_what_the_session_has_open(version: str) -> None:
    """Its calls are cancelled, its streams end; other sessions are not affected."""
    cancelled: list[str] = []
    waiting = asyncio.Semaphore(0)
    go = asyncio.Event()

    @tool
    async def wait(name: str, channel: Channel) -> str:
        try:
            await channel.progress(1)
            waiting.release()
            await go.wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
        return name

    endpoint = serving(wait)
    client, other = [await Client.begin(endpoint, version) for _ in range(2)]
    async with (
        client.open(client.call("wait", {"name": "silent"}, id=1)) as silent,
        client.open(client.call("wait", {"name": "told"}, id=2, progressToken=1)) as told,
        client.listen() as listener,
        other.open(other.call("wait", {"name": "other"})) as others,
    ):
        await listener.started()
        for _ in range(3):
            await waiting.acquire()
        await client.send(method="DELETE")
        for each in (silent, told, listener):
            await each.over()
        go.set()
        await others.over()

    assert set(cancelled) == {"silent", "told"}
    assert (silent.status, silent.body) == (202, b"")
    assert [m.get("method") for m in told.messages] == ["notifications/progress"]
    assert told.complete
    assert listener.complete
    assert others.json["result"]["content"][0]["text"] == "other"


async def test_legacy_calls_of_one_session_run_side_by_side(version: str) -> None:
    """A call that blocks holds up no other."""
    go = asyncio.Event()

    @tool
    async def wait() -> str:
        await go.wait()
        return "late"

    client = await Client.begin(serving(wait, echo), version)
    async with client.open(client.call("wait", id=1)) as held:
        quick = await client.send(client.call("echo", {"text": "x"}, id=2))
        go.set()
        await held.over()

    assert tuple(each.json["result"]["content"][0]["text"] for each in (quick, held)) == (
        "x",
        "late",
    )


async def test_legacy_responses_nobody_waits_for_are_400(version: str) -> None:
    """A response has no effect without a question."""
    client = await Client.begin(serving(echo), version)

    responses: list[dict[str, Any]] = [{"result": {}}, {"error": {"code": 1, "message": "no"}}]
    for response in responses:
        answer = await client.send({"jsonrpc": "2.0", "id": 1, **response})

        assert (answer.status, answer.json["error"]["code"]) == (400, -32600)
        assert "id" not in answer.json


async def test_legacy_progress_from_a_client_is_ignored(version: str) -> None:
    """202."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send(
        client.notification("notifications/progress", progressToken=1, progress=1)
    )

    assert answer.status == 202


async def test_legacy_client_is_known_from_its_handshake(version: str) -> None:
    """The `clientInfo` of initialize is in `channel.client` of every call."""

    class Who(Tool):
        name = "who"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            client = channel.client
            assert client.info is not None
            roots = client.capabilities.roots is not None
            return json.dumps([client.info.name, client.info.version, client.revision, roots])

    client = Client(serving(Who), version)
    begun = await client.send(
        client.initialize(capabilities={"roots": {}}, clientInfo={"name": "Ada's", "version": "7"})
    )
    client.session = begun.headers["mcp-session-id"]

    answer = await client.send(client.call("who"))

    assert ["Ada's", "7", version, True] == json.loads(answer.json["result"]["content"][0]["text"])


async def test_legacy_failures_of_hooks_cost_one_call(version: str) -> None:
    """A response with status 200, and the session continues."""

    @tool
    async def fail(how: str) -> Any:
        if how == "refuse":
            raise InvalidParams("no")
        if how == "raise":
            raise KeyError("secret")
        return object()

    client = await Client.begin(serving(fail), version)

    refused, raised, wrong = [
        await client.send(client.call("fail", {"how": how})) for how in ("refuse", "raise", "wrong")
    ]

    assert (refused.status, refused.json["error"]["code"]) == (200, -32602)
    assert raised.json["result"]["isError"] is True
    assert "secret" not in raised.body.decode()
    assert (wrong.status, wrong.json["error"]["code"]) == (200, -32603)
    assert (await client.send(client.request("ping"))).json["result"] == {}


async def test_legacy_client_ends_no_sessions_of_others() -> None:
    """However many sessions it begins and ends; past its share its DELETE is 429."""
    mux = Mux(
        Suite(name="test", version="1"),
        limits=Limits(max_revoked_sessions=10, max_revoked_sessions_per_client=5),
    )
    app = Endpoint(mux)
    victim = await Client.begin(app, "2025-11-25", client=("192.0.2.2", 1))
    statuses = []
    for _ in range(30):
        attacker = await Client.begin(app, "2025-11-25", client=("192.0.2.1", 1))
        statuses.append((await attacker.send(method="DELETE")).status)

    assert statuses == [204] * 5 + [429] * 25
    assert (await victim.send(victim.request("ping"))).status == 200
    assert (await victim.send(method="DELETE")).status == 204


async def test_legacy_session_that_cannot_be_ended_goes_on() -> None:
    """429 names the setting and when to try again; the session and its calls are as before."""
    mux = Mux(Suite(name="test", version="1"), limits=Limits(max_revoked_sessions_per_client=1))
    for expected in (204, 429):
        client = await Client.begin(Endpoint(mux), "2025-11-25")
        ended = await client.send(method="DELETE")
        assert expected == ended.status

    assert "(limit: max_revoked_sessions_per_client)" in ended.json["error"]["message"]
    assert ended.headers["retry-after"] == "3600"
    assert (await client.send(client.request("ping"))).status == 200
