"""JSON as a stranger sends it. Security checklist H19, H20; cases 7, 8, 10, 11."""

import json
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_bridge.wire.strict import DEPTH, DIGITS, MEMBERS, Unreadable, parse

TEXTS = st.text(st.characters(blacklist_categories=["Cs"]) | st.sampled_from('":{}[],\\0123456789'), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_every_value_is_read_as_it_was_written(value: Any, ascii_only: bool, indent: int | None) -> None:
    assert parse(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()) == value


@pytest.mark.row("H20")
@given(st.lists(st.tuples(TEXTS, VALUES), max_size=6), st.booleans())
@example([("a:b", 1), ("a:b", 2)], False)
@example([("a", {"x": ":"}), ("a", "\\u003a")], True)
def test_an_object_with_the_same_member_twice_is_refused(members: list[tuple[str, Any]], escaped: bool) -> None:
    def name(text: str) -> str:
        return (
            "".join(f"\\u{ord(c):04x}" if c in "a:" else json.dumps(c)[1:-1] for c in text)
            if escaped
            else json.dumps(text)[1:-1]
        )

    text = "{" + ",".join(f'"{name(key)}":{json.dumps(value)}' for key, value in members) + "}"
    if max(Counter(key for key, _ in members).values(), default=0) > 1:
        with pytest.raises(Unreadable, match="twice"):
            parse(text.encode())
    else:
        assert parse(text.encode()) == dict(members)


def test_a_lost_colon_is_not_made_up_by_an_escaped_one() -> None:
    with pytest.raises(Unreadable, match="twice"):
        parse(b'{"a":1,"a":"\\u003a"}')


@pytest.mark.row("H20")
@pytest.mark.must("X-01")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b"{'a':1}",
        b'{"a":1}x',
        b"nul",
        b"01",
        b"NaN",
        b"-Infinity",
        b'{"a":NaN}',
        b"1e999",
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud83d\\u0041"',
        b'"\x01"',
        b'{"a":1}\x00',
        "{}".encode("utf-16"),
    ],
)
def test_what_is_not_one_json_value_in_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(body)


def test_the_null_character_is_text_like_any_other() -> None:
    assert parse(b'"a\\u0000b"') == "a\0b"


@pytest.mark.row("H19")
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_sixty_four_levels_are_read_and_one_more_is_refused(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    inner = "1" if opening == '{"a":' else ""
    assert parse((opening * DEPTH + inner + closing * DEPTH).encode())
    with pytest.raises(Unreadable, match="64 levels"):
        parse((opening * (DEPTH + 1) + inner + closing * (DEPTH + 1)).encode())


def test_brackets_within_strings_are_no_levels() -> None:
    assert parse(json.dumps(["[" * 500 + '\\"{' * 500]).encode()) == ["[" * 500 + '\\"{' * 500]


@pytest.mark.row("H19")
@pytest.mark.parametrize("body", [b"[" * 20_000 + b"]" * 20_000, b"[" * 1_000_000, b'{"a":' * 200_000, b"[[]," * 300_000])
def test_deep_nesting_is_refused_within_fifty_milliseconds(body: bytes) -> None:
    started = time.thread_time()
    with pytest.raises(Unreadable):
        parse(body)
    assert time.thread_time() - started < 0.05


@pytest.mark.row("H19")
@pytest.mark.parametrize("form", ["{}", "-{}", "[1,{}]", '{{"a":{}}}', "0.{}", "1.5e{}"])
def test_numbers_of_too_many_digits_are_refused(form: str) -> None:
    for digits in (DIGITS + 1, 4_301, 100_000):
        with pytest.raises(Unreadable):
            parse(form.format("0" * (digits - 1) + "1" if "." in form else "1" * digits).encode())


def test_the_longest_allowed_integer_is_kept() -> None:
    assert parse(b"7" * DIGITS) == int("7" * DIGITS)


@pytest.mark.parametrize("before", [0, 1, 320, 639, 640, 641, 1281, 5000])
def test_long_runs_of_digits_are_found_wherever_they_stand_but_not_in_strings(before: int) -> None:
    padding = b" " * before
    assert parse(padding + b'["' + b"1" * (DIGITS + 1) + b'"]')
    with pytest.raises(Unreadable, match="digits"):
        parse(padding + b"[0." + b"1" * (DIGITS + 1) + b"]")
    assert parse(padding + b"[0." + b"1" * DIGITS + b"]")


@pytest.mark.row("H19")
def test_ten_thousand_members_are_read_and_one_more_is_refused() -> None:
    assert len(parse(json.dumps({str(n): n for n in range(MEMBERS)}).encode())) == MEMBERS
    with pytest.raises(Unreadable, match="members"):
        parse(json.dumps([{str(n): n} for n in range(MEMBERS + 1)]).encode())


def test_colons_within_strings_are_no_members() -> None:
    assert parse(json.dumps({"a": ":" * 20_000}).encode()) == {"a": ":" * 20_000}
