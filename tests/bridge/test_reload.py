"""The route file of a running bridge. Contract, sections 5, 6 and 10.20; MCP, basic/patterns/subscriptions."""

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_bridge.access.route_watch import LOOK_SECONDS
from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from tests.bridge.client import Client
from tests.bridge.fake_store import FakeTaskStore
from tests.bridge.listening import SUBSCRIPTION_ID, Stream, listening
from tests.bridge.test_process import serving
from tests.pair import free_ports, metrics_at, told_at
from tests.store.builders import until

TOOL = "{{name: {}, workflow: w, workflow_version: {}, task: optional, input_schema: {{type: object}}}}"
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": {SUBSCRIPTION_ID: 1}}}


def written(*names: str, version: int = 1) -> str:
    """A route file with these tools."""
    tools = "".join(f"      - {TOOL.format(name, version)}\n" for name in names)
    return f"version: 1\ntenants:\n  dev:\n    tools:\n{tools}"


def put(path: Path, text: str) -> None:
    """Puts a file there as editors do: a whole one in the place of the other."""
    beside = path.with_name("beside")
    beside.write_text(text)
    beside.replace(path)


async def names(client: Client) -> list[str]:
    """The tools that are listed."""
    return [tool["name"] for tool in (await client.ask("tools/list")).result["tools"]]


async def figures(port: int) -> dict[str, float]:
    """How often the route file was looked at, by outcome."""
    text = await asyncio.to_thread(metrics_at, port)
    found = re.findall(r'^tenure_bridge_route_reloads_total\{outcome="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {outcome: float(count) for outcome, count in found}


async def begun(stream: Stream) -> None:
    """The acknowledgement is read."""
    assert (await stream.frame())["method"] == "notifications/subscriptions/acknowledged"


async def stopped(bridge: Bridge, stream: Stream) -> list[object]:
    """The methods of all that a stream was told until the bridge stopped, and its end."""
    async with asyncio.timeout(30):
        await bridge.stop()
    return [frame.get("method", "the end") for frame in await stream.rest()]


async def test_the_server_says_that_it_tells_of_its_tools(client: Client) -> None:
    assert (await client.ask("server/discover")).result["capabilities"]["tools"] == {"listChanged": True}


@pytest.mark.must("L-05")
async def test_a_changed_file_is_served_and_told_to_those_who_asked(routes: Path, client: Client, bridge: Bridge) -> None:
    async with listening(bridge.port, tools=True) as asked, listening(bridge.port, tools=True, taskIds=[]) as both:
        await begun(asked)
        await begun(both)
        put(routes, written("a", "b"))
        assert await asked.frame() == await both.frame() == CHANGED
        assert await names(client) == ["a", "b"]
        put(routes, written("b", "a"))
        assert await asked.frame() == CHANGED
        assert await names(client) == ["b", "a"]
        assert (await client.call("strict")).code == -32602
        assert await stopped(bridge, asked) == ["the end"]


@pytest.mark.must("S-01")
async def test_a_change_of_what_is_not_listed_is_served_and_not_told(
    routes: Path, client: Client, bridge: Bridge, fake: FakeTaskStore
) -> None:
    put(routes, written("a"))
    await until(lambda: is_listed(client, "a"), "a is listed")
    async with listening(bridge.port, tools=True) as stream:
        await begun(stream)
        put(routes, written("a", version=2))

        async def is_new() -> bool:
            await client.call("a", tasks=True)
            return fake.created[-1].contract.workflow_version == 2

        await until(is_new, "the new file is read")
        assert await stopped(bridge, stream) == ["the end"]


async def is_listed(client: Client, name: str) -> bool:
    return name in await names(client)


async def test_a_wrong_file_changes_nothing_and_the_next_right_one_is_taken(
    routes: Path, client: Client, bridge: Bridge, capsys: pytest.CaptureFixture[str]
) -> None:
    put(routes, written("a"))
    await until(lambda: is_listed(client, "a"), "a is listed")
    wrong = ["tenants: [", written("a", "a"), written("b").replace("dev:", "acme:"), ""]
    for count, text in enumerate(wrong, start=1):
        put(routes, text)

        async def is_refused(count: int = count) -> bool:
            return (await figures(bridge.admin_port)).get("refused") == count

        await until(is_refused, "the wrong file is refused")
        assert await names(client) == ["a"]
    assert "routes.yaml:6: tools[1].name: the tool a is there twice" in capsys.readouterr().out
    routes.unlink()

    async def is_missed() -> bool:
        return (await figures(bridge.admin_port))["refused"] == len(wrong) + 1

    await until(is_missed, "the missing file is noticed")
    assert await names(client) == ["a"]
    assert (await asyncio.to_thread(told_at, bridge.admin_port, "/readyz"))[0] == 200
    put(routes, written("b"))
    await until(lambda: is_listed(client, "b"), "b is listed")
    assert await figures(bridge.admin_port) == {"applied": 2, "refused": len(wrong) + 1}


async def test_a_file_behind_links_that_are_swapped_is_seen(tmp_path: Path, fake: FakeTaskStore) -> None:
    """As Kubernetes mounts a ConfigMap: routes.yaml -> ..data/routes.yaml, and ..data -> a folder with a time for its name."""

    def publish(folder: str, text: str) -> None:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "routes.yaml").write_text(text)
        (tmp_path / "..tmp").symlink_to(folder)
        (tmp_path / "..tmp").replace(tmp_path / "..data")

    publish("..1", written("a"))
    (tmp_path / "routes.yaml").symlink_to("..data/routes.yaml")
    config = Config(routes=str(tmp_path / "routes.yaml"), port=0, admin_port=0, drain_seconds=0)
    bridge = Bridge(config, connect=lambda _: fake)
    await bridge.start()
    async with listening(bridge.port, tools=True) as stream:
        await begun(stream)
        publish("..2", written("b"))
        assert await stream.frame() == CHANGED
        assert await stopped(bridge, stream) == ["the end"]


