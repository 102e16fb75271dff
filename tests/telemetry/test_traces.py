"""One trace from a call of MCP to the commit, and one for each run of a worker, linked with the call."""

import asyncio

import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from taskstore.v1 import tasks_pb2_grpc

from mcp_bridge.client import Policy, ProtocolFailure, TaskClient, TransportError
from store_service.server import Store
from tests.bridge.client import Client
from tests.pair import free_ports
from tests.store.builders import new_task
from tests.telemetry.spans import Kept, id_of, links_of, trace_of

TRACE, OTHER_TRACE = "a" * 32, "c" * 32
PARENT, OTHER = f"00-{TRACE}-{'b' * 16}-01", f"00-{OTHER_TRACE}-{'d' * 16}-01"
CREATE = "taskstore.v1.TaskService/CreateTask"


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_one_trace_goes_from_the_call_through_bridge_and_store_to_the_statement(user: Client, kept: Kept) -> None:
    task_id = (await user.call("nobody", tasks=True, meta_members={"traceparent": PARENT})).result["taskId"]
    call, (asked, served), statement = (
        kept.named("tools/call nobody")[0],
        kept.named(CREATE)[::-1],
        kept.named("create_tasks")[0],
    )
    assert {format_trace_id(trace_of(one)) for one in (call, asked, served, statement)} == {TRACE}
    assert call.parent is not None
    assert format_span_id(call.parent.span_id) == "b" * 16
    assert (kept.children(call), kept.children(asked), kept.children(served)) == ([asked], [served], [statement])
    kinds = [(one.resource.attributes["service.name"], one.kind) for one in (call, asked, served, statement)]
    assert kinds == [
        ("bridge", SpanKind.SERVER), ("bridge", SpanKind.CLIENT), ("store", SpanKind.SERVER), ("store", SpanKind.CLIENT),
    ]  # fmt: skip
    assert attributes(call) == {
        "mcp.method.name": "tools/call", "mcp.protocol.version": "2026-07-28", "network.transport": "tcp",
        "jsonrpc.request.id": "1", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "nobody",
        "tenure.task.id": task_id,
    }  # fmt: skip
    rpc = {"rpc.system.name": "grpc", "rpc.method": CREATE, "rpc.response.status_code": "OK"}
    assert attributes(served) == rpc
    assert attributes(asked).items() >= {**rpc, "server.address": "127.0.0.1"}.items()
    assert attributes(statement) == {"db.system.name": "postgresql", "db.query.summary": "create_tasks"}
    assert call.start_time is not None
    assert asked.start_time is not None
    assert call.start_time < asked.start_time


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("tool", ["two_steps", "in_a_thread"])
async def test_each_run_has_a_trace_of_its_own_that_is_linked_with_the_call(user: Client, kept: Kept, tool: str) -> None:
    told = (await user.call(tool)).result["structuredContent"]
    run = await kept.one("run two" if tool == "two_steps" else "run sync")
    call = await kept.one(f"tools/call {tool}")
    assert (run.parent, run.kind, links_of(run)) == (None, SpanKind.CONSUMER, [id_of(call)])
    assert trace_of(run) != trace_of(call)
    known = attributes(run)
    assert known.pop("tenure.task.id") == attributes(call)["tenure.task.id"]
    assert known == {
        "tenure.tenant.id": "dev", "tenure.workflow.name": run.name.removeprefix("run "), "tenure.workflow.version": 1,
        "tenure.attempt": 1, "tenure.outcome": "completed",
    }  # fmt: skip
    steps = [one for one in kept.children(run) if one.name == "step see"]
    assert len(steps) == (2 if tool == "two_steps" else 1)
    assert told == {"step": format_span_id(id_of(steps[0])), "run": format_span_id(id_of(run))}
    written = {one.name.rpartition("/")[2] for one in kept.of("store") if trace_of(one) == trace_of(run)}
    assert "AppendCheckpoint" in written
    assert written & {"CompleteTask", "CompleteAndLeaseTasks"}


async def test_meta_wins_over_the_header_which_is_linked(user: Client, kept: Kept) -> None:
    await user.ask("tools/list", meta_members={"traceparent": PARENT}, traceparent=OTHER)
    await user.ask("tools/list", traceparent=OTHER)
    await user.ask("tools/list")
    both, header, neither = await kept.some("tools/list", 3)
    assert both.parent is not None
    assert header.parent is not None
    assert (format_trace_id(trace_of(both)), links_of(both)) == (TRACE, [int("d" * 16, 16)])
    assert (format_trace_id(trace_of(header)), links_of(header)) == (OTHER_TRACE, [])
    assert (neither.parent, links_of(neither)) == (None, [])


@pytest.mark.usefixtures("worker")
async def test_what_the_caller_does_not_record_nobody_records(user: Client, kept: Kept) -> None:
    for end in ("00", "01"):
        seen = (await user.call("two_steps", meta_members={"traceparent": PARENT[:-2] + end})).result["structuredContent"]
        assert seen["step"] != "0" * 16, "the code has a context in either case"
    await kept.one("run two")
    assert len(kept.named("tools/call two_steps")) == 1
    assert {format_trace_id(trace_of(one)) for one in kept.all if one.parent is not None} == {
        TRACE, format_trace_id(trace_of(kept.named("run two")[0])),
    }  # fmt: skip


def is_followed(kept: Kept, asker: ReadableSpan, shared: str) -> bool:
    """Whether what came of a span is found: as its child, or as the batch that it is linked with."""
    batches = {id_of(one): one for one in kept.named(f"{shared} batch")}
    found = [batches[one] for one in links_of(asker) if one in batches]
    return any(id_of(asker) in links_of(one) for one in found) or bool(kept.children(asker))


