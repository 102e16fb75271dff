"""A worker without the worker library: the generated stubs and grpc, and nothing else.

It is what a worker in any language does. Its one workflow, `greet`, asks for a name, sleeps a little, and says hello. Every
write carries the lease. Whoever is told LEASE_LOST drops the task and writes nothing more: another worker has it, or will.

Run it beside a store: `python -m tests.examples.plain_worker.worker 127.0.0.1:7233`.
"""

import json
import sys
import threading
import uuid

import grpc
from taskstore.v1 import leases_pb2, leases_pb2_grpc, types_pb2

LEASE_MS = 30_000
GREET = leases_pb2.WorkflowVersion(workflow="greet", version=1)
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def run(store: str, stopping: threading.Event) -> None:
    """Takes one task after the other until it is told to stop."""
    worker_id = f"plain-{uuid.uuid4().hex}"  # new at each start
    with grpc.insecure_channel(store) as channel:
        stub = leases_pb2_grpc.LeaseServiceStub(channel)
        while not stopping.is_set():
            # The id makes the call safe to repeat; this worker takes another id, and a lost answer costs it one lease.
            request = leases_pb2.LeaseTasksRequest(
                request_id=uuid.uuid4().hex, worker_id=worker_id, workflows=[GREET], limit=1, lease_ms=LEASE_MS, wait_ms=1_000
            )
            try:
                for task in stub.LeaseTasks(request, timeout=10).tasks:
                    with heartbeats(stub, task.lease):
                        step(stub, task)
            except grpc.RpcError as error:
                # LEASE_LOST, or a store that is away. In both cases the task is no longer this worker's business.
                print(f"{error.code().name}: {error.details()}", file=sys.stderr)
                stopping.wait(0.1)


def step(stub: leases_pb2_grpc.LeaseServiceStub, task: leases_pb2.LeasedTask) -> None:
    """Takes the task one wait further. What has been said already is in its checkpoints, and in its wake."""
    if task.cancel_requested:
        stub.ConfirmCancel(leases_pb2.ConfirmCancelRequest(lease=task.lease), timeout=10)
        return
    load = leases_pb2.LoadCheckpointsRequest(lease=task.lease)
    saved = {each.step: each.payload for each in stub.LoadCheckpoints(load, timeout=10).checkpoints}
    if task.wake.step == "ask" and "ask" not in saved:
        # The wake is kept until the next wait: before that, what it brought is saved.
        saved["ask"] = task.wake.input.answers[0].response
        append = leases_pb2.AppendCheckpointRequest(lease=task.lease, revision=0, step="ask", payload=saved["ask"])
        stub.AppendCheckpoint(append, timeout=10)
    suspend = leases_pb2.SuspendTaskRequest(lease=task.lease)
    if "ask" not in saved:
        suspend.step = "ask"
        params = {"mode": "form", "message": "Who are you?", "requestedSchema": FORM}
        suspend.input.requests.add(name="name", method="elicitation/create", params=payload(params))
        stub.SuspendTask(suspend, timeout=10)
    elif task.wake.step != "sleep":
        suspend.step = "sleep"
        suspend.timer.delay_ms = 10
        stub.SuspendTask(suspend, timeout=10)
    else:
        name = json.loads(saved["ask"].data).get("content", {}).get("name", "stranger")
        result = payload({"content": [{"type": "text", "text": f"Hello, {name}!"}]})
        stub.CompleteTask(leases_pb2.CompleteTaskRequest(lease=task.lease, result=result), timeout=10)


class heartbeats:  # noqa: N801 (reads as what happens in the block)
    """Keeps a lease alive, from a thread, while the block runs."""

    def __init__(self, stub: leases_pb2_grpc.LeaseServiceStub, lease: types_pb2.Lease) -> None:
        self._stub, self._lease, self._over = stub, lease, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(LEASE_MS / 3_000):
            self._stub.HeartbeatTask(leases_pb2.HeartbeatTaskRequest(lease=self._lease, lease_ms=LEASE_MS), timeout=10)


def payload(value: object) -> types_pb2.Payload:
    """A value as JSON."""
    return types_pb2.Payload(media_type="application/json", data=json.dumps(value).encode())


if __name__ == "__main__":
    run(sys.argv[1], threading.Event())
