"""The look at a payload, without a store: for whatever bytes, what is taken is JSON that every reader can read."""

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_service.model import limits
from store_service.model.limits import check_name, check_page, check_range, check_task_id, check_text
from store_service.model.payloads import DEPTH, DIGITS, Payload, check_json, check_payload
from store_service.model.refusals import Reason, Refusal

texts = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def refusal_by(check: Callable[[], Any]) -> Refusal | None:
    """Why a check refuses; None when it does not."""
    try:
        check()
    except Refusal as refusal:
        return refusal
    return None


def is_taken(data: bytes) -> bool:
    """Whether the look lets it pass. Where it does not, it says which field and why."""
    refusal = refusal_by(lambda: check_json("field", data))
    if refusal is not None:
        assert refusal.reason is Reason.INVALID_INPUT
        assert refusal.message.startswith("field must ")
    return refusal is None


def is_json(data: bytes) -> bool:
    """Whether the standard library reads it."""
    try:
        json.loads(data)
    except (ValueError, UnicodeDecodeError):
        return False
    return True


def nested(depth: int, *, style: str) -> bytes:
    """A value so deep."""
    match style:
        case "lists":
            return b"[" * depth + b"]" * depth
        case "objects":
            return b'{"[":' * depth + b'"]"' + b"}" * depth
        case _:
            half, odd = divmod(depth, 2)
            return b'[{"":' * half + b"[" * odd + b"0" + b"]" * odd + b"}]" * half


