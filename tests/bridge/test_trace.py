"""Trace context from a call to its worker. Source: the specification's reserved `_meta` keys; security checklist
G10."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.wire.headers import Headers
from mcp_bridge.wire.trace import BAGGAGE_BYTES, PARENT_BYTES, STATE_BYTES, TraceContext, read_trace
from tests.bridge.client import Client
from tests.bridge.fake_store import FakeTaskStore

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
BAGGAGE = "userId=alice , serverNode=DF%2028;ttl=5; hot,empty="
ANY_VALUE = st.none() | st.integers() | st.text("0af-=,;@ \t\n\x00\x7fé", max_size=80) | st.lists(st.text("a=", max_size=3))
NAMES = ("traceparent", "tracestate", "baggage")


def read(*headers: tuple[str, str], **meta: Any) -> TraceContext:
    return read_trace(meta, Headers(headers))


def test_each_part_is_taken_as_it_was_sent() -> None:
    assert read(traceparent=PARENT, tracestate=STATE, baggage=BAGGAGE) == TraceContext(PARENT, STATE, BAGGAGE)
    assert read() == TraceContext()
    assert read_trace({"traceparent": PARENT}, None) == TraceContext(PARENT)


def test_meta_goes_before_the_headers_and_a_state_with_its_parent() -> None:
    headers = (("traceparent", OTHER), ("Tracestate", "a=1"), ("tracestate", "b=2"), ("baggage", "k=v"))
    assert read(*headers) == TraceContext(OTHER, "a=1,b=2", "k=v")
    assert read(*headers, traceparent=PARENT) == TraceContext(PARENT, "", "k=v")
    assert read(*headers, traceparent="bad", tracestate=STATE, baggage=BAGGAGE) == TraceContext(OTHER, "a=1,b=2", BAGGAGE)
    assert read(tracestate=STATE) == TraceContext()


@pytest.mark.parametrize("parent", [PARENT, OTHER, "cc-" + PARENT[3:] + "-what-comes-later", "01-" + PARENT[3:]])
def test_a_well_formed_parent(parent: str) -> None:
    assert read(traceparent=parent).parent == parent


@pytest.mark.must("B-34")
@pytest.mark.parametrize(
    "parent",
    [
        "", "x", PARENT.upper(), PARENT[:-1], PARENT + "0", PARENT + "-more", "ff" + PARENT[2:], PARENT + "\n", f" {PARENT}",
        f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01", "cc-" + PARENT[3:] + "-" + "x" * PARENT_BYTES, 5, None,
        [PARENT],
    ],
)  # fmt: skip
def test_a_malformed_parent_is_left_out(parent: Any) -> None:
    assert read(traceparent=parent, tracestate=STATE, baggage=BAGGAGE) == TraceContext(baggage=BAGGAGE)


@pytest.mark.parametrize("state", [STATE, "a=1,,b=2", "t@v=x y", "a=" + "x" * 256, ",".join(f"k{n}=v" for n in range(32))])
def test_a_well_formed_state(state: str) -> None:
    assert read(traceparent=PARENT, tracestate=state).state == state


@pytest.mark.must("B-34")
@pytest.mark.parametrize(
    "state",
    [
        "", ",", "a", "a=", "A=1", "a=1,a=2", "a=b=c", "a=\x7f", "a=é", "a=" + "x" * 257,
        ",".join(f"k{n}=v" for n in range(33)), "a=" + "x" * STATE_BYTES, {}, [STATE],
    ],
)  # fmt: skip
def test_a_malformed_state_is_left_out(state: Any) -> None:
    assert read(traceparent=PARENT, tracestate=state) == TraceContext(PARENT)


@pytest.mark.parametrize("baggage", [BAGGAGE, "a=", "k=" + "v" * (BAGGAGE_BYTES - 2), ",".join(f"k{n}=v" for n in range(64))])
def test_well_formed_baggage(baggage: str) -> None:
    assert read(baggage=baggage).baggage == baggage


@pytest.mark.must("B-34")
@pytest.mark.parametrize(
    "baggage",
    [
        "", "a", "=b", "a b=c", 'a="b"', "a=b,", "a=b;;", "a=é", "a=b\n", "a=b\0", "k=" + "v" * (BAGGAGE_BYTES - 1), 1.5,
        ",".join(f"k{n}=v" for n in range(65)), {"k": "v"},
    ],
)  # fmt: skip
def test_malformed_baggage_is_left_out(baggage: Any) -> None:
    assert read(baggage=baggage) == TraceContext()


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, ANY_VALUE)))
def test_whatever_is_sent_what_is_taken_is_bounded_ascii(meta: dict[str, Any]) -> None:
    trace = read_trace(meta, Headers((name, str(value)) for name, value in meta.items()))
    for text in (trace.parent, trace.state, trace.baggage):
        assert text.isascii()
        assert not set(text) & set("\0\n\x7f")


async def test_the_trace_of_a_call_goes_with_its_task(client: Client, fake: FakeTaskStore) -> None:
    members = {"traceparent": PARENT, "tracestate": STATE, "baggage": BAGGAGE}
    await client.call("task", tasks=True, meta_members=members, traceparent=OTHER)
    contract = fake.created[0].contract
    assert (contract.trace_parent, contract.trace_state, contract.baggage) == (PARENT, STATE, BAGGAGE)


@pytest.mark.parametrize("value", [5, None, [], {"a": 1}, "x" * 100_000, "\u0000", "é"])
async def test_no_trace_breaks_a_call(client: Client, fake: FakeTaskStore, value: Any) -> None:
    answer = await client.call("task", tasks=True, meta_members=dict.fromkeys(NAMES, value))
    assert answer.result["resultType"] == "task", json.dumps(value)
    contract = fake.created[0].contract
    assert (contract.trace_parent, contract.trace_state, contract.baggage) == ("", "", "")
