"""The fault points of store and bridge, seen by who arms them."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

from mcp_bridge.fault_points import POINTS as BRIDGE_POINTS
from store_service.archive.fault_points import POINTS as ARCHIVE_POINTS
from store_service.db.fault_points import POINTS as COMMIT_POINTS
from store_service.rpc.fault_points import POINTS as REPLY_POINTS

POINTS: Final = COMMIT_POINTS | REPLY_POINTS | ARCHIVE_POINTS | BRIDGE_POINTS

_STATEMENTS: Final = (
    *("create_tasks", "cancel_tasks", "answer_inputs", "publish_signal", "fork_task", "claim_tasks"),
    *("heartbeat_tasks", "append_checkpoints", "finish_tasks", "suspend_tasks", "reserve_budget", "settle_budget"),
    *("promote_due", "notify", "claim_cleanup", "release_cleanup", "remove_tasks", "confirm_export", "place_hold"),
    *("release_hold", "prepare_purge", "claim_purge", "decide_purge", "execute_purge"),
)
_BATCHED: Final = (
    *("create_tasks", "get_tasks", "cancel_tasks", "heartbeat_tasks", "append_checkpoints", "finish_tasks", "suspend_tasks"),
)
_METHODS: Final = (
    *("CreateTask", "CreateTasks", "CancelTask", "AnswerInputs", "PublishSignal", "ForkTask", "LeaseTasks"),
    *("HeartbeatTask", "HeartbeatTasks", "AppendCheckpoints", "CompleteTasks", "CompleteAndLeaseTasks", "FailTask"),
    *("ReleaseTask", "SuspendTask", "ReserveBudget", "SettleBudget"),
)
RUN_POINTS: Final = tuple(
    sorted(
        {f"store.{name}.{at}" for name in _STATEMENTS for at in ("before_commit", "after_commit")}
        | {f"store.{name}.before_answers" for name in _BATCHED}
        | {f"store.{name}.before_reply" for name in _METHODS}
        | {"store.WatchTasks.before_message", "store.WatchLeases.before_message"}
        | ARCHIVE_POINTS
        | BRIDGE_POINTS - {point for point in BRIDGE_POINTS if ".legacy." in point or "AttachTask" in point}
    )
)
"""Those that a run reaches all the time."""
ACTIONS: Final = {"raise": 4, "sleep": 2, "exit": 2, "drop": 2}
"""What is done there, and how often of ten times."""
_REACHED_SECONDS: Final = 20.0


class Armoury:
    """The folder where points are armed, and what was fired."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._armed, self._fired = folder / "armed", folder / "fired"
        for each in (self._armed, self._fired):
            each.mkdir(parents=True, exist_ok=True)

    def arm(self, point: str, action: str) -> None:
        """The next one to reach the point does this: see `FaultPoints.reach`."""
        assert point in POINTS, f"{point} is no point"
        whole = self.folder / f"{point}.new"
        whole.write_text(action)
        whole.rename(self._armed / point)

    def disarm(self, point: str) -> bool:
        """Takes it back. Returns whether nobody had reached it."""
        try:
            (self._armed / point).unlink()
        except FileNotFoundError:
            return False
        return True

    async def fire(self, point: str, action: str) -> None:
        """Arms a point and waits until somebody reaches it. Raises LookupError if nobody does."""
        self.arm(point, action)
        loop = asyncio.get_running_loop()
        until = loop.time() + _REACHED_SECONDS
        while (self._armed / point).exists():
            if loop.time() > until and self.disarm(point):
                raise LookupError(f"nobody reached {point}")
            await asyncio.sleep(0.1)

    @property
    def fired(self) -> Counter[str]:
        """How often each point was fired."""
        return Counter(path.name.rpartition(".")[0] for path in self._fired.iterdir())
