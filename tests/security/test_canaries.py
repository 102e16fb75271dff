"""Store, bridge and worker as processes of their own: nothing of one tenant is in a byte that another receives, nor in any
log, figure or trace. Security checklist S1, S6, T4, T5, T15."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiohttp
import pytest

from tests.bridge.client import TASKS, Answer, Client, headers_for
from tests.bridge.listening import listening
from tests.pair import Pair
from tests.security.authority import PUBLIC_URL, Authority
from tests.telemetry.collector import Collector

ROUTES: Final = """
version: 1
tenants:
  acme-canary:
    grants: {call: anyone}
    tools:
      - {name: acme_tool, workflow: spread, task: optional, call_timeout: 20s, input_schema: {type: object}}
  beta:
    grants: {call: anyone}
    tools:
      - {name: beta_tool, workflow: spread, task: optional, input_schema: {type: object}}
"""
FORMS: Final = {**TASKS, "elicitation": {"form": {}}}
ENDS: Final = ("result", "tool error", "protocol error", "fault", "ask", "wait")
STATE_KEY: Final = base64.b64encode(b"c" * 32).decode()


class Ear(Client):
    """A client that keeps every byte that it receives."""

    received = b""

    async def send(self, *arguments: Any, **named: Any) -> Answer:
        """As of a client."""
        answer = await super().send(*arguments, **named)
        self.received += answer.body + repr(sorted(answer.headers.items())).encode()
        return answer


class Users:
    """Ann of the tenant whose secrets these are, eve of the other, and one who shows no token."""

    def __init__(self, session: aiohttp.ClientSession, port: int, authority: Authority) -> None:
        self.port = port
        self.ann, self.eve, self.nobody = Ear(session, port), Ear(session, port), Ear(session, port)
        self.ann.token = authority.token(sub="ann-canary", tenant="acme-canary")
        self.eve.token = authority.token(sub="eve", tenant="beta")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, authority: Authority, collector: Collector) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("canaries")
    routes = folder / "routes.yaml"
    routes.write_text(ROUTES)
    settings = {
        "TENURE_BRIDGE_ISSUERS": str(authority.issuers),
        "TENURE_BRIDGE_PUBLIC_URL": PUBLIC_URL,
        "TENURE_BRIDGE_STATE_KEYS": STATE_KEY,
        "TENURE_LOG_LEVEL": "debug",
        "TENURE_BRIDGE_TRACES": "true",
        **collector.settings,
    }
    store_settings = {"TENURE_STORE_TRACES": "true", **collector.settings}
    running = Pair(
        folder,
        routes=routes,
        durable=False,
        bridge_settings=settings,
        store_settings=store_settings,
        worker_settings=collector.settings,
    )
    with running:
        running.start_worker("worker", "tests.security.canary_worker")
        yield running


@pytest.fixture
async def users(pair: Pair, authority: Authority) -> AsyncIterator[Users]:
    async with aiohttp.ClientSession() as session:
        yield Users(session, int(pair.url.rsplit(":", 1)[1].removesuffix("/mcp")), authority)


async def status(ann: Client, task_id: str, *wanted: str) -> dict[str, Any]:
    """The task as soon as it has one of these statuses."""
    async with asyncio.timeout(60):
        while True:
            answer = await ann.task("get", task_id, capabilities=FORMS)
            if answer.status == 200 and answer.result["status"] in wanted:
                return answer.result
            await asyncio.sleep(0.2)  # a poll, as of any client


async def pry(users: Users, task_id: str, secret: str, state: str) -> None:
    """Everything that eve, and one without a token, can try with what they should not even know."""
    for stranger in (users.eve, users.nobody):
        for action in ("get", "update", "cancel"):
            await stranger.task(action, task_id, capabilities=FORMS)
        await stranger.ask("tools/list")
        for tool in ("acme_tool", "beta_tool"):
            key: dict[str, Any] = {"Idempotency-Key": f"key-{secret}"}
            await stranger.call(tool, {"secret": "eve", "end": "result"}, capabilities={}, **key)
            params = {"name": tool, "arguments": {}, "requestState": state, "inputResponses": {"word": {"action": "decline"}}}
            await stranger.ask("tools/call", params, name=tool, capabilities=FORMS)
        await stranger.send(b"{", headers_for("tools/call"))
        url = f"http://127.0.0.1:{users.port}/t/acme-canary/mcp"
        await stranger.send({"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers_for("ping"), url=url)
    async with listening(users.port, task_id, capabilities=FORMS, token=users.eve.token) as stream:
        users.eve.received += json.dumps(await stream.rest()).encode()


async def live(users: Users, secret: str) -> list[str]:
    """All that ann does with her tasks, watched by eve. Returns what must stay hers."""
    ann, own = users.ann, []
    for end in ENDS:
        named: dict[str, Any] = {"Idempotency-Key": f"key-{secret}-{ENDS.index(end)}", "baggage": f"of={secret}"}
        wish = {"secret": secret, "end": end}
        task_id = (await ann.call("acme_tool", wish, capabilities=FORMS, **named)).result["taskId"]
        own.append(task_id)
        async with listening(users.port, task_id, capabilities=FORMS, token=ann.token) as stream:
            await stream.frame()
            await pry(users, task_id, secret, "x")
            if end == "ask":
                asked = await status(ann, task_id, "input_required")
                (key,) = asked["inputRequests"]
                answers = {key: {"action": "accept", "content": {"word": f"answer-{secret}"}}}
                params = {"taskId": task_id, "inputResponses": answers}
                assert (await ann.ask("tasks/update", params, name=task_id, capabilities=FORMS)).status == 200
            if end == "wait":
                await ann.task("cancel", task_id, capabilities=FORMS)
            ended = await status(ann, task_id, "completed", "failed", "cancelled")
        assert (ended["status"], secret in json.dumps(ended)) == {
            "protocol error": ("failed", True), "fault": ("completed", False), "wait": ("cancelled", False),
        }.get(end, ("completed", True)), end  # fmt: skip
    held = await ann.call("acme_tool", {"secret": secret, "end": "ask"}, capabilities={"elicitation": {"form": {}}})
    state = held.result["requestState"]
    await pry(users, own[0], secret, state)
    return [*own, state]


def count(collector: Collector, name: str) -> int:
    """How many spans of this name have come."""
    return sum(span.name == name for _, span in collector.spans)


@pytest.mark.row("S1", "T4", "T5", "T15")
async def test_nothing_of_one_tenant_is_in_a_byte_of_another_nor_in_any_log_figure_or_trace(
    users: Users, pair: Pair, collector: Collector
) -> None:
    secret = f"canary{uuid4().hex}"
    own = await live(users, secret)
    assert secret.encode() in users.ann.received
    for stranger in (users.eve, users.nobody):
        assert len(stranger.received) > 10_000, "it was answered"
        names = (secret, "ann-canary", "spread", "worker", "postgres", "checkpoint", "working", own[-1])
        told = stranger.received.replace(f"key-{secret}".encode(), b"")  # what they said themselves
        assert [name for name in names if name.encode() in told] == []
    logs = {path.name: path.read_text(errors="replace") for path in pair.folder.rglob("*.log")}
    assert {"store.log", "bridge.log", "worker.log", "postgres.log"} <= logs.keys()
    password = pair.postgres.dsn.split(":")[2].partition("@")[0]
    secrets = [secret, STATE_KEY, password, own[-1]]
    for client in (users.ann, users.eve):
        assert client.token is not None
        secrets += client.token.split(".")
    wanted = ("tools/call acme_tool", "run spread")  # each process sends its own when it likes
    await asyncio.to_thread(collector.wait_until, lambda: all(count(collector, name) > len(ENDS) for name in wanted))
    assert {service for service, _ in collector.spans} == {"tenure-bridge", "tenure-store", "worker"}
    for name, text in {**logs, "figures": pair.figures(), "traces": collector.text}.items():
        assert [one for one in secrets if one in text] == [], name
    assert [one for one in ("acme-canary", "ann-canary", "acme_tool", "beta", *own) if one in pair.figures()] == []


@pytest.mark.row("S6")
def test_a_worker_has_nothing_of_the_database_and_of_operators(pair: Pair) -> None:
    (worker,) = (one for one in pair.processes if one.name == "worker")
    environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
    arguments = Path(f"/proc/{worker.pid}/cmdline").read_bytes()
    password = pair.postgres.dsn.split(":")[2].partition("@")[0].encode()
    for given in (environment, arguments):
        assert b"TENURE_STORE_DSN" not in given
        assert b"postgresql://" not in given
        assert password not in given
