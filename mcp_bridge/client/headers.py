"""The header fields that repeat the body, so that gateways can route by them.

Source: contract, sections 2 and 10.22; the transport's rules for `x-mcp-header`.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from mcp_bridge.wire.headers import EVENT_STREAM, JSON
from mcp_bridge.wire.mcp import NAMED_BY, VERSION
from mcp_bridge.wire.mirrored import Mirrored, Path, read_mirrored

_AS_IT_IS = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_WRAPPED: Final = "=?base64?"


def encode_value(text: str) -> str:
    """A text as a header's value: as it is where that is safe, in base64 otherwise."""
    if _AS_IT_IS.fullmatch(text) and not text.startswith(_WRAPPED):
        return text
    return f"{_WRAPPED}{base64.b64encode(text.encode()).decode()}?=" if text else ""


def request_headers(method: str, params: Mapping[str, Any], mirrored: Mirrored | None = None) -> dict[str, str]:
    """The header fields of one request."""
    headers = {
        "Accept": f"{JSON}, {EVENT_STREAM}",
        "Content-Type": JSON,
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
    }
    name = params.get(NAMED_BY.get(method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = encode_value(name)
    for suffix, path in (mirrored or {}).items():
        value = _at(params.get("arguments", {}), path)
        if value is not None:
            headers[f"Mcp-Param-{suffix}"] = encode_value(_text(value))
    return headers


def follow(schema: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What calls of a tool with this input schema repeat in headers. Raises ValueError for an `x-mcp-header` that a client
    must not follow."""

    def refuse(path: Path, reason: str) -> None:
        raise ValueError(f"{'.'.join(str(step) for step in path)} {reason}")

    return read_mirrored(schema, refuse)


def _at(arguments: object, path: tuple[str, ...]) -> object:
    for step in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(step)
    return arguments


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
