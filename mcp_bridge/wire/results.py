"""Results as bytes: what every result carries, laid round what a worker handed over, which is not parsed.

Source: contract, sections 2 and 10.14.
"""

from typing import Any, Final

import msgspec

from mcp_bridge.wire.mcp import SERVER_INFO, SUBSCRIPTION_ID

_SPACE: Final = b" \t\r\n"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RESULT_TYPE: Final = b'"resultType"'
_META: Final = b'"_meta"'
_CONTENT_FIRST: Final = b'{"content":['

Piece = bytes | memoryview
"""A part of an answer, which need not be copied to be laid into it."""


class Results:
    """Writes the results of one server."""

    def __init__(self, *, name: str, version: str) -> None:
        self._info = msgspec.json.encode({"name": name, "version": version})
        self._meta = b'"_meta":{' + msgspec.json.encode(SERVER_INFO) + b":" + self._info + b"}"
        self._complete = self._head("complete")

    @property
    def server_info(self) -> msgspec.Raw:
        """What the server says of itself, as JSON."""
        return msgspec.Raw(self._info)

    def write_end(self, subscription_id: int | str) -> bytes:
        """The result of a subscription that has ended."""
        end = msgspec.json.encode({SERVER_INFO: self.server_info, SUBSCRIPTION_ID: subscription_id})
        return b'{"resultType":"complete","_meta":' + end + b"}"

    def write(self, *members: Piece, result_type: str = "complete") -> bytes:
        """A result with `members`, which are `"name":value` joined by commas, in as many pieces as they come."""
        head = self._complete if result_type == "complete" else self._head(result_type)
        return b"".join((head, b",", *members, b"}")) if any(members) else head + b"}"

    def _head(self, result_type: str) -> bytes:
        return b'{"resultType":"%b",%b' % (result_type.encode(), self._meta)

    def write_with(self, meta: dict[str, Any], *members: Piece) -> bytes:
        """`write`, with more in `_meta`."""
        more = msgspec.json.encode({SERVER_INFO: self.server_info, **meta})
        return b"".join((b'{"resultType":"complete","_meta":', more, b",", *members, b"}"))

    def write_tool_result(self, tool_result: bytes) -> bytes:
        """A `CallToolResult` as the result of its call: byte for byte, with what every result carries before it.

        Only one that names `_meta` or `resultType` itself is taken apart, at its top level, as no name may stand twice.
        """
        if not (_META in tool_result or _names_result_type(tool_result)):
            return self.write(_members(tool_result))
        members = _OBJECT.decode(tool_result)
        members.pop("resultType", None)
        meta = _as_object(members.pop("_meta", None))
        meta[SERVER_INFO] = msgspec.Raw(self._info)
        rest = _members(msgspec.json.encode(members))
        head = b'{"resultType":"complete","_meta":' + msgspec.json.encode(meta)
        return head + b"," + rest + b"}" if rest else head + b"}"


def join(members: dict[str, Any], **payloads: bytes) -> bytes:
    """Members for `Results.write`: builtins, then JSON that is laid in as it is."""
    parts = [_members(msgspec.json.encode(members))] if members else []
    parts += [b'"' + name.encode() + b'":' + data for name, data in payloads.items()]
    return b",".join(parts)


def splice(data: bytes, name: str, value: bytes) -> bytes:
    """A JSON object with one more member, the others as they were written."""
    members = _members(data)
    added = msgspec.json.encode(name) + b":" + value
    return b"{" + (members + b"," if members else b"") + added + b"}"


def as_tool_result(data: bytes) -> bytes:
    """A worker's result as a `CallToolResult`. One that is one stays as it is; other JSON becomes text and
    `structuredContent`. Source: contract, section 5."""
    if data.startswith(_CONTENT_FIRST):
        return data
    if data.lstrip(_SPACE)[:1] == b"{":
        content = _OBJECT.decode(data).get("content")
        if content is not None and bytes(content)[:1] == b"[":
            return data
    text = msgspec.json.encode([{"type": "text", "text": data.decode()}])
    return b'{"content":' + text + b',"structuredContent":' + data + b"}"


def as_legacy_tool_result(data: bytes) -> bytes:
    """A `CallToolResult` as an earlier client reads it: without `resultType`, and with structured content only where that is
    an object."""
    if not any(name in data for name in (b'"resultType"', b'"structuredContent"', b"\\u")):
        return data
    members = _OBJECT.decode(data)
    members.pop("resultType", None)
    if (content := members.get("structuredContent")) is not None and bytes(content)[:1] != b"{":
        del members["structuredContent"]
    return msgspec.json.encode(members)


def inlined(tool_result: bytes) -> tuple[bytes, Piece]:
    """A `CallToolResult` within its task: byte for byte, with the `resultType` that its call would have been answered with.

    Only one that names `resultType` itself is taken apart, as no name may stand twice. Source: the Tasks extension, task
    execution errors.
    """
    if _names_result_type(tool_result):
        members = _OBJECT.decode(tool_result)
        members.pop("resultType", None)
        tool_result = msgspec.json.encode(members)
    if tool_result[:1] != b"{":
        tool_result = tool_result.lstrip(_SPACE)
    return b'{"resultType":"complete",', memoryview(tool_result)[1:]


def tool_error(text: str) -> bytes:
    """A `CallToolResult` that tells a model what went wrong, so that it can mend its call."""
    return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})


def _names_result_type(data: bytes) -> bool:
    """Whether a member may have this name. Where a name has an escape, it may be any."""
    return _RESULT_TYPE in data or (b"\\" in data and b"\\u" in data)


def _members(data: bytes) -> bytes:
    """What stands between the braces of a JSON object."""
    return data.strip(_SPACE)[1:-1].strip(_SPACE)


def _as_object(value: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    """The members of a value that is an object; of any other, none."""
    return _OBJECT.decode(value) if value is not None and bytes(value)[:1] == b"{" else {}
