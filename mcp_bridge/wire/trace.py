"""Trace context of a call: who called it within what, for telemetry alone. It decides nothing and never fails a call: what
is malformed or too large is left out.

Source: the specification's `_meta` keys `traceparent`, `tracestate` and `baggage`; W3C Trace Context and W3C Baggage.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_bridge.wire.headers import Headers

PARENT_BYTES: Final = 256
STATE_BYTES: Final = 512
BAGGAGE_BYTES: Final = 8 * 1024
_STATE_MEMBERS: Final = 32
_BAGGAGE_MEMBERS: Final = 64

# A version beyond the first may say more after the fields that are known; all zeros is no id.
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-[\x21-\x7e]*)?")
# Each class of characters by itself, so that nothing is tried twice.
_STATE_KEY = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}")
_STATE_VALUE = re.compile(r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAGGAGE_VALUE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """What was understood, each as it was sent; empty for what was not there."""

    parent: str = ""
    state: str = ""
    baggage: str = ""


_NONE: Final = TraceContext()


def read_trace(meta: Mapping[str, Any], headers: Headers | None) -> TraceContext:
    """The trace context in `_meta`, or, for a client or a gateway that sends it there, in the HTTP headers."""
    in_headers = headers is not None and (headers.all("traceparent") or headers.all("baggage"))
    if not in_headers and "traceparent" not in meta and "baggage" not in meta:  # as most calls are
        return _NONE
    sources: list[Callable[[str], list[Any]]] = [lambda name: [meta[name]] if name in meta else []]
    if headers is not None:
        sources.append(headers.all)
    parent = state = baggage = ""
    for source in sources:
        if not parent and (parent := _only(source("traceparent"), _is_parent)):
            state = _only(source("tracestate"), _is_state)  # it says nothing without its parent
        baggage = baggage or _only(source("baggage"), _is_baggage)
    return TraceContext(parent, state, baggage)


def _only(values: list[Any], is_well_formed: Callable[[str], bool]) -> str:
    text = ",".join(values) if values and all(isinstance(value, str) for value in values) else ""
    return text if is_well_formed(text) else ""


def _is_parent(text: str) -> bool:
    match = _PARENT.fullmatch(text) if len(text) <= PARENT_BYTES else None
    return match is not None and (match["more"] is None or not text.startswith("00"))


def _is_state(text: str) -> bool:
    if len(text) > STATE_BYTES:
        return False
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    keys = {key for key, _, value in (member.partition("=") for member in members) if _is_state_member(key, value)}
    return 0 < len(keys) == len(members) <= _STATE_MEMBERS


def _is_state_member(key: str, value: str) -> bool:
    return _STATE_KEY.fullmatch(key) is not None and _STATE_VALUE.fullmatch(value) is not None


def _is_baggage(text: str) -> bool:
    members = text.split(",") if len(text) <= BAGGAGE_BYTES else []
    return 0 < len(members) <= _BAGGAGE_MEMBERS and all(map(_is_baggage_member, members))


def _is_baggage_member(text: str) -> bool:
    """`key=value;property;key=value`, spaces around each part."""
    entry, *properties = text.split(";")
    return "=" in entry and _is_pair(entry) and all(map(_is_pair, properties))


def _is_pair(text: str) -> bool:
    key, _, value = (part.strip(" \t") for part in text.partition("="))
    return _TOKEN.fullmatch(key) is not None and _BAGGAGE_VALUE.fullmatch(value) is not None
