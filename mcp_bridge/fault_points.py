"""The points of the bridge: around what changes the store, before an answer, around what is written to a stream. See
`store_service/fault_points.py`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc.aio
from aiohttp import web

from mcp_bridge.connections import Handler
from mcp_bridge.methods.calls import Call, Method
from mcp_bridge.methods.table import Methods
from mcp_bridge.stream import EventStream
from store_service.fault_points import FaultError, FaultPoints

STORE_METHODS: Final = frozenset({"CreateTask", "CreateTasks", "CancelTask", "AnswerInputs", "AttachTask"})
"""What the bridge changes the store by."""
MODERN: Final = frozenset({"tools/call", "tasks/get", "tasks/update", "tasks/cancel"})
LEGACY: Final = frozenset({"tools/call"})
BEFORE_WRITE: Final = "bridge.stream.before_write"
AFTER_WRITE: Final = "bridge.stream.after_write"


def _before_answer(era: str, method: str) -> str:
    return f"bridge.{era}.{method.replace('/', '.')}.before_answer"


POINTS: Final = frozenset(
    {f"bridge.{method}.{at}" for method in STORE_METHODS for at in ("before_call", "after_answer")}
    | {_before_answer("modern", method) for method in MODERN}
    | {_before_answer("legacy", method) for method in LEGACY}
    | {BEFORE_WRITE, AFTER_WRITE}
)


class ReachingCalls(grpc.aio.UnaryUnaryClientInterceptor):
    """Reaches a point before each call that changes the store, and one after its answer. One that fails there is a call whose
    connection broke, and is tried again as such."""

    def __init__(self, points: FaultPoints) -> None:
        self._points = points

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.aio.ClientCallDetails, request: Any
    ) -> Any:
        """See the base class."""
        called: Any = client_call_details.method  # bytes, whatever the stubs say
        method = called.decode().rpartition("/")[2]
        if method not in STORE_METHODS:
            return await continuation(client_call_details, request)
        await self._reach(f"bridge.{method}.before_call")
        call = await continuation(client_call_details, request)
        answer = await call
        await self._reach(f"bridge.{method}.after_answer")
        return answer

    async def _reach(self, point: str) -> None:
        try:
            await self._points.reach(point)
        except FaultError:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "the connection broke") from None


def interceptors(points: FaultPoints | None) -> Sequence[grpc.aio.ClientInterceptor]:
    """What the calls to the store pass through."""
    return () if points is None else (ReachingCalls(points),)


def reaching_methods(points: FaultPoints | None, methods: Methods) -> Methods:
    """The methods, each of which reaches its point before it answers. One that fails there is not answered."""
    if points is None:
        return methods
    reach = points.reach

    def before_answer(method: Method, point: str) -> Method:
        async def answer(call: Call) -> bytes:
            result = await method(call)
            await reach(point)
            return result

        return answer

    modern = {name: before_answer(methods.modern[name], _before_answer("modern", name)) for name in MODERN}
    legacy = {name: before_answer(methods.legacy[name], _before_answer("legacy", name)) for name in LEGACY}
    return replace(methods, modern={**methods.modern, **modern}, legacy={**methods.legacy, **legacy})


def cutting(points: FaultPoints | None, handler: Handler) -> Handler:
    """Answers requests, and cuts off the client of one that fails at a point."""
    if points is None:
        return handler

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except FaultError:
            if request.transport is not None:
                request.transport.abort()
            raise

    return answer


def stream_class(points: FaultPoints | None) -> type[EventStream]:
    """Streams that reach a point before each event, and one after it."""
    if points is None:
        return EventStream
    reach = points.reach

    class Reaching(EventStream):
        async def send(self, *data: bytes) -> None:
            await reach(BEFORE_WRITE)
            await super().send(*data)
            await reach(AFTER_WRITE)

    return Reaching
