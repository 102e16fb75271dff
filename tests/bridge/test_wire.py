"""The pure floor: the envelope, headers, results. Contract, sections 1, 2 and 10.14; cases 1 to 4, 12, 15."""

import base64
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.wire.digests import call_digest, request_id
from mcp_bridge.wire.failures import STATUSES, Failure
from mcp_bridge.wire.headers import Form, Headers, check_content, check_name, check_params, choose_form
from mcp_bridge.wire.jsonrpc import Notification, Request, read_message, result_answer
from mcp_bridge.wire.results import Results, as_tool_result, inlined
from mcp_bridge.wire.sse import event

RESULTS = Results(name="tenure", version="1")
INFO = {"io.modelcontextprotocol/serverInfo": {"name": "tenure", "version": "1"}}


def refusal_of(body: bytes) -> Failure:
    with pytest.raises(Failure) as caught:
        read_message(body)
    return caught.value


def envelope(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "x", **members}).encode()


@pytest.mark.row("H5")
@pytest.mark.must("B-02")
@pytest.mark.parametrize("value", [None, 1.5, 1.0, True, False, {}, {"a": 1}, [], "x" * 257, "é" * 129])
def test_an_id_that_is_none_is_refused_and_not_echoed(value: Any) -> None:
    failure = refusal_of(envelope(id=value))
    assert failure.code == -32600
    assert failure.request_id is None
    assert b'"id"' not in failure.body(failure.request_id)


@pytest.mark.row("H6")
@pytest.mark.must("B-02", "B-05")
@pytest.mark.parametrize("value", [0, -1, 2**53 + 1, 10**600, "", "0", "x" * 256, "\u0000é"])
def test_ids_come_back_as_they_were_sent(value: Any) -> None:
    message = read_message(envelope(id=value))
    assert isinstance(message, Request)
    echoed = json.loads(b"".join(result_answer(message.id, b"{}")))["id"]
    assert echoed == value
    assert type(echoed) is type(value)


@pytest.mark.row("H4")
@pytest.mark.must("H-06")
@pytest.mark.parametrize("body", [b"[]", b" \n[1]", b"[" + envelope(id=1) + b"]", b"[" + b"," * 10])
def test_a_batch_is_refused_once(body: bytes) -> None:
    assert refusal_of(body).code == -32600


def test_a_batch_takes_no_time_for_its_length() -> None:
    body = b"[" + b",".join([envelope(id=1)] * 20_000) + b"]"
    started = time.thread_time()
    refusal_of(body)
    assert time.thread_time() - started < 0.005


@pytest.mark.row("H4")
@pytest.mark.must("B-01", "H-06")
@pytest.mark.parametrize(
    "body",
    [
        b'"x"',
        b"1",
        b"null",
        b"{}",
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"1.0","id":1,"method":"x"}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","result":{}}',
        envelope(id=1, method=5),
        envelope(id=1, method=""),
        envelope(id=1, method="m" * 129),
        envelope(id=1, params=[]),
        envelope(id=1, params=None),
    ],
)
def test_what_is_neither_request_nor_notification_is_refused(body: bytes) -> None:
    failure = refusal_of(body)
    assert failure.code == -32600
    assert failure.request_id == (1 if b'"id":1' in body.replace(b" ", b"") else None)


def test_a_message_without_id_is_a_notification() -> None:
    assert isinstance(read_message(envelope()), Notification)


@pytest.mark.must("B-05")
def test_the_id_is_told_where_it_could_be_read_from_a_body_that_is_too_deep() -> None:
    assert refusal_of(envelope(id="a", params={"a": json.loads("[" * 65 + "]" * 65)})).request_id == "a"
    assert refusal_of(b'{"id":1,"id":1}').request_id is None


@pytest.mark.row("H21")
@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, Form.JSON),
        ("*/*", Form.JSON),
        ("application/json", Form.JSON),
        ("text/event-stream", Form.EVENT_STREAM),
        ("application/*, text/*;q=0.5", Form.JSON),
        ("Application/JSON", Form.JSON),
        ("application/json;q=0", None),
        ("text/html", None),
        ("application/json;q=0.0, text/event-stream", Form.EVENT_STREAM),
        ("*/*, application/json;q=0", Form.EVENT_STREAM),
        ("*/*;q=0", None),
        ("application/json;q=0.001", Form.JSON),
        ("text/html, */*;q=0.1", Form.JSON),
        ("", None),
    ],
)
def test_accept_is_read_as_case_12_has_it(accept: str | None, form: Form | None) -> None:
    headers = Headers([] if accept is None else [("Accept", accept)])
    if form is None:
        with pytest.raises(Failure) as caught:
            choose_form(headers)
        assert caught.value.status == 406
    else:
        assert choose_form(headers) is form


def test_accept_may_be_spread_over_several_fields() -> None:
    assert choose_form(Headers([("accept", "text/html"), ("ACCEPT", "application/json")])) is Form.JSON


