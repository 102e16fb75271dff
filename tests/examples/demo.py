"""`make demo`: a tool call becomes durable work, its worker is killed, and the work comes back finished."""

import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from taskstore.v1 import tasks_pb2

from mcp_bridge.client import TaskClient, TaskHandle, TaskSnapshot
from store_service.client import TaskStore
from store_service.embedded import EmbeddedPostgresError
from tests.pair import ROOT, Pair, PairError, Process

EXAMPLE = Path(__file__).parent / "durable_report"
WORKER = "tests.examples.durable_report.report"
KILL_AT_STEP = 3
PATIENCE_SECONDS = 120

BOLD, DIM, RED, GREEN, PLAIN = ("\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[0m") if sys.stdout.isatty() else [""] * 5


class Demo:
    """What is told, second by second, and what is kept for the end."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, text: str, *, style: str = "") -> None:
        """One line, with the seconds since the start."""
        print(f"{DIM}{time.monotonic() - self._started:6.1f} s{PLAIN}  {style}{text}{PLAIN}", flush=True)

    async def run(self, pair: Pair) -> None:
        """The whole story."""
        workers = {name: pair.start_worker(name, WORKER) for name in ("worker-a", "worker-b")}
        self.say(f"store at {pair.store_address}, bridge at {pair.url}, workers {' and '.join(workers)}")
        async with TaskClient(pair.url) as client, TaskStore.connect(pair.store_address) as operator:
            self.say(f"tools/list   {', '.join(tool.name for tool in await client.list_tools())}")
            handle = await client.call_tool_outcome("durable_report", {"group_by": "species"})
            if not isinstance(handle, TaskHandle):
                raise PairError("the call did not become a task")
            self.say(f"tools/call   durable_report -> task {handle.task_id}, working")
            task = await self._follow(client, operator, handle, workers)
            await self._tell_result(operator, task)

    async def _follow(
        self, client: TaskClient, operator: TaskStore, handle: TaskHandle, workers: dict[str, Process]
    ) -> TaskSnapshot:
        seen, killed, token = "", False, 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                task = await client.get_task(handle)
                status = f"{task.status}: {task.status_message or ''}".rstrip(": ")
                if status != seen:
                    seen = status
                    self.say(f"tasks/get    {status}")
                if task.is_terminal:
                    return task
                behind = await operator.get_task(tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=handle.task_id))
                if behind.token != token and behind.worker_id:
                    token = behind.token
                    done = f", {behind.checkpoints} steps are done already" if behind.checkpoints else ""
                    self.say(f"             {behind.worker_id} holds the lease, fencing token {token}{done}", style=GREEN)
                if not killed and behind.progress.value >= KILL_AT_STEP and behind.worker_id:
                    killed = True
                    workers[behind.worker_id].send(signal.SIGKILL)
                    self.say(f"             SIGKILL to {behind.worker_id}, in the middle of its work", style=RED + BOLD)
                await asyncio.sleep((task.poll_interval_ms or 500) / 1000)

    async def _tell_result(self, operator: TaskStore, task: TaskSnapshot) -> None:
        task_id, result = task.task_id, task.result
        if result is None or result.is_error:
            raise PairError(f"the report did not end well: {str(task)[:500]}")
        history = await operator.list_task_history(tasks_pb2.ListTaskHistoryRequest(tenant_id="dev", task_id=task_id))
        steps = await operator.list_checkpoints(tasks_pb2.ListCheckpointsRequest(tenant_id="dev", task_id=task_id))
        print(f"\n{BOLD}What happened{PLAIN} (the store's history of the task)")
        for line in history.lines:
            event = tasks_pb2.HistoryEvent.Name(line.event).removeprefix("HISTORY_EVENT_").lower().replace("_", " ")
            holder = f"  {line.worker_id}, token {line.token}" if line.worker_id else ""
            print(f"  {line.at.ToDatetime():%H:%M:%S.%f}".rstrip("0") + f"  {event}{holder}")
        print(f"\n{BOLD}Which steps were done under which token{PLAIN} (each once)")
        for step in steps.checkpoints:
            print(f"  {step.revision}  token {step.token}  {step.step}")
        tokens = [step.token for step in steps.checkpoints]
        if sorted(tokens) != tokens or set(tokens) != {1, 2} or history.lines[-1].event != tasks_pb2.HISTORY_EVENT_COMPLETED:
            raise PairError("the takeover did not go as it should; see the history above")
        print(f"\n{BOLD}The report{PLAIN}\n")
        print(result.text)
        print(f"\n{BOLD}Its structured content{PLAIN}\n")
        print(json.dumps(result.structured_content)[:300] + " ...")


def main() -> int:
    """Runs the demo in a folder of its own and leaves nothing behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    base = ROOT / ".tenure"
    base.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="demo-", dir=base))
    demo = Demo()
    try:
        demo.say("starting Postgres, the store and the bridge")
        with Pair(folder, routes=EXAMPLE / "routes.yaml") as pair:
            asyncio.run(demo.run(pair))
    except (PairError, EmbeddedPostgresError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"""
{GREEN}The work outlived its worker.{PLAIN} Next:
  make up        keep all of this running, and call it with curl or your own MCP client
  make test      see what is held by tests
  README.md      write a worker of your own: {EXAMPLE.relative_to(ROOT)}/report.py is one""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
