"""How much may be asked for, by whom, and that nobody uses it up for others. Security checklist T12, T13, H19, H24, H28."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.config_files import ConfigFileError
from mcp_bridge.access.limits import CALLER, TENANT, Buckets, Limiter, TenantLimits
from mcp_bridge.access.routes_file import load_routes
from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from mcp_bridge.connections import Connection
from mcp_bridge.wire.failures import Failure
from tests.bridge.client import client_of, headers_for
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import started
from tests.security.authority import Authority
from tests.security.conftest import ROUTES, Users

ANN = Caller(tenant="acme", issuer="i", subject="ann")
BEN = Caller(tenant="acme", issuer="i", subject="ben")
BEA = Caller(tenant="beta", issuer="i", subject="ann")
LIMITS = TenantLimits(
    caller=replace(CALLER, requests_per_second=10, creates_per_second=5, body_bytes_per_second=1000, streams=2),
    tenant=replace(TENANT, requests_per_second=20, streams=3),
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> Limiter:
    return Limiter(lambda _: LIMITS, clock)


def taken(limiter: Limiter, caller: Caller, most: int = 1000) -> int:
    """How many requests the caller may still make."""
    for count in range(most):
        try:
            limiter.take_request(caller)
        except Failure:
            return count
    return most


@pytest.mark.row("T13", "H24")
def test_a_caller_has_its_share_and_gets_it_back_with_time(limiter: Limiter, clock: Clock) -> None:
    assert taken(limiter, ANN) == 20
    clock.now += 0.5
    assert taken(limiter, ANN) == 5
    clock.now += 3600
    assert taken(limiter, ANN) == 20


@pytest.mark.row("T12", "T13", "H24")
def test_what_one_uses_up_is_missing_to_no_colleague_and_to_no_other_tenant(limiter: Limiter) -> None:
    assert taken(limiter, ANN) == 20
    assert taken(limiter, BEN) == 20
    assert taken(limiter, Caller(tenant="acme", issuer="i", subject="cat")) == 0  # the tenant has had its own
    assert taken(limiter, Caller(tenant="acme", issuer="j", subject="ann")) == 0
    assert taken(limiter, BEA) == 20


@pytest.mark.row("T13")
def test_creations_are_counted_by_themselves(limiter: Limiter) -> None:
    for _ in range(10):
        limiter.take_create(ANN)
    with pytest.raises(Failure):
        limiter.take_create(ANN)
    limiter.take_create(BEN)
    assert taken(limiter, ANN) == 20


@pytest.mark.row("T13", "H19")
def test_large_bodies_are_paid_for_by_the_requests_that_follow(limiter: Limiter, clock: Clock) -> None:
    limiter.take_request(ANN)
    limiter.take_body(ANN, 3_000)
    assert taken(limiter, ANN) == 0
    clock.now += 1.1
    assert taken(limiter, ANN) > 0
    limiter.take_body(ANN, 10**9)
    clock.now += 2.1
    assert taken(limiter, ANN) > 0  # a debt is never larger than a burst


@pytest.mark.row("T13")
def test_answers_that_stay_open_are_counted_while_they_are(limiter: Limiter) -> None:
    with limiter.stream(ANN), limiter.stream(ANN):
        with pytest.raises(Failure), limiter.stream(ANN):
            pass
        with limiter.stream(BEN), pytest.raises(Failure), limiter.stream(BEN):  # the tenant's third is its last
            pass
        with limiter.stream(BEA):
            pass
    with limiter.stream(ANN), limiter.stream(ANN):
        pass
    assert not limiter._streams


def test_nobody_is_counted_in_development_mode(limiter: Limiter) -> None:
    assert taken(limiter, replace(ANN, is_development=True)) == 1000


def test_buckets_that_are_not_used_are_forgotten_and_were_full_anyway(clock: Clock) -> None:
    buckets = Buckets(clock, most=10)
    for n in range(1000):
        buckets.take(n, (1.0, 5.0))
    assert len(buckets._filled) == 10


@pytest.mark.row("H28", "T12")
def test_an_address_that_nobody_believes_is_heard_less_often(limiter: Limiter, clock: Clock) -> None:
    for _ in range(100):
        limiter.check_address("203.0.113.1")
        limiter.blame_address("203.0.113.1")
    with pytest.raises(Failure):
        limiter.check_address("203.0.113.1")
    limiter.check_address("203.0.113.2")
    clock.now += 1
    limiter.check_address("203.0.113.1")


NARROW = ROUTES.replace(
    "  beta:\n", "    limits: {requests_per_second: 2}\n    caller_limits: {requests_per_second: 1, streams: 1}\n  beta:\n"
)


@pytest.fixture
def config(config: Config) -> Config:
    Path(config.routes).write_text(NARROW)
    return config


@pytest.mark.row("T12", "T13")
async def test_a_tenant_that_asks_for_too_much_slows_down_itself_alone(users: Users) -> None:
    flood = [users.user(f"ann{n}") for n in range(4)]
    answers = [await client.ask("tools/list") for client in flood for _ in range(20)]
    refused = [answer for answer in answers if answer.status != 200]
    assert len(refused) > 20
    assert {(answer.status, answer.code, answer.headers["Retry-After"]) for answer in refused} == {(429, 42900, "1")}
    assert [(await users.user(tenant="beta").ask("tools/list")).status for _ in range(20)] == [200] * 20


@pytest.mark.row("T13")
async def test_a_call_too_many_creates_nothing(users: Users, fake: FakeTaskStore) -> None:
    held = asyncio.create_task(users.user().call("travel"))
    async with asyncio.timeout(60):
        await fake.watching.wait()
    refused = await users.user().call("travel")
    assert (refused.status, refused.code) == (429, 42900)
    assert len(fake.created) == 1
    await fake.complete(next(iter(fake.tasks)), b'{"content":[]}')
    assert (await held).status == 200


@pytest.mark.row("H28")
async def test_a_forwarded_address_that_is_not_believed_changes_nothing(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_bridge.access.limits._FAILURES", (0.001, 100.0))
    client = users.bearing("x.y.z")
    statuses = [(await client.ask("tools/list", X_Forwarded_For=f"203.0.113.{n}")).status for n in range(120)]
    assert set(statuses) == {401, 429}


@pytest.mark.row("H28")
async def test_behind_a_proxy_each_client_has_its_own_share(
    config: Config, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_bridge.access.limits._FAILURES", (0.001, 100.0))
    running = Bridge(replace(config, trusted_proxies=("127.0.0.1",)), connect=lambda _: FakeTaskStore())
    async with started(running), client_of(running) as client:
        client.token = "x.y.z"
        forwarded: dict[str, Any] = {"X_Forwarded_Proto": "https"}
        for _ in range(101):
            await client.ask("tools/list", X_Forwarded_For="198.51.100.7", **forwarded)
        client.token = authority.token()
        seen = [(await client.ask("tools/list", X_Forwarded_For=f"{n}, 198.51.100.{n}", **forwarded)).status for n in (7, 8)]
    assert seen == [429, 200]


@pytest.mark.row("H19")
async def test_a_header_that_never_ends_is_given_up(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_bridge.connections.HEADER_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", users.bridge.port)
    writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n")
    async with asyncio.timeout(60):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    writer.close()


@pytest.mark.row("H19")
async def test_a_connection_that_was_used_is_not_given_up(users: Users) -> None:
    assert users.bridge._parts is not None
    server = users.bridge._parts.runner.server
    assert server is not None
    head = "".join(f"{name}: {value}\r\n" for name, value in headers_for("tools/list").items())
    reader, writer = await asyncio.open_connection("127.0.0.1", users.bridge.port)
    request = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: 2\r\n\r\n{{}}".encode()
    async with asyncio.timeout(60):
        for _ in range(3):
            writer.write(request)
            assert b" 401 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"An access token is required"}}'))
            for connection in server.connections:
                assert isinstance(connection, Connection)
                connection._give_up()
    writer.close()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("limits: {requests: 1}", "limits.requests: is not a key"),
        ("limits: {streams: 0}", "limits.streams: must be a whole number from 1"),
        ("caller_limits: 5", "caller_limits: must be a mapping of limits"),
    ],
)
def test_a_slip_in_the_limits_is_told(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"version: 1\ntenants:\n  acme:\n    tools: []\n    {text}\n")
    with pytest.raises(ConfigFileError, match=fault):
        load_routes(str(file))
