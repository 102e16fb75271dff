"""The worker: leases tasks and runs the functions registered for them."""

import asyncio
import contextlib
import logging
import os
import random
import re
import signal
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import grpc.aio
import structlog
from prometheus_client import CollectorRegistry
from taskstore.v1 import leases_pb2_grpc

from store_service.client.allowance import Allowance
from store_service.client.batches import Batcher, BatchMetrics
from store_service.client.channel import open_channel
from store_service.client.completions import Completions
from store_service.client.errors import StoreError
from store_service.client.heartbeats import Heartbeats
from store_service.client.held import HeldLease, StopReason
from store_service.client.lease_batches import gather_calls
from store_service.client.lease_calls import LeaseCalls
from store_service.client.leasing import Leasing, Taken
from store_service.client.metrics import WorkerMetrics
from store_service.client.quarantine import Quarantine
from store_service.client.results import OutputSchemas
from store_service.client.runner import Run
from store_service.client.tls import Tls
from store_service.client.usage import BudgetAmounts
from store_service.client.workflows import RetryPolicy, Workflow, Workflows, check_lease_seconds
from store_service.telemetry import AdminServer, configure_logs, settle_garbage

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_CONCURRENCY: Final = 2_000  # each is extended every two seconds
_BEGUN_AT_ONCE: Final = 25
_AFTER_FAULT_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 5.0  # what all runs have to stop and be given back in, once the drain is over
_WORKER_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Worker:
    """Runs tasks of a store: `worker.run()` for a process, `async with worker:` within another.

    - `store`: the address, `host:port`.
    - `tls`: the files of an encrypted connection; none means that it is not encrypted.
    - `name`: what its `worker_id` begins with; where the store knows its workers, the one that its policy gives this one.
    - `tenants`: only work of these tenants; none means of all that this worker may serve.
    - `concurrency`: how many tasks run at once, 1 to 2,000; never more are leased.
    - `lease_seconds`: how long the store waits for this process before it gives its tasks to another, 1 to 900; a workflow
      may say otherwise of its own.
    - `worker_id`: unique to this start of the process; made up when absent.
    - `drain_seconds`: how long running tasks may go on after SIGTERM, before they are given back.
    - `batching`: whether what is written for several tasks at once travels in one call.
    - `admin_port`: answers `/livez`, `/readyz` and `/metrics` there; 0 takes a free port.
    - `registry`: where its figures go; one of its own when absent.
    - `traces`: spans for its runs and their steps: `open_traces("its name")`.
    """

    def __init__(
        self,
        store: str = "127.0.0.1:7233",
        *,
        tls: Tls | None = None,
        name: str | None = None,
        tenants: Sequence[str] = (),
        concurrency: int = 16,
        lease_seconds: float = 30.0,
        worker_id: str | None = None,
        drain_seconds: float = 20.0,
        batching: bool = True,
        admin_host: str = "127.0.0.1",
        admin_port: int | None = None,
        registry: CollectorRegistry | None = None,
        traces: "Traces | None" = None,
    ) -> None:
        if not 1 <= concurrency <= _MOST_CONCURRENCY:
            raise ValueError(f"concurrency must be 1 to {_MOST_CONCURRENCY}")
        check_lease_seconds(lease_seconds)
        self.worker_id = _new_worker_id(name) if worker_id is None else worker_id
        if not _WORKER_ID.fullmatch(self.worker_id):
            raise ValueError("worker_id must be 1 to 128 of A-Z a-z 0-9 _ - .")
        self.registry = registry or CollectorRegistry()
        self._store = store
        self._tls = tls
        self._tenants = tuple(tenants)
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._drain_seconds = drain_seconds
        self._admin = (
            AdminServer(host=admin_host, port=admin_port, registry=self.registry, ready=self._why_not_ready)
            if admin_port is not None
            else None
        )
        self._workflows = Workflows()
        self._metrics = WorkerMetrics(self.registry)
        self._traces = traces
        self._batch_metrics = BatchMetrics(self.registry, traces) if batching else None
        self._batchers: list[Batcher[Any, Any]] = []
        self._metrics.slots.set(concurrency)
        self._allowance = Allowance(concurrency, lease_seconds=lease_seconds)
        self._metrics.allowance.set(concurrency)
        self._schemas = OutputSchemas()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("tenure.worker")
        self._taken: deque[Taken] = deque()  # and not begun
        self._running: set[Run] = set()
        self._stirred = asyncio.Event()  # a run ended, or its completion waits to be taken along
        self._quarantine = Quarantine()
        self._giving_back: set[asyncio.Task[None]] = set()
        self._stop_wished = asyncio.Event()
        self._hurry = asyncio.Event()
        self._leasing: Leasing | None = None

    def workflow(
        self,
        name: str,
        *,
        version: int = 1,
        retry: RetryPolicy | None = None,
        limits: BudgetAmounts | None = None,
        lease_seconds: float | None = None,
    ) -> Callable[[Function], Function]:
        """Registers the function below it for tasks of exactly this workflow and version.

        It is called with a Context and the task's input. An async function runs in the event loop; a sync one in a
        thread, with a SyncContext. What it returns is the task's result; what it raises is tried again by `retry`,
        except ToolError and ProtocolError, which say how the task ends. `limits` are what a task may use in its life,
        which its steps count by `ctx.use`: they are reserved of the tenant's budget, where it has one, before it runs.
        `lease_seconds`, where it is not the worker's, is how soon another takes over when this process is lost.
        """

        def register(function: Function) -> Function:
            self._workflows.add(
                Workflow(
                    name=name,
                    version=version,
                    retry=retry or RetryPolicy(),
                    function=function,
                    limits=limits,
                    lease_seconds=lease_seconds,
                )
            )
            return function

        return register

    @property
    def admin_port(self) -> int | None:
        """The port of probes and metrics."""
        return self._admin.port if self._admin is not None else None

    def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains and returns. A second signal gives all tasks back at once."""
        if not structlog.is_configured():
            configure_logs(traces=self._traces is not None)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve_until_signal())
            # Closing the loop waits for user code that does not stop. Its tasks were given back: it is left behind.
            last_resort = threading.Timer(_STOP_SECONDS, self._end_process)
            last_resort.daemon = True
            last_resort.start()
        last_resort.cancel()

    async def serve(self) -> None:
        """Works until `stop` is called, then drains and returns."""
        async with self:
            await self._stop_wished.wait()

    def stop(self) -> None:
        """Takes no more work and lets what runs finish. Called again, it gives all tasks back at once."""
        if self._stop_wished.is_set():
            self._hurry.set()
        self._stop_wished.set()

    async def __aenter__(self) -> Self:
        workflows = self._workflows.to_messages()
        if not workflows:
            raise ValueError("no workflow is registered; use @worker.workflow(name)")
        self._channel: grpc.aio.Channel = open_channel(self._store, self._tls, traces=self._traces)
        self._stub = leases_pb2_grpc.LeaseServiceStub(self._channel)
        if self._batch_metrics is not None:
            self._batchers = gather_calls(self._stub, self._batch_metrics)
        self._completions = Completions(self._stub, came=self._stirred.set, batches=self._batch_metrics)
        self._heartbeats = Heartbeats(
            address=self._store,
            tls=self._tls,
            worker_id=self.worker_id,
            metrics=self._metrics,
        )
        self._leasing = Leasing(
            self._stub,
            worker_id=self.worker_id,
            workflows=workflows,
            tenants=self._tenants,
            lease_seconds=self._lease_seconds,
            metrics=self._metrics,
            completions=self._completions,
        )
        self._run_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("tenure.worker").bind()
        self._heartbeats.start()
        if self._admin is not None:
            self._admin.start()
        self._taking = asyncio.create_task(self._take_work(self._leasing))
        self._log.info("worker started", worker_id=self.worker_id, store=self._store, workflows=len(workflows))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._drain()
        finally:
            await asyncio.to_thread(self._heartbeats.stop)
            for batcher in self._batchers:
                batcher.close()
            await self._channel.close()
            if self._admin is not None:
                await asyncio.to_thread(self._admin.stop)
            self._log.info("worker ended", worker_id=self.worker_id)

    async def _serve_until_signal(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        settle_garbage()
        await self.serve()

    async def _take_work(self, leasing: Leasing) -> None:
        # Half of them run while the completions of the other half are under way.
        most_along = max(1, self._concurrency // 2)
        while True:
            while (free := self._allowance.count - len(self._running) - len(self._taken)) <= 0 and not self._completions:
                self._stirred.clear()
                await self._stirred.wait()
            try:
                self._taken.extend(await leasing.take(free, most_along=most_along))
                self._begin_some()
                if not self._taken:
                    await self._first_words()
            except Exception:  # noqa: BLE001 (logged; a worker that takes nothing more would look as if it were well)
                self._log.exception("taking work failed unexpectedly")
                await asyncio.sleep(_AFTER_FAULT_SECONDS)

    def _begin_some(self) -> None:
        """Begins what was taken, in several turns of the event loop, so that the next call for work sets out meanwhile."""
        try:
            for _ in range(min(_BEGUN_AT_ONCE, len(self._taken))):
                self._begin(self._taken.popleft())
        finally:
            if self._taken:
                asyncio.get_running_loop().call_soon(self._begin_some)

    async def _first_words(self) -> None:
        """Lets the code of few that were begun run for as long as it waits for nothing. What ends within is written by the next
        call for work, and not behind it."""
        for _ in range(2):  # the code, and who hears of its end
            await asyncio.sleep(0)

    def _begin(self, taken: Taken) -> None:
        contract = taken.leased.contract
        workflow = self._workflows.find(contract.workflow, contract.workflow_version)
        if workflow is None:
            self._log.error("the store gave a task that was not asked for", workflow=contract.workflow)
            return
        if not self._quarantine.admits(taken.held, crashes=taken.leased.crashes):
            giving = asyncio.create_task(self._give_back(taken.held))
            self._giving_back.add(giving)
            giving.add_done_callback(self._giving_back.discard)
            return
        run = Run(
            taken.leased,
            taken.held,
            workflow=workflow,
            stub=self._stub,
            schemas=self._schemas,
            metrics=self._metrics,
            log=self._run_log,
            traces=self._traces,
        )
        self._heartbeats.add(taken.held)
        self._running.add(run)
        self._metrics.running.set(len(self._running))
        try:
            run.begin(self._ended, self._completions if self._batchers else None)
        except Exception:  # noqa: BLE001 (logged; its lease runs out, as nobody extends it)
            self._log.exception("a run did not begin", task_id=taken.leased.lease.task_id)
            self._ended(run)

    async def _give_back(self, held: HeldLease) -> None:
        """Lets another take a task, or this worker a little later."""
        with contextlib.suppress(StoreError):  # then its lease runs out, which never showed life
            await LeaseCalls(self._stub, held).release_task(delay_ms=random.randint(500, 1_500))  # noqa: S311 (spreads them)

    def _ended(self, run: Run) -> None:
        self._heartbeats.remove(run.held)
        self._quarantine.ended(run.held)
        self._running.discard(run)
        if run.is_lost:
            self._allowance.lost()
        else:
            self._allowance.kept()
        self._metrics.allowance.set(self._allowance.count)
        self._metrics.running.set(len(self._running))
        self._stirred.set()

    async def _drain(self) -> None:
        """Takes no more, waits for what runs, then gives back what is left."""
        self._stop_wished.set()
        self._taking.cancel()
        await asyncio.wait({self._taking})
        self._completions.close()
        while self._taken:
            self._begin(self._taken.popleft())
        await asyncio.gather(*self._giving_back)
        if self._leasing is not None:
            await self._leasing.give_back()
        if self._running:
            self._log.info("draining", runs=len(self._running), seconds=self._drain_seconds)
            hurry = asyncio.create_task(self._hurry.wait())
            await self._wait_for_runs(hurry, seconds=self._drain_seconds)
            hurry.cancel()
        self._completions.give_up()
        for run in list(self._running):
            run.held.stop(StopReason.DRAINING)
        if self._running:
            await self._wait_for_runs(seconds=_STOP_SECONDS)

    async def _wait_for_runs(self, *others: "asyncio.Task[Any]", seconds: float) -> None:
        """Until every run has ended, or any of the others; at most so long."""
        runs = asyncio.create_task(self._none_runs())
        await asyncio.wait([runs, *others], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        runs.cancel()

    async def _none_runs(self) -> None:
        while self._running:
            self._stirred.clear()
            await self._stirred.wait()

    def _end_process(self) -> None:
        self._log.warning("ending with code that did not stop")
        logging.shutdown()
        os._exit(0)

    def _why_not_ready(self) -> str | None:
        if self._stop_wished.is_set():
            return "the worker is shutting down"
        if self._leasing is None:
            return "the worker has not started"
        return self._leasing.problem


def _new_worker_id(name: str | None) -> str:
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:60]
    return f"{f'{name}-' if name else ''}{host}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 (optional)
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
