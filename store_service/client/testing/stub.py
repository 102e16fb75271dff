"""The stub of LeaseService as the worker library calls it, with the model behind it instead of a channel."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.rpc import status_pb2

from store_service.client.testing.budgets import Refused
from store_service.client.testing.memory import MemoryStore, refusal

_METHODS: Final = {
    "HeartbeatTask": "heartbeat_task",
    "ReportProgress": "report_progress",
    "LoadInput": "load_input",
    "LoadEarlyAnswers": "load_early_answers",
    "LoadCheckpoints": "load_checkpoints",
    "AppendCheckpoint": "append_checkpoint",
    "CompleteTask": "complete_task",
    "FailTask": "fail_task",
    "ReleaseTask": "release_task",
    "SuspendTask": "suspend_task",
    "ReserveBudget": "reserve_budget",
    "SettleBudget": "settle_budget",
    "ConfirmCancel": "confirm_cancel",
}


class MemoryStub:
    """Calls the model in the event loop. `on_call` is told of each call before and after it, and may raise Refused."""

    def __init__(self, store: MemoryStore, on_call: Callable[[str, Any, bool], None]) -> None:
        self._on_call = on_call
        for method, operation in _METHODS.items():
            setattr(self, method, self._callable(method, getattr(store, operation)))

    def _callable(self, method: str, operation: Callable[[Any], Any]) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, *, timeout: float) -> Any:  # noqa: ARG001, ASYNC109 (as the stub's)
            await asyncio.sleep(0)
            try:
                self._on_call(method, request, False)
                response = operation(request)
                self._on_call(method, request, True)
            except Refused as refused:
                raise _RefusedCall(refusal(str(refused))) from None
            return response

        return call


class _RefusedCall(grpc.RpcError):
    """A refusal as a channel brings it."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self._status = status

    def code(self) -> grpc.StatusCode:
        return next(code for code in grpc.StatusCode if code.value[0] == self._status.code)

    def details(self) -> str:
        return str(self._status.message)

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self._status.SerializeToString()),)