@pytest.mark.row("H21")
@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ([("Content-Type", "application/json")], True),
        ([("content-type", 'Application/JSON; charset="UTF-8"')], True),
        ([("Content-Type", "application/json"), ("Content-Encoding", "identity")], True),
        ([], False),
        ([("Content-Type", "text/plain")], False),
        ([("Content-Type", "application/json; charset=latin-1")], False),
        ([("Content-Type", "application/json"), ("Content-Type", "application/json")], False),
        ([("Content-Type", "application/json"), ("Content-Encoding", "gzip")], False),
        ([("Content-Type", "application/json"), ("Content-Encoding", "identity, gzip")], False),
        ([("Content-Type", "application/json"), ("Content-Encoding", "identity"), ("Content-Encoding", "br")], False),
    ],
)
def test_only_plain_json_in_utf8_is_taken(fields: list[tuple[str, str]], is_taken: bool) -> None:
    if is_taken:
        check_content(Headers(fields))
    else:
        with pytest.raises(Failure) as caught:
            check_content(Headers(fields))
        assert caught.value.status == 415


def wrapped(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.row("H10")
@pytest.mark.must("H-28")
@given(st.text(max_size=40))
def test_a_name_in_base64_is_compared_decoded(name: str) -> None:
    assert check_name(Headers([("mcp-name", wrapped(name))]), name, may_miss=False)
    with pytest.raises(Failure) as caught:
        check_name(Headers([("Mcp-Name", wrapped(name + "x"))]), name, may_miss=True)
    assert caught.value.code == -32020


@pytest.mark.row("H10")
@pytest.mark.must("H-28", "H-29", "H-30")
@pytest.mark.parametrize(
    ("sent", "expected", "is_equal"),
    [
        ("plain", "plain", True),
        (" \tplain ", "plain", True),
        ("Plain", "plain", False),
        ("", "", True),
        ("=?base64?!!!?=", "=?base64?!!!?=", False),
        ("=?base64?YQ?=", "a", False),
        ("=?base64?Y!Q==?=", "a", False),
        ("=?base64?Y\tQ==?=", "a", False),
        ("=?base64?/w==?=", "\xff", False),
        ("=?BASE64?YQ==?=", "=?BASE64?YQ==?=", True),
        ("=?base64?=", "=?base64?=", True),
        ("=?base64?YQ==", "=?base64?YQ==", True),
        ("=?base64??=", "", True),
        ("n\xe4me", "n\xe4me", False),
        (wrapped("=?base64?x?="), "=?base64?x?=", True),
        (wrapped("a\0"), "a\0", True),
    ],
)
def test_a_mirrored_value_is_plain_or_well_formed_base64(sent: str, expected: str, is_equal: bool) -> None:
    headers = Headers([("Mcp-Name", sent)])
    if is_equal:
        assert check_name(headers, expected, may_miss=False)
    else:
        with pytest.raises(Failure) as caught:
            check_name(headers, expected, may_miss=False)
        assert caught.value.code == -32020


MIRRORED = {"Region": ("region",), "Most": ("limits", "most"), "Dry": ("dry",)}


@pytest.mark.row("H11")
@pytest.mark.must("H-31", "H-32", "H-33", "H-37")
@pytest.mark.parametrize(
    ("fields", "arguments", "is_right"),
    [
        ({}, {}, True),
        ({"mcp-param-region": "eu"}, {"region": "eu"}, True),
        ({"Mcp-Param-Region": wrapped("é")}, {"region": "é"}, True),
        ({}, {"region": "eu"}, False),
        ({"Mcp-Param-Region": "us"}, {"region": "eu"}, False),
        ({"Mcp-Param-Region": "eu"}, {}, False),
        ({"Mcp-Param-Region": "null"}, {"region": None}, False),
        ({}, {"region": None}, True),
        ({"Mcp-Param-Other": "x"}, {}, True),
        ({"Mcp-Param-Most": "42"}, {"limits": {"most": 42}}, True),
        ({"Mcp-Param-Most": "42.0"}, {"limits": {"most": 42}}, True),
        ({"Mcp-Param-Most": "42"}, {"limits": {"most": 42.0}}, True),
        ({"Mcp-Param-Most": "42.5"}, {"limits": {"most": 42}}, False),
        ({"Mcp-Param-Most": "4_2"}, {"limits": {"most": 42}}, False),
        ({"Mcp-Param-Most": "9" * 5000}, {"limits": {"most": 9}}, False),
        ({"Mcp-Param-Most": "42"}, {"limits": {}}, False),
        ({"Mcp-Param-Most": "42"}, {"limits": 42}, False),
        ({"Mcp-Param-Dry": "true"}, {"dry": True}, True),
        ({"Mcp-Param-Dry": "True"}, {"dry": True}, False),
        ({"Mcp-Param-Dry": "1"}, {"dry": True}, False),
        ({"Mcp-Param-Region": ""}, {"region": ""}, True),
        ({"Mcp-Param-Region": "x"}, {"region": ["x"]}, False),
    ],
)
def test_mirrored_arguments_are_compared_at_their_path(fields: dict[str, str], arguments: Any, is_right: bool) -> None:
    headers = Headers(fields.items())
    if is_right:
        check_params(headers, MIRRORED, arguments)
    else:
        with pytest.raises(Failure) as caught:
            check_params(headers, MIRRORED, arguments)
        assert caught.value.code == -32020


@pytest.mark.row("H11")
def test_a_mirrored_header_that_is_there_twice_is_refused() -> None:
    headers = Headers([("Mcp-Param-Region", "eu"), ("mcp-param-region", "eu")])
    with pytest.raises(Failure, match="more than once"):
        check_params(headers, MIRRORED, {"region": "eu"})


@pytest.mark.parametrize(
    "handed_over",
    [
        b'{"content":[],"structuredContent":{"n":12345678901234567890123,"z":1.0,"a":"\\u00e9\\n"}}',
        b' {\n"content" : [ ] }\n',
        b'{"content":[{"type":"text","text":"a\\u0000b"}],"isError":true}',
    ],
)
def test_a_tool_result_is_spliced_byte_for_byte(handed_over: bytes) -> None:
    written = RESULTS.write_tool_result(as_tool_result(handed_over))
    members = json.loads(written)
    assert members.pop("resultType") == "complete"
    assert members.pop("_meta") == INFO
    assert members == json.loads(handed_over)
    content = handed_over.strip()[1:-1].strip()
    assert content in written or b"\\u" in handed_over


def test_a_tool_result_with_meta_of_its_own_keeps_it_and_no_name_stands_twice() -> None:
    handed_over = (
        b'{"resultType":"task","content":[],"n":1.0,'
        b'"\\u005fmeta":{"a":1,"io.modelcontextprotocol/serverInfo":{"name":"worker"}}}'
    )
    written = RESULTS.write_tool_result(handed_over)
    assert json.loads(written) == {"resultType": "complete", "_meta": {"a": 1, **INFO}, "content": [], "n": 1.0}
    assert written.count(b"meta") == 1
    assert b'"n":1.0' in written


def test_a_result_within_a_task_says_that_it_is_complete_and_no_name_stands_twice() -> None:
    assert b"".join(inlined(b' {"content": [],"n":1.0} ')).rstrip() == b'{"resultType":"complete","content": [],"n":1.0}'
    for name in (b'"resultType"', b'"result\\u0054ype"'):
        assert b"".join(inlined(b'{"content":[],' + name + b':"task"}')) == b'{"resultType":"complete","content":[]}'


@pytest.mark.parametrize("name", ["resultType", "_meta"])
def test_a_reserved_name_of_a_tool_result_never_stands_twice(name: str) -> None:
    written = RESULTS.write_tool_result(json.dumps({"content": [], name: {"a": 1}}).encode())
    assert len(json.loads(written, object_pairs_hook=list)) == 3
    assert written.count(f'"{name}"'.encode()) == 1


def test_a_nested_meta_is_left_alone() -> None:
    handed_over = b'{"content":[{"type":"text","text":"x","_meta":{"resultType":1}}]}'
    assert json.loads(RESULTS.write_tool_result(handed_over))["content"][0]["_meta"] == {"resultType": 1}


@pytest.mark.must("L-11")
@pytest.mark.parametrize("data", [b"5", b"null", b'"a\\nb"', b"[1]", b'{"answer":42}', b'{"content":"text"}', b" {} "])
def test_any_other_json_becomes_text_and_structured_content(data: bytes) -> None:
    value = json.loads(as_tool_result(data))
    assert value["structuredContent"] == json.loads(data)
    assert value["content"] == [{"type": "text", "text": data.decode()}]


def test_an_event_survives_line_ends_between_tokens() -> None:
    assert event(b'{"a":\r\n1,\r"b":\n2}') == b'data: {"a":\ndata: 1,\ndata: "b":\ndata: 2}\n\n'


def test_a_call_is_the_same_however_its_arguments_were_written() -> None:
    assert call_digest("t", {"a": 1, "b": {"x": 1, "y": 2}}) == call_digest("t", {"b": {"y": 2, "x": 1}, "a": 1})
    assert call_digest("t", {"a": 1}) != call_digest("t", {"a": "1"})
    assert call_digest("t", {}) != call_digest("u", {})


@pytest.mark.row("T16")
@given(
    st.lists(st.text(max_size=5), min_size=3, max_size=3, unique=True), st.lists(st.text(max_size=5), min_size=3, max_size=3)
)
def test_request_ids_differ_unless_principal_and_key_are_the_same(first: list[str], second: list[str]) -> None:
    assert (request_id(*first) == request_id(*second)) == (first == second)


@pytest.mark.row("H15")
@pytest.mark.must("B-07", "B-08", "B-09", "B-10")
def test_no_code_of_ours_lies_in_the_reserved_range() -> None:
    reserved = {code for code in STATUSES if -32768 <= code <= -32000}
    assert reserved == {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
