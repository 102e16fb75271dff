"""Tasks as the store in memory keeps them."""

import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from taskstore.v1 import leases_pb2, types_pb2

TENANT: Final = "acme"


@dataclass
class Waiting:
    """What a task waits for."""

    request: leases_pb2.SuspendTaskRequest
    until: float | None
    keys: list[str]
    answers: dict[str, types_pb2.Payload]

    @property
    def questions(self) -> dict[str, leases_pb2.NewInputRequest]:
        """Those that are open, by their keys."""
        asked = zip(self.keys, self.request.input.requests, strict=True)
        return {key: question for key, question in asked if key not in self.answers}


@dataclass
class MemoryTask:
    """One task, as the store would keep it."""

    contract: types_pb2.TaskContract
    input: bytes = b""
    input_left_out: bool = False
    task_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    state: str = "QUEUED"
    worker_id: str = ""
    token: int = 0
    expires_at: float = 0.0
    lease_ms: int = 0
    attempts: int = 0
    crashes: int = 0
    retries: int = 0
    showed_life: bool = False
    heartbeats: int = 0
    cancel_requested: bool = False
    checkpoints: list[types_pb2.Checkpoint] = field(default_factory=list)
    progress: list[leases_pb2.ReportProgressRequest] = field(default_factory=list)
    result: bytes | None = None
    error: types_pb2.TaskError | None = None
    retry: leases_pb2.RetryPolicy | None = None
    waiting: Waiting | None = None
    wake: leases_pb2.Wake | None = None
    signals: list[leases_pb2.SignalWake] = field(default_factory=list)
    early_answers: dict[str, types_pb2.Payload] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    last_suspension: tuple[bytes, leases_pb2.SuspendTaskResponse] | None = None
    last_settlement: leases_pb2.SettleBudgetRequest | None = None
    ready_at: float = 0.0

    @property
    def steps(self) -> list[str]:
        """The keys of its checkpoints."""
        return [checkpoint.step for checkpoint in self.checkpoints]
