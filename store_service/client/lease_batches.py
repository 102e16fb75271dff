"""What a worker writes for many tasks at once travels together."""

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message
from taskstore.v1 import leases_pb2, leases_pb2_grpc

from store_service.client.batches import Batcher, BatchMetrics, Together


def gather_calls(stub: "leases_pb2_grpc.LeaseServiceAsyncStub", metrics: BatchMetrics) -> list[Batcher[Any, Any]]:
    """Makes the stub gather heartbeats, checkpoints, completions, failures and releases. Whoever closes the channel closes
    what is returned before it."""
    batched = {
        "HeartbeatTask": _together(stub.HeartbeatTasks, leases_pb2.HeartbeatTasksRequest, "extended"),
        "AppendCheckpoint": _together(stub.AppendCheckpoints, leases_pb2.AppendCheckpointsRequest, "appended"),
        "CompleteTask": _together(stub.CompleteTasks, leases_pb2.CompleteTasksRequest, "completed"),
        "FailTask": _together(stub.FailTasks, leases_pb2.FailTasksRequest, "failed"),
        "ReleaseTask": _together(stub.ReleaseTasks, leases_pb2.ReleaseTasksRequest, "released"),
    }
    batchers = {name: Batcher(name, getattr(stub, name), together, metrics) for name, together in batched.items()}
    for name, batcher in batchers.items():
        setattr(stub, name, batcher)
    return list(batchers.values())


def _together(method: Any, request: Callable[..., Message], outcome: str) -> Together[Any, Any]:
    def wrap(items: Sequence[Any]) -> Message:
        return request(items=items)

    def unwrap(item: Any) -> Any:
        return getattr(item, outcome)

    return Together(method, wrap, unwrap, _tenant_of)


def _tenant_of(request: Any) -> str:
    return str(request.lease.tenant_id)
