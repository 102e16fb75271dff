"""A method of the server with something around it, whichever way its messages stream."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

Unary = Callable[..., Awaitable[Any]]
Stream = Callable[..., AsyncIterator[Any]]


def wrap(
    handler: Any, *, unary: Callable[[Unary], Unary], stream: Callable[[Stream], Stream], read: Callable[[bytes], Any]
) -> Any:
    """The handler with its function put into `unary` or `stream`, by what it answers with; `read` makes its requests."""
    if handler.unary_unary is not None:
        wrapped: Any = grpc.unary_unary_rpc_method_handler(unary(handler.unary_unary))
    elif handler.unary_stream is not None:
        wrapped = grpc.unary_stream_rpc_method_handler(stream(handler.unary_stream))
    else:
        wrapped = grpc.stream_stream_rpc_method_handler(stream(handler.stream_stream))
    return wrapped._replace(request_deserializer=read, response_serializer=handler.response_serializer)
