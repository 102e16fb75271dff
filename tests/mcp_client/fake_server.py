"""An MCP server that answers what a test tells it to, and keeps what it was asked."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

TASK_ID = "6f8b1c1e-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    params: dict[str, Any]
    headers: dict[str, str]
    id: int


Answer = dict[str, Any] | Callable[[web.Request, Asked], Awaitable[web.StreamResponse]]
"""A result, or what answers in another way."""


@dataclass
class FakeServer:
    """For each method the answers to give, in order; the last one is given again and again."""

    answers: dict[str, list[Answer]] = field(default_factory=lambda: {"tools/list": [tools({"name": "work"})]})
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def of(self, method: str) -> list[Asked]:
        """The requests of one method."""
        return [asked for asked in self.asked if asked.method == method]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        body = await request.json()
        asked = Asked(body["method"], body["params"], dict(request.headers), body["id"])
        self.asked.append(asked)
        given = self.answers.get(asked.method)
        if given is None:
            given = [error(-32601, "Method not found", status=404)]
        answer = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(answer, dict):
            return web.json_response({"jsonrpc": "2.0", "id": asked.id, "result": answer})
        return await answer(request, asked)


@asynccontextmanager
async def serving(fake: FakeServer) -> AsyncIterator[FakeServer]:
    """Runs it on loopback."""
    app = web.Application()
    app.router.add_post("/mcp", fake.handle)
    async with TestServer(app) as server:
        fake.url = str(server.make_url("/mcp"))
        yield fake


def error(code: int, message: str, *, status: int = 200, data: Any = None, **headers: str) -> Answer:
    """A JSON-RPC error."""

    async def answer(_request: web.Request, asked: Asked) -> web.StreamResponse:
        fault = {"code": code, "message": message, **({} if data is None else {"data": data})}
        body = {"jsonrpc": "2.0", "id": asked.id, "error": fault}
        return web.json_response(body, status=status, headers={key.replace("_", "-"): value for key, value in headers.items()})

    return answer


def gateway(status: int, **headers: str) -> Answer:
    """What a gateway says whose server is away."""

    async def answer(_request: web.Request, _asked: Asked) -> web.StreamResponse:
        fields = {key.replace("_", "-"): value for key, value in headers.items()}
        return web.Response(status=status, text="<html>", content_type="text/html", headers=fields)

    return answer


def stream(*messages: dict[str, Any], result: dict[str, Any] | None = None) -> Answer:
    """An event stream: notifications, then the result; without one the connection is cut."""

    async def answer(request: web.Request, asked: Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": quiet\n\n")
        for message in messages:
            await response.write(b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\r\n\r\n")
        if result is None:
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write(
                b"data: " + json.dumps({"jsonrpc": "2.0", "id": asked.id, "result": result}).encode() + b"\n\n"
            )
        return response

    return answer


async def cut(request: web.Request, _asked: Asked) -> web.StreamResponse:
    """Closes the connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def tools(*listed: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A page of tools."""
    return {"tools": [{"inputSchema": {"type": "object"}, **tool} for tool in listed], "ttlMs": 60_000, **others}


def task(status: str, *, at: int = 0, **members: Any) -> dict[str, Any]:
    """A task as `tasks/get` shows it; its times are far ahead, so that no clock matters."""
    return {
        "taskId": TASK_ID,
        "status": status,
        "createdAt": "2099-01-01T00:00:00.000Z",
        "lastUpdatedAt": f"2099-01-01T00:00:{at:02}.000Z",
        "ttlMs": 3_600_000,
        "pollIntervalMs": 10,
        **members,
    }


def text(words: str, **members: Any) -> dict[str, Any]:
    """A tool's result."""
    return {"content": [{"type": "text", "text": words}], **members}


def asks(*keys: str, **members: Any) -> dict[str, Any]:
    """Questions, one under each key."""
    return {"inputRequests": {key: {"method": "elicitation/create", "params": {"message": key}} for key in keys}, **members}