async def test_a_second_change_at_once_is_not_missed(routes: Path, client: Client) -> None:
    for text in (written("a"), written("b"), written("c")):
        routes.write_text(text)
    await until(lambda: is_listed(client, "c"), "c is listed")
    routes.write_text(written("d"))
    await until(lambda: is_listed(client, "d"), "d is listed")


async def test_a_call_under_way_keeps_its_route_and_its_task_stays_readable(
    routes: Path, client: Client, fake: FakeTaskStore
) -> None:
    fake.watching.clear()
    calling = asyncio.create_task(client.call("held"))
    async with asyncio.timeout(30):
        await fake.watching.wait()
    (held,) = fake.tasks
    task_id = (await client.call("task", tasks=True)).result["taskId"]
    put(routes, written("a"))
    await until(lambda: is_listed(client, "a"), "a is listed")
    assert (await client.call("held")).code == -32602
    assert (await client.task("get", task_id)).result["status"] == "working"
    await fake.complete(held, b'{"content":[]}')
    assert (await calling).result["content"] == []
    assert (await client.task("cancel", task_id)).status == 200
    assert (await client.task("get", task_id)).result["status"] == "cancelled"


def test_a_change_is_seen_within_half_a_second() -> None:
    assert 2 * LOOK_SECONDS < 0.5, "it is seen at one look, and read at the next"


def lines_of(process_lines: Iterator[str], event: str) -> dict[str, object]:
    """The next line of the log that tells of an event."""
    return next(line for line in map(json.loads, process_lines) if line["event"] == event)


def test_sighup_reads_the_file_again(routes: Path) -> None:
    port, admin_port, nowhere = free_ports(3)
    settings = {
        "TENURE_BRIDGE_ROUTES": str(routes),
        "TENURE_BRIDGE_PORT": str(port),
        "TENURE_BRIDGE_ADMIN_PORT": str(admin_port),
        "TENURE_BRIDGE_STORE": f"127.0.0.1:{nowhere}",
    }
    with serving(**settings) as process:
        assert process.stderr is not None
        lines_of(process.stderr, "bridge_started")
        process.send_signal(signal.SIGHUP)
        assert lines_of(process.stderr, "routes_applied")["path"] == str(routes)
        put(routes, "")
        assert lines_of(process.stderr, "routes_refused")["path"] == str(routes)
        process.send_signal(signal.SIGHUP)
        assert lines_of(process.stderr, "routes_refused")["path"] == str(routes)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
