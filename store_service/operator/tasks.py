"""`tenure-store task`: why a task is where it is."""

import argparse
from collections.abc import Mapping
from typing import Any

from taskstore.v1 import tasks_pb2

from store_service.operator.connection import Connection
from store_service.operator.display import Display, shown


def add_actions(actions: Any, usual: Mapping[str, Any]) -> None:
    """Adds why."""
    why = actions.add_parser("why", **usual, help="why a task is where it is, since when, and who holds its lease")
    why.set_defaults(run=explain_task)
    why.add_argument("--tenant", required=True)
    why.add_argument("task_id", metavar="TASK")


async def explain_task(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """The sentence that its caller is told, and the worker, which its caller is not told."""
    request = tasks_pb2.ExplainTaskRequest(tenant_id=options.tenant, task_id=options.task_id)
    display.whole(shown(await connection.ask(connection.tasks.ExplainTask, request)))
    return 0
