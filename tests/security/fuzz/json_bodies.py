"""Bodies that are nearly right: what clients send, changed in its structure and in its bytes."""

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from tests.bridge.client import PREFIX, TASKS, VERSION, meta

_CAPABILITIES: Final = {**TASKS, "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
_STRINGS: Final = (
    "",
    " ",
    "\0",
    "é",
    "😀" * 40,
    "a" * 300,
    "=?base64?YQ==?=",
    "../../etc",
    "$ref",
    "0" * 700,
    "\ud800",
    "\ufeff",
    "__proto__",
)
_VALUES: Final[tuple[Any, ...]] = (
    *_STRINGS, None, True, False, 0, -1, 1.5, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, 1e308, [], {}, [[]], [{}], {"": {}},
    {"type": "object"}, {"action": "accept", "content": {}}, {"resultType": "complete"},
)  # fmt: skip
_KEYS: Final = ("", "id", "jsonrpc", "method", "params", "_meta", "name", "arguments", "taskId", "task", "inputResponses",
    "requestState", "cursor", "progressToken", PREFIX + "protocolVersion", PREFIX + "clientCapabilities", "notifications",
)  # fmt: skip
_BYTES: Final = (
    b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"\\", b"\\u0000", b"\\ud800", b"\\u003a", b"{", b"}",
    b"[", b"]", b":", b",", b"NaN", b"Infinity", b"1e999", b"-0", b"9" * 641, b"[" * 70, b'{"a":' * 70, b'"a":1,"a":2,',
    b"/**/", b"\n\n", b'"id":null,', b"[" * 5000,
)  # fmt: skip


class JsonBodies:
    """A source of requests; the same seed makes the same ones."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.task_ids: Sequence[str] = ()
        """Tasks that there are."""

    def next(self) -> tuple[bytes, dict[str, str]]:
        """A body, and the headers that go with it or nearly so."""
        message, headers = self._valid()
        for _ in range(self._random.choice((0, 0, 1, 1, 1, 2, 3))):
            message = self._change(message)
        if isinstance(message, dict) and self._random.random() < 0.8:  # the headers say what the body says now
            self._follow(message, headers)
        body = json.dumps(message, ensure_ascii=self._random.random() < 0.5).encode(errors="surrogatepass")
        if self._random.random() < 0.15:
            for _ in range(self._random.choice((1, 1, 2, 4))):
                body = self._damage(body)
        return body, headers

    def _valid(self) -> tuple[Any, dict[str, str]]:
        random = self._random
        method = random.choice(METHODS)
        task_id = random.choice(self.task_ids) if self.task_ids else "0"
        params: dict[str, Any] = {}
        match method:
            case "tools/call":
                params = {"name": random.choice(TOOLS), "arguments": copy.deepcopy(random.choice(ARGUMENTS))}
            case "tasks/get" | "tasks/cancel":
                params = {"taskId": task_id}
            case "tasks/update":
                params = {"taskId": task_id, "inputResponses": {"name": {"action": "accept", "content": {"name": "Ann"}}}}
            case "subscriptions/listen":
                params = {"notifications": {"taskIds": [task_id], "toolsListChanged": True}}
            case "initialize":
                params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            case "notifications/cancelled":
                params = {"requestId": 1, "reason": "enough"}
        headers = {"Mcp-Method": method}
        if name := params.get("name", params.get("taskId")):
            headers["Mcp-Name"] = name
        if method == "initialize" or random.random() < 0.1:  # as earlier revisions have it
            headers = {} if method == "initialize" else {"MCP-Protocol-Version": "2025-11-25"}
        else:
            headers["MCP-Protocol-Version"] = VERSION
            params["_meta"] = meta(random.choice(({}, TASKS, _CAPABILITIES)), progressToken=1)
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        return (message if method.startswith("notifications/") else {"id": 1, **message}), headers

    @staticmethod
    def _follow(message: dict[str, Any], headers: dict[str, str]) -> None:
        params = message.get("params")
        named = params.get("name", params.get("taskId")) if isinstance(params, dict) else None
        for header, value in (("Mcp-Method", message.get("method")), ("Mcp-Name", named)):
            if header in headers and isinstance(value, str) and value.isascii() and value.isprintable():
                headers[header] = value.strip()

    def _change(self, value: Any) -> Any:
        """The value with one thing in it changed, anywhere."""
        random = self._random
        if isinstance(value, dict) and value and ("jsonrpc" in value or random.random() < 0.85):
            key = "params" if "params" in value and random.random() < 0.8 else random.choice(list(value))
            changed = {**value, key: self._change(value[key])}
            match random.randrange(16):
                case 0:
                    del changed[key]
                case 1:
                    changed[random.choice(_KEYS)] = copy.deepcopy(random.choice(_VALUES))
                case 2:
                    changed[random.choice((key.upper(), key + " ", key[:-1], key * 2))] = changed.pop(key)
            return changed
        if isinstance(value, list) and value and random.random() < 0.7:
            place = random.randrange(len(value))
            return [*value[:place], self._change(value[place]), *value[place + random.randrange(2) :]]
        match random.randrange(6):
            case 0 if isinstance(value, str) and value:
                place = random.randrange(len(value))
                return value[:place] + random.choice(_STRINGS) + value[place:]
            case 1:
                return [value] * random.choice((1, 2, 100))
            case 2:
                for _ in range(random.choice((1, 10, 63, 64, 65, 200))):
                    value = random.choice(([value], {"a": value}))
                return value
            case 3:
                return random.choice(self.task_ids or ("0",))
        return copy.deepcopy(random.choice(_VALUES))

    def _damage(self, body: bytes) -> bytes:
        """The bytes with one thing in them changed."""
        random = self._random
        place = random.randrange(len(body) + 1)
        end = min(len(body), place + random.choice((1, 1, 4, 40)))
        match random.randrange(5):
            case 0:
                return body[:place] + random.choice(_BYTES) + body[place:]
            case 1:
                return body[:place] + body[end:]
            case 2:
                return body[:place] + bytes([random.randrange(256)]) + body[place + 1 :]
            case 3:
                return body[:place] + body[place:end] * random.choice((2, 20)) + body[end:]
        return body[:place]


METHODS: Final = (
    "server/discover", "tools/list", "tools/call", "tools/call", "tools/call", "tasks/get", "tasks/get", "tasks/update",
    "tasks/cancel", "subscriptions/listen", "initialize", "ping", "notifications/cancelled", "notifications/initialized",
)  # fmt: skip
TOOLS: Final = ("either", "task", "held", "strict", "asks")
ARGUMENTS: Final[tuple[Any, ...]] = (
    {},
    {"a": 1},
    {"region": "eu", "limits": {"most": 3}, "items": ["a"], "code": "aa"},
    {"a": ["x"] * 50},
)
