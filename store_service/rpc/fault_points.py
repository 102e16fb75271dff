"""The points before a reply: all was done, and the caller does not hear of it. See `store_service/fault_points.py`."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import grpc

from store_service.fault_points import FaultError, FaultPoints
from store_service.rpc.handlers import Interceptor, Stream, Unary, wrap
from store_service.rpc.rules import WRITING

STREAMS: Final = frozenset({"WatchTasks", "WatchLeases"})
POINTS: Final = frozenset(
    {f"store.{method}.before_reply" for method in WRITING} | {f"store.{method}.before_message" for method in STREAMS}
)


class Reaching(Interceptor):
    """Reaches a point before each reply. The caller of one that fails there sees its connection break."""

    def __init__(self, points: FaultPoints) -> None:
        self._points = points

    def around(self, handler: Any, service: str, method: str, details: grpc.HandlerCallDetails) -> Any:
        """See `Interceptor`."""
        if method not in WRITING | STREAMS:
            return handler
        return wrap(handler, unary=partial(self._unary, method), stream=partial(self._stream, method))

    def _unary(self, method: str, inner: Unary) -> Unary:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            answer = await inner(request, context)
            await self._reach(f"store.{method}.before_reply", context)
            return answer

        return call

    def _stream(self, method: str, inner: Stream) -> Stream:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            async for answer in inner(request, context):
                await self._reach(f"store.{method}.before_message", context)
                yield answer

        return call

    async def _reach(self, point: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            await self._points.reach(point)
        except FaultError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
