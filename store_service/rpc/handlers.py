"""A method of the server with something around it, whichever way its messages stream."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc

Unary = Callable[..., Awaitable[Any]]
Stream = Callable[..., AsyncIterator[Any]]
_API: Final = "/taskstore.v1."


class Interceptor(grpc.aio.ServerInterceptor, ABC):
    """Puts something around the methods of the API. Whatever else the server has is left as it is."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_API):
            return handler
        service, _, method = handler_call_details.method.removeprefix(_API).partition("/")
        return self.around(handler, service, method, handler_call_details)

    @abstractmethod
    def around(self, handler: Any, service: str, method: str, details: grpc.HandlerCallDetails) -> Any:
        """The handler with something around it, see `wrap`; or as it is."""


def wrap(
    handler: Any,
    *,
    unary: Callable[[Unary], Unary],
    stream: Callable[[Stream], Stream],
    read: Callable[[bytes], Any] | None = None,
) -> Any:
    """The handler with its function put into `unary` or `stream`, by what it answers with; `read` makes its requests, if not
    the handler itself."""
    if handler.unary_unary is not None:
        wrapped: Any = grpc.unary_unary_rpc_method_handler(unary(handler.unary_unary))
    elif handler.unary_stream is not None:
        wrapped = grpc.unary_stream_rpc_method_handler(stream(handler.unary_stream))
    else:
        wrapped = grpc.stream_stream_rpc_method_handler(stream(handler.stream_stream))
    return wrapped._replace(
        request_deserializer=read or handler.request_deserializer, response_serializer=handler.response_serializer
    )
