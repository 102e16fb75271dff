"""The stores of all cells as one store: each call goes to the cell in which its tenant lives.

A cell is one Postgres with its stores. The route file says which tenant lives in which; a cell that is away is away for its
own tenants alone. Whatever is under way when a tenant's cell changes goes on in the other one: every call of the store may
be repeated, and whoever follows a task is told of it as it stands.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.access.routes import CurrentRoutes
from mcp_bridge.metrics import Metrics
from store_service.client import StoreError, TaskStore
from store_service.client.task_watch import Following, Snapshot, Told

ASK_SECONDS: Final = 2.0
"""How often each cell is asked whether it is there, and how long it may take to answer."""
RETIRE_SECONDS: Final = 30.0
"""How long until nothing is asked any more of a cell that no tenant lives in, but for calls of tenants that were its last."""
FOLLOW_AGAIN_SECONDS: Final = 0.25
"""How long until a task is followed in the other cell, where the store says nothing else."""
_MOVED: Final = "TENANT_MOVED"

Connect = Callable[[str], TaskStore]
"""A client of the stores at an address."""
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Stay:
    """Calls of a tenant that are under way, and the cell that it lives in, or lived in last."""

    cell: "_Cell"
    calls: int = 0


@dataclass(slots=True)
class _Cell:
    """One cell, and what is known of it."""

    name: str
    address: str
    store: TaskStore
    trouble: str | None = "was not reached yet"


class Cells:
    """The store as the bridge's methods see it: what they ask of `TaskStore`, each call for the tenant that it names."""

    def __init__(self, routes: CurrentRoutes, connect: Connect, metrics: Metrics, *, default_address: str) -> None:
        self._routes = routes
        self._connect = connect
        self._metrics = metrics
        self._default_address = default_address
        self._cells: dict[str, _Cell] = {}
        self._retired: dict[asyncio.Task[None], TaskStore] = {}
        self._stays: dict[str, _Stay] = {}
        self.routes_changed()

    def routes_changed(self) -> None:
        """Connects to the cells that tenants live in now, and lets go of the others."""
        used = self._routes.now.used_cells()
        for name in [name for name, cell in self._cells.items() if name not in used or cell.address != self._address(name)]:
            self._retire(name)
        for name in sorted(used - self._cells.keys()):
            self._open(name)
        for tenant_id, stay in self._stays.items():
            if self._routes.is_tenant(tenant_id):
                stay.cell = self._cell_of(tenant_id)

    def of(self, tenant_id: str) -> TaskStore:
        """The store of a tenant's cell."""
        return self._cell_of(tenant_id).store

    @contextlib.contextmanager
    def staying(self, tenant_id: str) -> Iterator[None]:
        """A call is under way within: should the route file name its tenant no more, the tenant lives where it lived last."""
        stay = self._stays.get(tenant_id)
        if stay is None:
            stay = self._stays[tenant_id] = _Stay(self._cell_of(tenant_id))
        stay.calls += 1
        try:
            yield
        finally:
            stay.calls -= 1
            if not stay.calls:
                del self._stays[tenant_id]

    def why_not_ready(self) -> str | None:
        """Why no tenant can be served; None while any cell is there, as one that is away is no reason to send away the tenants
        of the others."""
        troubles = [cell.trouble for cell in self._cells.values()]
        if None in troubles:
            return None
        return "; ".join(f"{'the store' if len(troubles) == 1 else name} {cell.trouble}" for name, cell in self._cells.items())

    async def run(self) -> None:
        """Asks all cells from time to time whether they are there. Whether its database is, is for a store's own readiness to
        say; and one that stops says so to its load balancer, behind which there are others."""
        while True:
            await asyncio.gather(*(self._look(name, cell) for name, cell in self._cells.items()))
            await asyncio.sleep(ASK_SECONDS)

    async def close(self) -> None:
        """Gives all connections back. Calls under way end with an error."""
        for task in self._retired:
            task.cancel()
        stores = [*self._retired.values(), *(cell.store for cell in self._cells.values())]
        await asyncio.gather(*(store.close() for store in stores))

    def create_task(self, request: tasks_pb2.CreateTaskRequest) -> Coroutine[object, object, tasks_pb2.CreateTaskResponse]:
        """See TaskStore."""
        return self._ask(request.tenant_id, lambda store: store.create_task(request))

    def get_task(self, request: tasks_pb2.GetTaskRequest) -> Coroutine[object, object, types_pb2.Task]:
        """See TaskStore."""
        return self._ask(request.tenant_id, lambda store: store.get_task(request))

    async def find_task(self, request: tasks_pb2.FindTaskRequest) -> types_pb2.Task:
        """See TaskStore."""
        return await self._ask(request.tenant_id, lambda store: store.find_task(request))

    async def cancel_task(self, request: tasks_pb2.CancelTaskRequest) -> tasks_pb2.CancelTaskResponse:
        """See TaskStore."""
        return await self._ask(request.tenant_id, lambda store: store.cancel_task(request))

    async def answer_inputs(self, request: tasks_pb2.AnswerInputsRequest) -> tasks_pb2.AnswerInputsResponse:
        """See TaskStore."""
        return await self._ask(request.tenant_id, lambda store: store.answer_inputs(request))

    async def explain_task(self, request: tasks_pb2.ExplainTaskRequest) -> tasks_pb2.ExplainTaskResponse:
        """See TaskStore."""
        return await self._ask(request.tenant_id, lambda store: store.explain_task(request))

    async def attach_task(self, request: tasks_pb2.AttachTaskRequest) -> None:
        """See TaskStore."""
        await self._ask(request.tenant_id, lambda store: store.attach_task(request))

    def follow_task(self, wanted: tasks_pb2.WatchedTask, told: Told) -> "FollowedTask":
        """See TaskStore."""
        return FollowedTask(self, wanted, told)

    async def watch_task(self, wanted: tasks_pb2.WatchedTask, *, known_change: int = 0) -> AsyncGenerator[Snapshot, None]:
        """See TaskStore. After a move the task is told as it stands, and perhaps reports that were told before."""
        while True:
            store = self.of(wanted.tenant_id)
            try:
                async with contextlib.aclosing(store.watch_task(wanted, known_change=known_change)) as snapshots:
                    async for snapshot in snapshots:
                        yield snapshot
                return
            except StoreError as error:
                if not self.goes_on(error, store, wanted.tenant_id):
                    raise
                pause_seconds, known_change = _pause_seconds(error), 0
            await asyncio.sleep(pause_seconds)

    def goes_on(self, error: StoreError, store: TaskStore, tenant_id: str) -> bool:
        """Whether the tenant's cell is another than the one that failed, or will be soon."""
        return error.reason == _MOVED or (error.is_transient and self.of(tenant_id) is not store)

    async def _ask(self, tenant_id: str, ask: Callable[[TaskStore], Awaitable[Answer]]) -> Answer:
        cell = self._cell_of(tenant_id)
        try:
            return await ask(cell.store)
        except StoreError as error:
            if error.is_transient and self._cells.get(cell.name) is cell:
                self._metrics.cell_failures.labels(cell.name).inc()
            if not error.is_transient or self._cell_of(tenant_id) is cell:
                raise
        return await ask(self.of(tenant_id))

    def _cell_of(self, tenant_id: str) -> _Cell:
        stay = self._stays.get(tenant_id)
        if stay is not None and not self._routes.is_tenant(tenant_id):
            return stay.cell
        name = self._routes.now.cell_of(tenant_id)
        return self._cells.get(name) or self._open(name)

    def _address(self, name: str) -> str:
        return self._routes.now.cells.get(name, self._default_address)

    def _open(self, name: str) -> _Cell:
        address = self._address(name)
        cell = self._cells[name] = _Cell(name, address, self._connect(address))
        self._metrics.cells_reached.labels(name).set(0)
        self._metrics.cell_failures.labels(name)
        return cell

    def _retire(self, name: str) -> None:
        cell = self._cells.pop(name)
        task = asyncio.get_running_loop().create_task(self._close_later(cell))
        self._retired[task] = cell.store
        task.add_done_callback(self._retired.pop)
        self._metrics.cells_reached.remove(name)
        self._metrics.cell_failures.remove(name)

    async def _close_later(self, cell: _Cell) -> None:
        is_used = True
        while is_used:
            await asyncio.sleep(RETIRE_SECONDS)
            is_used = any(stay.cell is cell for stay in self._stays.values())
        await cell.store.close()

    async def _look(self, name: str, cell: _Cell) -> None:
        try:
            await cell.store.check(timeout_seconds=ASK_SECONDS)
            cell.trouble = None
        except StoreError:
            cell.trouble = "cannot be reached"
        if self._cells.get(name) is cell:
            self._metrics.cells_reached.labels(name).set(cell.trouble is None)


