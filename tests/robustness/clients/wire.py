"""gRPC as the clients of a run use it: one try, and an outcome for whatever becomes of it."""

from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio
from taskstore.v1 import leases_pb2_grpc, retention_pb2_grpc, tasks_pb2_grpc, tenants_pb2_grpc

from store_service.client.channel import open_channel
from store_service.client.errors import from_rpc_error, from_status
from tests.robustness.history import UNKNOWN

DEADLINE_SECONDS: Final = 6.0


class Api:
    """The services of one store."""

    def __init__(self, address: str) -> None:
        self.channel = open_channel(address)
        self.tasks: tasks_pb2_grpc.TaskServiceAsyncStub = tasks_pb2_grpc.TaskServiceStub(self.channel)
        self.leases: leases_pb2_grpc.LeaseServiceAsyncStub = leases_pb2_grpc.LeaseServiceStub(self.channel)
        self.tenants: tenants_pb2_grpc.TenantServiceAsyncStub = tenants_pb2_grpc.TenantServiceStub(self.channel)
        self.retention: retention_pb2_grpc.RetentionServiceAsyncStub = retention_pb2_grpc.RetentionServiceStub(self.channel)
        self.governance: retention_pb2_grpc.GovernanceServiceAsyncStub = retention_pb2_grpc.GovernanceServiceStub(self.channel)


def open_apis(ports: Sequence[int]) -> list[Api]:
    """One for each store, not balanced: what one store was told, another is asked."""
    return [Api(f"127.0.0.1:{port}") for port in ports]


async def ask(method: Any, request: Any, *, seconds: float = DEADLINE_SECONDS) -> tuple[str, Any]:
    """`ok` and the answer; or how it was refused, and nothing."""
    try:
        return "ok", await method(request, timeout=seconds)
    except grpc.aio.AioRpcError as failure:
        error = from_rpc_error(failure)
        # An answer of gRPC's own may hide a write that was done.
        return error.reason if error.reason not in ("", "OUTCOME_UNKNOWN") else UNKNOWN, None


def outcome_of(item: Any, done: str) -> str:
    """The outcome of an item of a batch."""
    if item.HasField(done):
        return "ok"
    reason = from_status(item.refused).reason
    return UNKNOWN if reason in ("", "OUTCOME_UNKNOWN") else reason


def is_unheard(outcome: str) -> bool:
    """Whether the same call with the same ids may be made again, and should."""
    return outcome in (UNKNOWN, "STORAGE_UNAVAILABLE", "OVERLOADED", "DRAINING", "BATCH_FULL")
