"""What a workflow returned, made into the tool result that its caller reads."""

from collections import OrderedDict
from typing import Any, Final

import jsonschema_rs
import msgspec

from store_service.client.outcomes import INTERNAL_ERROR, ProtocolError
from store_service.client.payloads import to_json

_WHAT: Final = "the result"
_RESERVED: Final = "io.modelcontextprotocol/"
_MOST_SCHEMAS: Final = 256
# What a content block of each type must have.
_BLOCKS: Final = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
}


class OutputSchemas:
    """The compiled output schemas of the tasks that a worker runs; the most recent 256 are kept."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[bytes, jsonschema_rs.Draft202012Validator] = OrderedDict()

    def check(self, schema: bytes, result: dict[str, Any]) -> None:
        """Raises ProtocolError unless the structured content of `result` keeps to `schema`. Errors are exempt."""
        if not schema or result.get("isError"):
            return
        if "structuredContent" not in result:
            raise ProtocolError(
                INTERNAL_ERROR, "the result has no structured content, and the tool's output schema asks for it"
            )
        validator = self._find(schema)
        for error in validator.iter_errors(result["structuredContent"]):
            path = "".join(f"/{part}" for part in error.instance_path) or "/"
            # The rule by its name only, as the library's message quotes the value.
            raise ProtocolError(
                INTERNAL_ERROR, f"the result breaks the tool's output schema at {path} (rule {error.kind.name})"
            )

    def _find(self, schema: bytes) -> jsonschema_rs.Draft202012Validator:
        if schema in self._compiled:
            self._compiled.move_to_end(schema)
            return self._compiled[schema]
        try:
            compiled = jsonschema_rs.Draft202012Validator(msgspec.json.decode(schema), retriever=_refuse_remote)
        except (ValueError, msgspec.DecodeError, jsonschema_rs.ReferencingError):
            raise ProtocolError(INTERNAL_ERROR, "the tool's output schema cannot be used; mend it") from None
        self._compiled[schema] = compiled
        if len(self._compiled) > _MOST_SCHEMAS:
            self._compiled.popitem(last=False)
        return compiled


def to_result(value: Any, *, output_schema: bytes, schemas: OutputSchemas) -> bytes:
    """What the function returned, as the bytes of a tool result. Raises ProtocolError.

    A tool result passes through; None is a result without content; a string becomes text; any other JSON becomes its
    own text and structured content, in which what is no object stands under `result`.
    """
    data = to_json(_WHAT, value)
    plain = msgspec.json.decode(data)
    result = _without_reserved(plain) if _is_tool_result(plain) else _wrap(plain, structured=bool(output_schema))
    schemas.check(output_schema, result)
    return data if result == plain else to_json(_WHAT, result)


def to_error_result(text: str) -> bytes:
    """The bytes of a tool result that says in `text` why there is none. Raises ProtocolError."""
    return to_json(_WHAT, {"content": [_text_block(text)], "isError": True})


def _wrap(value: Any, *, structured: bool) -> dict[str, Any]:
    content = value if isinstance(value, dict) else {"result": value}
    if value is None and not structured:
        return {"content": []}
    if isinstance(value, str):
        blocks = [_text_block(value)]
        return {"content": blocks, "structuredContent": content} if structured else {"content": blocks}
    return {"content": [_text_block(to_json(_WHAT, value).decode())], "structuredContent": content}


def _text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _is_tool_result(value: Any) -> bool:
    match value:
        case {"content": list(blocks)}:
            return (
                all(_is_block(block) for block in blocks)
                and isinstance(value.get("isError", False), bool)
                and isinstance(value.get("structuredContent", {}), dict)
                and isinstance(value.get("_meta", {}), dict)
            )
        case _:
            return False


def _is_block(block: Any) -> bool:
    match block:
        case {"type": "resource", "resource": {"uri": str(), "text": str()} | {"uri": str(), "blob": str()}}:
            return True
        case {"type": str(kind)} if kind in _BLOCKS:
            return all(isinstance(block.get(field), str) for field in _BLOCKS[kind])
        case _:
            return False


def _without_reserved(result: dict[str, Any]) -> dict[str, Any]:
    """The tool result without what only the bridge may say."""
    kept = {name: value for name, value in result.items() if name != "resultType"}
    if "_meta" in kept:
        kept["_meta"] = {name: value for name, value in kept["_meta"].items() if not name.startswith(_RESERVED)}
        if not kept["_meta"]:
            del kept["_meta"]
    return kept


def _refuse_remote(uri: str) -> Any:
    raise ValueError(f"remote reference {uri}")
