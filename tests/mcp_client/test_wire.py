"""What goes into headers comes out of them as the bridge reads it; events are events however they are cut."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.client import Policy, TaskHandle, TaskSnapshot, ToolResult
from mcp_bridge.client.event_stream import EventReader, EventStreamError
from mcp_bridge.client.headers import encode_value, follow, request_headers
from mcp_bridge.wire.headers import Headers, check_name, check_params, decode_value

BIG = 10**60 + 7


@given(st.text())
def test_every_text_comes_through_a_header_as_it_was(text: str) -> None:
    value = encode_value(text)
    assert decode_value("Mcp-Name", value.strip(" \t")) == text
    assert value.isascii()
    assert value.isprintable()


@pytest.mark.must("CH-07")
@pytest.mark.parametrize("text", ["=?base64?YQ==?=", " padded ", "tab\there", "Ö", "line\r\nInjected: yes"])
def test_what_could_be_misread_is_wrapped(text: str) -> None:
    assert encode_value(text).startswith("=?base64?")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "region": st.text() | st.none(),
            "count": st.integers(),
            "deep": st.fixed_dictionaries({"on": st.booleans()}),
        },
    )
)
def test_the_bridge_agrees_with_every_mirrored_argument(arguments: dict[str, Any]) -> None:
    deep = {"type": "object", "properties": {"on": {"type": "boolean", "x-mcp-header": "On"}}}
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "deep": deep,
        },
    }
    mirrored = follow(schema)
    fields = request_headers("tools/call", {"name": "a b", "arguments": arguments}, mirrored)
    headers = Headers(fields.items())
    check_params(headers, mirrored, arguments)
    assert check_name(headers, "a b", may_miss=False)


@pytest.mark.must("CH-05")
@pytest.mark.parametrize(
    "node",
    [
        {"type": "string", "x-mcp-header": ""},
        {"type": "string", "x-mcp-header": "A B"},
        {"type": "number", "x-mcp-header": "N"},
        {"type": "array", "items": {"type": "string", "x-mcp-header": "Item"}},
    ],
)
def test_a_header_that_must_not_be_followed_is_refused(node: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="x-mcp-header"):
        follow({"type": "object", "properties": {"value": node}})


def test_a_schema_of_too_many_levels_is_refused() -> None:
    deep = msgspec.json.decode('{"not":' * 400 + "{}" + "}" * 400)
    with pytest.raises(ValueError, match="deeper than 64"):
        follow(deep)


def test_a_value_that_only_looks_like_an_annotation_is_none() -> None:
    assert follow({"type": "object", "properties": {"a": {"enum": [{"x-mcp-header": "A"}]}}}) == {}


@given(st.lists(st.text("ab\u00e9 ", min_size=1), max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 7))
def test_events_are_whole_however_they_are_cut(texts: list[str], end: str, size: int) -> None:
    written = "".join(f": hush{end}event: message{end}data: {text}{end}{end}" for text in texts).encode()
    reader = EventReader(event_bytes=1000)
    pieces = [written[start : start + size] for start in range(0, len(written), size)]
    assert [event.decode() for piece in pieces for event in reader.feed(piece)] == texts


def test_an_event_of_several_lines_is_joined_and_one_that_is_too_large_refused() -> None:
    assert EventReader(event_bytes=99).feed(b"id: 1\ndata:\n\ndata: {\ndata:}\n\n") == [b"{\n}"]
    with pytest.raises(EventStreamError):
        EventReader(event_bytes=10).feed(b"data: 0123456789")
    with pytest.raises(EventStreamError):
        EventReader(event_bytes=10).feed(b"data:\n" * 11)


def test_the_time_that_a_large_event_takes_grows_as_it_does() -> None:
    def seconds(pieces: int) -> float:
        reader, started = EventReader(event_bytes=2**20), time.process_time()
        for _ in range(pieces):
            reader.feed(b"x" * 64)
        return time.process_time() - started

    small, large = (min(seconds(pieces) for _ in range(3)) for pieces in (250, 2_000))
    assert large < 24 * small, "eight times as much, not sixty-four"


def snapshot(**members: Any) -> TaskSnapshot:
    now = datetime.now(UTC)
    return TaskSnapshot("t", "working", now, now, **{"ttl_ms": None, **members})


@pytest.mark.must("CT-03")
def test_the_pause_keeps_to_the_server_within_the_policy_and_to_what_is_left() -> None:
    policy = Policy(least_poll_ms=100, most_poll_ms=5_000, default_poll_ms=700)

    def pause(left_seconds: float = 1e9, **members: Any) -> float:
        return policy.poll_pause(snapshot(**members), left_seconds=left_seconds, spread=lambda: 0.0)

    assert pause(poll_interval_ms=2_000) == 2.0
    assert pause(poll_interval_ms=1) == 0.1
    assert pause(poll_interval_ms=60_000) == 5.0
    assert pause() == 0.7
    assert pause(poll_interval_ms=2_000, left_seconds=1.0) == 0.5
    assert pause(poll_interval_ms=2_000, left_seconds=0.0) == 0.1
    assert 0.9 <= pause(poll_interval_ms=5_000, ttl_ms=2_000) <= 1.0
    assert Policy().poll_pause(snapshot(poll_interval_ms=900_000), left_seconds=1e9) >= 900, "as seldom as the server asks"
    assert pause(poll_interval_ms=2_000, ttl_ms=-5_000) == 2.0, "a handle that has ended by our clock is no reason to hurry"
    assert policy.poll_pause(snapshot(poll_interval_ms=1_000), left_seconds=1e9, spread=lambda: 1.0) == pytest.approx(1.1)


def test_repetitions_are_further_and_further_apart() -> None:
    pauses = [Policy().backoff(attempt, spread=lambda: 1.0) for attempt in (1, 2, 3, 99)]
    assert pauses == [0.1, 0.2, 0.4, 5.0]


def test_a_handle_is_plain_data() -> None:
    handle = TaskHandle("t", "https://example.com/mcp", "work")
    assert TaskHandle.from_json(handle.to_json()) == handle
    with pytest.raises(AttributeError):
        handle.task_id = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="task_id"):
        TaskHandle.from_json("{}")


def test_unknown_members_are_ignored_and_big_integers_kept() -> None:
    data = b'{"content":[],"structuredContent":{"n":%d},"new":{"x":1}}' % BIG
    result = msgspec.json.decode(data, type=ToolResult)
    assert result.structured_content == {"n": BIG}
    assert str(BIG).encode() in msgspec.json.encode(result)
    assert msgspec.json.decode(b'{"content":[],"structuredContent":null}', type=ToolResult).structured_content is None


def test_times_are_read_with_their_zone() -> None:
    read = msgspec.json.decode(
        b'{"taskId":"t","status":"working","createdAt":"2026-01-01T00:00:00.500Z","lastUpdatedAt":"2026-01-01T00:00:00Z",'
        b'"ttlMs":1500,"soon":[]}',
        type=TaskSnapshot,
    )
    assert read.expires_at == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert read.created_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("ttl_ms", [2**53 - 1, -(2**53) + 1, 10**400])
def test_a_handle_past_all_dates_is_one_without_end(ttl_ms: int) -> None:
    assert Policy().poll_pause(snapshot(ttl_ms=ttl_ms, poll_interval_ms=1_000), left_seconds=1e9) >= 1.0


def test_times_without_a_zone_are_those_of_utc() -> None:
    bare, zoned = (snapshot_at(f"2026-01-01T00:00:00{zone}") for zone in ("", "Z"))
    assert bare == zoned
    assert bare.expires_at == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)


def snapshot_at(time: str) -> TaskSnapshot:
    members = {"taskId": "t", "status": "working", "createdAt": time, "lastUpdatedAt": time, "ttlMs": 1000}
    return msgspec.json.decode(msgspec.json.encode(members), type=TaskSnapshot)
