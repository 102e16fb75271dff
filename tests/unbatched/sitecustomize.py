"""Turns batching off in a whole process: of the bridge's and the workers' calls, and of the store's statements.

With this folder first on PYTHONPATH every Python of ours begins with it, so also the processes that tests start.
"""

import contextlib
from typing import Any


def defaults() -> list[dict[str, Any]]:
    """Where each part of Tenure has it whether it batches unless it is told."""
    from mcp_bridge.config import Config as BridgeConfig  # noqa: PLC0415 (not at all in a Python that has none of it)
    from store_service.client import TaskStore, Worker  # noqa: PLC0415
    from store_service.config import Config as StoreConfig  # noqa: PLC0415

    makers: tuple[Any, ...] = (
        TaskStore.__init__,
        vars(TaskStore)["connect"].__func__,
        Worker.__init__,
        BridgeConfig.__init__,
        StoreConfig.__init__,
    )
    return [maker.__kwdefaults__ for maker in makers]


def turn_batching_off() -> None:
    """Nobody batches any more, unless told to."""
    for each in defaults():
        each["batching"] = False


if __name__ == "sitecustomize":
    with contextlib.suppress(ImportError):
        turn_batching_off()