@given(value=values, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_what_a_writer_of_json_writes_is_taken(value: Any, ascii_only: bool, indent: int | None) -> None:
    assert is_taken(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode())


@given(data=st.binary(max_size=40) | st.text('[]{}":,\\0123eE+-. \nutrfalsn').map(str.encode))
def test_what_is_taken_another_reader_reads_too(data: bytes) -> None:
    if is_taken(data):
        json.loads(data)


@given(value=values, cut=st.integers(0, 10_000), added=st.sampled_from([b"", b"]", b"}", b"\xff", b"\0", b","]))
def test_half_a_value_is_not_taken_for_one(value: Any, cut: int, added: bytes) -> None:
    whole = json.dumps([value]).encode()
    half = whole[: cut % len(whole)]
    assert not is_taken(half)
    assert is_taken(half + added) == is_json(half + added)


@pytest.mark.parametrize("style", ["lists", "objects", "both"])
@given(depth=st.integers(1, 300), count=st.integers(1, 3))
def test_depth_is_taken_up_to_64(style: str, depth: int, count: int) -> None:
    assert is_taken(nested(depth, style=style)) == (depth <= DEPTH)
    many = b"[" + b",".join([nested(depth, style=style)] * count) + b"]"
    assert is_taken(many) == (depth + 1 <= DEPTH)


@given(brackets=st.text('[]{}"\\', max_size=300))
def test_brackets_within_a_text_are_no_depth(brackets: str) -> None:
    assert is_taken(json.dumps([brackets, {brackets: brackets}]).encode())


@given(digits=st.integers(1, 1_000), sign=st.sampled_from([b"", b"-"]))
def test_numbers_are_taken_up_to_640_digits(digits: int, sign: bytes) -> None:
    assert is_taken(sign + b"7" * digits) == (digits <= DIGITS)
    assert is_taken(b'{"7":' + sign + b"7" * digits + b"}") == (digits <= DIGITS)
    assert is_taken(b'"' + b"7" * digits + b'"')


@given(
    number=st.from_regex(r"-?(0|[1-9][0-9]{0,330})(\.[0-9]{1,330})?([eE][-+]?[0-9]{1,5})?", fullmatch=True),
    around=st.sampled_from([b"%s", b"[%s]", b'{"1e999": %s, "a": [[]]}', b'["\\"1e999", %s, "\\\\"]', b"[1e5,%s]"]),
)
def test_a_number_is_taken_where_a_double_has_room_for_it(number: str, around: bytes) -> None:
    assert is_taken(around % number.encode()) == (math.isfinite(float(number)) or number.lstrip("-").isdigit())


@given(value=values, brackets=st.text('[]{}"\\e0 ', max_size=40))
def test_what_stands_in_texts_is_no_number_and_no_depth(value: Any, brackets: str) -> None:
    texts = [brackets, "1e999", "7" * 700, "[" * 70, value]
    assert is_taken(json.dumps([texts] + [[]] * 70, ensure_ascii=False).encode())


def test_a_large_payload_is_looked_at_faster_than_it_is_read() -> None:
    one = {"id": 12345, "name": "A name", "tags": ["x", "y"], "at": "2026-01-01T00:00:00Z", "v": 1.25}
    data = json.dumps([one] * (limits.RESULT_BYTES // 100)).encode()

    def seconds(look: Callable[[], Any]) -> float:
        started = time.process_time()
        look()
        return time.process_time() - started

    assert is_taken(data)
    look, read = (min(seconds(one) for _ in range(5)) for one in (lambda: is_taken(data), lambda: json.loads(data)))
    assert look < read


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 65 + b'"' + b'\\"' * 500_000,
        b'"' + b'\\"' * 500_000,
        b'"\\' * 500_000 + b"[" * 65,
        b"[" * 1_000_000,
        b"[" * 500_000 + b"]" * 500_000,
        (b"[]" * 64 + b"[") * 8_000,
        b"[" + b",".join([b"[]"] * 300_000) + b"]",
        b"7" * 1_000_000,
        b'["' * 300_000,
    ],
    ids=range(9),
)
def test_a_mebibyte_of_malice_is_looked_at_in_no_time(data: bytes) -> None:
    started = time.process_time()
    is_taken(data)
    assert time.process_time() - started < 1.0


@given(size=st.integers(0, 20), most=st.integers(0, 20))
def test_the_size_of_a_payload_is_bounded_whatever_it_is(size: int, most: int) -> None:
    data = bytes(size)
    refusal = refusal_by(lambda: check_payload("field", "application/octet-stream", data, most_bytes=most))
    if size > most:
        assert str(refusal) == f"field.data must be at most {most} bytes, not {size}"
    else:
        assert refusal is None
        taken = check_payload("field", "application/octet-stream", data, most_bytes=most)
        assert taken == Payload("application/octet-stream", data)


@given(text=texts, most=st.integers(0, 50), blank=st.booleans())
def test_a_text_is_bounded_in_bytes(text: str, most: int, blank: bool) -> None:
    allowed = len(text.encode()) <= most and "\0" not in text and (blank or bool(text.strip()))
    assert (refusal_by(lambda: check_text("field", text, most_bytes=most, blank=blank)) is None) == allowed


@given(name=texts | st.text("abcXYZ019_.-", max_size=140))
def test_a_name_is_of_few_characters(name: str) -> None:
    fits = 0 < len(name) <= 128 and all(one.isascii() and (one.isalnum() or one in "_.-") for one in name)
    assert (refusal_by(lambda: check_name("field", name)) is None) == fits


@given(value=st.uuids(), change=st.sampled_from(["upper", "hex", "braces", "urn", "space", "none"]))
def test_an_id_is_taken_in_its_canonical_form_alone(value: Any, change: str) -> None:
    text = str(value)
    forms = {
        "upper": text.upper(), "hex": value.hex, "braces": f"{{{text}}}", "urn": value.urn, "space": f" {text}", "none": text,
    }  # fmt: skip
    assert (refusal_by(lambda: check_task_id("field", forms[change])) is None) == (forms[change] == text)
    assert check_task_id("field", text) == text


@given(value=st.integers(-(2**70), 2**70))
def test_a_range_is_held_at_both_ends(value: int) -> None:
    for allowed in (limits.LEASE_MS, limits.TTL_MS, limits.RETENTION_MS, limits.INT32):
        for number in (value, allowed.start, allowed.start - 1, allowed.stop - 1, allowed.stop):
            refusal = refusal_by(lambda: check_range("field", number, allowed))  # noqa: B023 (called at once)
            if allowed.start <= number < allowed.stop:
                assert refusal is None
            else:
                assert str(refusal) == f"field must be {allowed.start} to {allowed.stop - 1}"
    assert check_page("field", 0, most=5, default=3) == 3
