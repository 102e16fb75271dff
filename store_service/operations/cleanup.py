"""What is over is put away by itself. Any number of stores look for it; of each tenant one removes at a time, by its cleanup
lease. Source: store contract, section 16."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry, Counter

from store_service.model.refusals import Reason, Refusal
from store_service.model.retention import CleanupLease
from store_service.model.shards import shard_of
from store_service.operations.exports import Exports
from store_service.operations.retention import Retention

PRINCIPAL: Final = "tenure-store"
"""In whose name a store removes by itself."""
TENANTS_PER_PAGE: Final = 100
BACKOFF_SECONDS: Final = 1.0
EVENTS: Final = ("scanned", "claimed", "contended", "lease_lost", "failed")


Work = Callable[[CleanupLease], Awaitable[bool]]
"""What is done with a tenant under its lease. Returns whether something is left."""


class Look(Protocol):
    """How tenants with something to do are found."""

    async def __call__(self, *, after_tenant_id: str, limit: int) -> tuple[list[str], str | None]:
        """Of so many tenants, those; and where to look on, None at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """How a store cleans up."""

    scan_seconds: float
    """The pause between two looks at all tenants; none after a look that left something to do."""
    lease_ms: int
    tenants_at_once: int
    batch: int
    """How many tasks are removed in one step at most."""
    batches_per_claim: int
    """After how many steps a tenant is left for the next look, so that no tenant keeps others waiting."""
    shards: int
    shard: int
    """Of all tenants, which are looked after. It saves contention; it is the lease that makes it safe."""


class Cleanup:
    """The supervisor: it finds tenants that have something to remove, or to archive, and does it under their leases."""

    def __init__(
        self, retention: Retention, plan: CleanupPlan, *, exports: Exports | None, registry: CollectorRegistry
    ) -> None:
        self._retention = retention
        self._exports = exports
        self._plan = plan
        self._owner_id = f"store-{uuid4().hex}"
        self._few = asyncio.Semaphore(plan.tenants_at_once)
        self._stopping = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._events = Counter("tenure_store_cleanup", "What came of cleaning up.", ["event"], registry=registry)
        self._removed = Counter("tenure_store_removed_tasks", "Tasks that were removed by themselves.", registry=registry)
        for event in EVENTS:
            self._events.labels(event)

    def start(self) -> None:
        """Starts to look."""
        self._loop = asyncio.create_task(self._run(), name="cleanup")

    async def stop(self, *, within_seconds: float) -> None:
        """Lets the steps under way end, gives the leases back, and looks no more."""
        if self._loop is None:
            return
        self._stopping.set()
        done, _ = await asyncio.wait({self._loop}, timeout=within_seconds)
        if not done:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self._exports is not None:
            await self._exports.close()

    async def scan(self) -> bool:
        """Looks at all tenants, page by page, and removes what is due, then archives what is not archived. Returns whether it
        left something to do."""
        self._events.labels("scanned").inc()
        is_left = await self._scan(self._list_due, self._remove)
        if self._exports is not None:
            is_left |= await self._scan(self._exports.list_tenants, self._archive)
        return is_left

    async def _scan(self, look: Look, work: Work) -> bool:
        is_left, after = False, ""
        while not self._stopping.is_set():
            found, more = await look(after_tenant_id=after, limit=TENANTS_PER_PAGE)
            tenants = [tenant_id for tenant_id in found if shard_of(tenant_id, self._plan.shards) == self._plan.shard]
            random.shuffle(tenants)  # two stores that look at once meet less often
            is_left |= any(await asyncio.gather(*(self._clean(tenant_id, work) for tenant_id in tenants)))
            if more is None:
                break
            after = more
        return is_left

    async def _list_due(self, *, after_tenant_id: str, limit: int) -> tuple[list[str], str | None]:
        page = await self._retention.list_cleanup_tenants(after_tenant_id=after_tenant_id, limit=limit)
        return [tenant_id for tenant_id, _ in page.due], page.next_tenant_id

    async def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                pause = 0.0 if await self.scan() else self._plan.scan_seconds
                failures = 0
            except Exception as error:  # noqa: BLE001 (whatever it is, the next look begins at the first page)
                self._tell_failure(error)
                pause = min(BACKOFF_SECONDS * 2**failures, max(self._plan.scan_seconds, BACKOFF_SECONDS))
                failures = min(failures + 1, 10)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _clean(self, tenant_id: str, work: Work) -> bool:
        """One tenant's turn. Whatever is wrong with it is no other's concern."""
        async with self._few:
            if self._stopping.is_set():
                return False
            try:
                claimed = await self._retention.claim_cleanup(
                    tenant_id, self._owner_id, principal=PRINCIPAL, lease_ms=self._plan.lease_ms
                )
                if claimed.lease is None:
                    self._events.labels("contended").inc()
                    return False
                self._events.labels("claimed").inc()
                try:
                    return await work(claimed.lease)
                finally:
                    with contextlib.suppress(Refusal):
                        await self._retention.release_cleanup(claimed.lease)
            except Exception as error:  # noqa: BLE001 (logged; its next turn may do better)
                self._tell_failure(error, tenant_id=tenant_id)
                return False

    async def _remove(self, lease: CleanupLease) -> bool:
        """Step by step, until nothing is due or the turn is over. Returns whether something is left."""
        extended_at = time.monotonic()
        for _ in range(self._plan.batches_per_claim):
            if self._stopping.is_set():
                return False
            if time.monotonic() - extended_at > self._plan.lease_ms / 3_000:
                await self._retention.heartbeat_cleanup(lease, lease_ms=self._plan.lease_ms)
                extended_at = time.monotonic()
            removed = await self._retention.remove_tasks(lease, limit=self._plan.batch)
            self._removed.inc(len(removed))
            if not removed:
                return False
        return True

    async def _archive(self, lease: CleanupLease) -> bool:
        """Batch by batch, until nothing is left, the turn is over, or the archive fails. Returns whether something is left.

        A lease that runs out meanwhile does no harm: whoever else archives makes the same batches.
        """
        assert self._exports is not None
        for _ in range(self._plan.batches_per_claim):
            if self._stopping.is_set() or self._exports.is_resting:
                return False
            if not await self._exports.export_batch(lease.tenant_id):
                return False
            await self._retention.heartbeat_cleanup(lease, lease_ms=self._plan.lease_ms)
        return True

    def _tell_failure(self, error: Exception, **about: str) -> None:
        is_lost = isinstance(error, Refusal) and error.reason is Reason.LEASE_LOST
        self._events.labels("lease_lost" if is_lost else "failed").inc()
        structlog.get_logger().warning("cleanup_failed", reason=str(error), exc_info=not isinstance(error, Refusal), **about)
