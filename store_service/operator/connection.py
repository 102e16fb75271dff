"""How an operator is connected to the store."""

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from taskstore.v1 import retention_pb2_grpc, tasks_pb2_grpc

from store_service.client.calls import Method, call
from store_service.client.channel import open_channel
from store_service.client.tls import Tls

Request = TypeVar("Request")
Response = TypeVar("Response")
Item = TypeVar("Item")

CALL_SECONDS: Final = 30.0
PAGE: Final = 1_000
"""How many items of a list are asked for at once."""


class Connection:
    """The store, and who asks it. Every call has a deadline and is repeated with the same content until then."""

    def __init__(self, address: str, tls: Tls | None, principal: str) -> None:
        self._channel = open_channel(address, tls)
        self.tasks = tasks_pb2_grpc.TaskServiceStub(self._channel)
        self.retention = retention_pb2_grpc.RetentionServiceStub(self._channel)
        self.governance = retention_pb2_grpc.GovernanceServiceStub(self._channel)
        self.principal = principal
        """Who does what is done. Empty where the store knows by certificate or token."""

    async def ask(self, method: Method[Request, Response], request: Request) -> Response:
        """The answer to a call. Raises StoreError."""
        return await call(method, request, timeout_seconds=CALL_SECONDS)

    async def each(
        self,
        method: Method[Any, Response],
        request: Any,
        items: Callable[[Response], Sequence[Item]],
        *,
        by: str,
        limit: int = sys.maxsize,
    ) -> AsyncIterator[Item]:
        """Every item of a list, page after page, at most `limit`. `by` is what the list is in the order of: a page begins after
        the last one's. Raises StoreError."""
        while limit > 0:
            request.page_size = min(limit, PAGE)
            page = items(await self.ask(method, request))
            for item in page:
                yield item
            if len(page) < request.page_size:
                return
            limit -= len(page)
            setattr(request, f"after_{by}", getattr(page[-1], by))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()


def tls_of(*, ca: str, certificate: str, key: str, token: str, server_name: str) -> Tls | None:
    """What a connection is encrypted with; None for none. Raises ValueError for parts that do not go together."""
    if not ca:
        if certificate or key or token:
            raise ValueError("--certificate and --key, or --token-file, go with --ca")
        return None
    files = [Path(each) if each else None for each in (certificate, key, token)]
    return Tls(ca=Path(ca), certificate=files[0], key=files[1], token=files[2], server_name=server_name or None)