@pytest.mark.batching("it is about the spans of batches")
async def test_calls_that_travel_together_are_linked_with_their_batch(user: Client, kept: Kept) -> None:
    await asyncio.gather(*(user.call("nobody", {"n": number}, tasks=True) for number in range(24)))
    calls = await kept.some("tools/call nobody", 24)
    assert len({trace_of(one) for one in calls}) == 24
    assert kept.named("CreateTask batch")
    assert [one for one in calls if not is_followed(kept, one, "CreateTask")] == []
    for batch in kept.named("CreateTask batch"):
        assert batch.parent is not None
        assert len(links_of(batch)) == attributes(batch)["tenure.batch.size"] - 1  # type: ignore[operator]
        (asked,) = kept.children(batch)
        (served,) = kept.children(asked)
        assert [one.name for one in kept.children(served)] == ["create_tasks"]


@pytest.mark.batching("it is about the spans of batches")
async def test_calls_of_several_clients_are_linked_with_their_statement(traced_store: Store, kept: Kept) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{traced_store.port}") as channel:
        create = tasks_pb2_grpc.TaskServiceStub(channel).CreateTask
        parents = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 41)]
        await asyncio.gather(*(create(new_task(), metadata=(("traceparent", one),)) for one in parents))
    served = await kept.some(CREATE, 40)
    assert sorted(trace_of(one) for one in served) == list(range(1, 41))
    assert kept.named("create_tasks batch")
    assert [one for one in served if not is_followed(kept, one, "create_tasks")] == []
    for batch in kept.named("create_tasks batch"):
        assert [one.name for one in kept.children(batch)] == ["create_tasks"]


async def test_what_nobody_asked_for_has_no_span(traced_store: Store, kept: Kept) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{traced_store.port}") as channel:
        stub = tasks_pb2_grpc.TaskServiceStub(channel)
        await stub.CreateTask(new_task(), metadata=(("traceparent", "canary"),))
        await stub.CreateTask(new_task())
    assert [one.name for one in kept.all] == [], "neither chores nor their statements"


@pytest.mark.usefixtures("worker")
async def test_of_failures_the_kind_is_told_and_no_text(user: Client, kept: Kept) -> None:
    await user.call("breaks")
    await user.call("of Ann")
    await user.ask("secret/of Ann")
    run, step, unknown = await kept.one("run breaks"), await kept.one("step tell_secret"), await kept.one("tools/call")
    other = await kept.one("_OTHER")
    errors = [(attributes(one).get("error.type"), one.status.status_code, one.status.description) for one in (run, step)]
    assert errors == [("tool_error", StatusCode.ERROR, None), ("ToolError", StatusCode.ERROR, None)]
    assert attributes(unknown)["rpc.response.status_code"] == attributes(unknown)["error.type"] == "-32602"
    assert attributes(other)["error.type"] == "-32601"
    assert [one.name for one in kept.all if one.events] == []
    assert [one.to_json() for one in kept.all if "Ann" in one.to_json()] == []


@pytest.mark.usefixtures("worker")
async def test_a_trace_begins_at_the_client_and_goes_on_through_bridge_and_store(user: Client, kept: Kept) -> None:
    traces = kept.traces("caller")
    async with TaskClient(user.url, traces=traces) as client:
        assert (await client.call_tool("two_steps")).structured_content
        with traces.within("of the application", "internal", {}):
            await client.list_tools()
        with pytest.raises(ProtocolFailure):
            await client.call_tool("of Ann")
    (asked,) = [one for one in kept.of("caller") if one.name == "tools/call two_steps"]
    assert (asked.parent, asked.kind) == (None, SpanKind.CLIENT)
    (called,) = [one for one in kept.children(asked) if one.resource.attributes["service.name"] == "bridge"]
    assert (called.name, called.kind) == (asked.name, SpanKind.SERVER)
    await kept.until(lambda: bool(kept.children(called)))
    assert {trace_of(one) for one in kept.named("create_tasks")} == {trace_of(asked)}
    assert links_of(await kept.one("run two")) == [id_of(called)]
    known = attributes(asked)
    assert known.pop("server.port")
    assert known == {
        "mcp.method.name": "tools/call", "mcp.protocol.version": "2026-07-28", "network.transport": "tcp",
        "jsonrpc.request.id": known["jsonrpc.request.id"], "server.address": "127.0.0.1",
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "two_steps",
    }  # fmt: skip
    assert known["jsonrpc.request.id"] == attributes(called)["jsonrpc.request.id"]
    (within,) = kept.named("of the application")
    assert [one.name for one in kept.children(within)] == ["tools/list"]
    (refused,) = [one for one in kept.of("caller") if one.name == "tools/call of Ann"]
    assert (attributes(refused)["error.type"], refused.status.description) == ("-32602", None)


async def test_a_client_whose_server_is_away_tells_so_in_its_span_and_one_without_traces_names_none(
    user: Client, kept: Kept
) -> None:
    (nowhere,) = free_ports(1)
    policy = Policy(request_seconds=0.5)
    async with TaskClient(f"http://127.0.0.1:{nowhere}/mcp", traces=kept.traces("caller"), policy=policy) as client:
        with pytest.raises(TransportError):
            await client.discover()
    assert {attributes(one)["error.type"] for one in kept.of("caller")} == {"TransportError"}
    async with TaskClient(user.url) as client:
        await client.discover()
    await kept.until(lambda: bool(kept.of("bridge")))
    (served,) = kept.of("bridge")
    assert (served.name, served.parent) == ("server/discover", None)