class FollowedTask:
    """One task that is followed, in whichever cell its tenant lives, until it has ended or `close` is called."""

    __slots__ = ("_again", "_cells", "_following", "_store", "_told", "_wanted")

    def __init__(self, cells: Cells, wanted: tasks_pb2.WatchedTask, told: Told) -> None:
        """Raises StoreError when as many tasks are followed as may be."""
        self._cells = cells
        self._wanted = wanted
        self._told = told
        self._again: asyncio.TimerHandle | None = None
        self._store: TaskStore
        self._following: Following
        self._follow()

    def close(self) -> None:
        """Follows it no longer."""
        if self._again is not None:
            self._again.cancel()
        self._following.close()

    def _follow(self) -> None:
        self._store = self._cells.of(self._wanted.tenant_id)
        self._following = self._store.follow_task(self._wanted, self._hear)

    def _hear(self, news: Snapshot | StoreError) -> None:
        if isinstance(news, StoreError) and self._cells.goes_on(news, self._store, self._wanted.tenant_id):
            self._again = asyncio.get_running_loop().call_later(_pause_seconds(news), self._follow_again)
        else:
            self._told(news)

    def _follow_again(self) -> None:
        try:
            self._follow()
        except StoreError as error:
            self._told(error)


def _pause_seconds(error: StoreError) -> float:
    return FOLLOW_AGAIN_SECONDS if error.retry_after_ms is None else error.retry_after_ms / 1000
