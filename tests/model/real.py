"""The store that the model is compared with: a real one on a real Postgres, called through gRPC from a thread that does not
wait in coroutines, under a clock that stands still until it is set.

Three things are taken in hand, so that a run can be repeated: the clock, which is one row; the dice of retries, which is
another; and the ids of tasks. The store's loops are stopped: what falls due is brought along by claims alone, which is what
the contract says of time anyway, and so the moments between the due and its discovery can be looked into.
"""

import asyncio
import concurrent.futures
import logging
import random
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Self, TypeVar
from unittest import mock
from uuid import UUID

import asyncpg
import grpc
import structlog

from store_service.config import Config
from store_service.server import Store
from tests.conftest import Stubs, open_stubs
from tests.model import calls
from tests.model.plain import Outcome, to_outcome

T = TypeVar("T")
Reads = Sequence[tuple[str, dict[str, Any]]]

START: Final = 1_900_000_000_000_000
"""Where the clock of every example starts, in microseconds since 1970."""
GRACE_MS: Final = 20_000
MAX_CRASHES: Final = 2

TAKEN_IN_HAND: Final = """
CREATE TABLE clock.hand (at timestamptz NOT NULL, dice float8 NOT NULL);
INSERT INTO clock.hand VALUES ('2030-01-01Z', 0.5);
GRANT USAGE ON SCHEMA clock TO PUBLIC;
GRANT SELECT ON clock.hand TO PUBLIC;
CREATE OR REPLACE FUNCTION tenure.task_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM clock.hand';
CREATE FUNCTION clock.random() RETURNS float8 LANGUAGE sql VOLATILE AS 'SELECT dice FROM clock.hand';
ALTER FUNCTION tenure.finish_tasks SET search_path = tenure, clock, pg_catalog, pg_temp;
"""
SET: Final = "UPDATE clock.hand SET at = to_timestamp(0) + $1::bigint * interval '1 us', dice = $2"
FORGET: Final = "".join(
    f"DELETE FROM tenure.{table};"
    for table in (
        "signal", "input_request", "early_answer", "wait", "checkpoint", "outcome", "progress", "history", "tombstone",
        "worker_claim", "task_state", "task", "lane", "tenant",
    )
) + "UPDATE tenure.epoch SET epoch = 1"  # fmt: skip
VIOLATIONS: Final = """
SELECT 'audit ' || to_jsonb(a)::text FROM tenure.audit a
UNION ALL SELECT 'S1 tokens are not dense ' || h.task_id FROM tenure.history h
  JOIN tenure.task_state s USING (tenant_id, task_id)
  WHERE h.event = 'LEASED' GROUP BY h.tenant_id, h.task_id HAVING max(h.token) <> count(*) OR max(h.token) <> max(s.token)
UNION ALL SELECT 'S3 over the lease limit ' || t.tenant_id FROM tenure.tenant t
  WHERE t.tenant_id = ANY ($1) AND t.leased > t.max_leased
UNION ALL SELECT 'S5 ended not exactly once ' || s.task_id FROM tenure.task_state s
  WHERE (s.ended_at IS NOT NULL)::int IS DISTINCT FROM (SELECT count(*) FROM tenure.history h
    WHERE h.task_id = s.task_id AND h.event IN ('COMPLETED', 'FAILED', 'CANCELLED')
      AND (s.ended_at IS NULL OR h.line = s.lines - 1))
UNION ALL SELECT 'S7 checkpoints ' || s.task_id FROM tenure.task_state s JOIN LATERAL (
    SELECT count(*) AS n, coalesce(max(c.revision), -1) AS last, bool_and(c.token >= c.before) AS rising
    FROM (SELECT k.*, lag(k.token, 1, 0::bigint) OVER (ORDER BY k.revision) AS before FROM tenure.checkpoint k
          WHERE k.task_id = s.task_id) c) x ON x.n <> s.checkpoints OR x.last <> x.n - 1 OR NOT x.rising
UNION ALL SELECT 'S8 a signal is not received ' || g.signal_id FROM tenure.signal g
  JOIN tenure.task_state s USING (tenant_id, task_id) LEFT JOIN tenure.wait w USING (tenant_id, task_id)
  WHERE g.state = 'PENDING' AND (s.ended_at IS NOT NULL OR (s.state = 'WAITING' AND w.signal_name = g.name))
UNION ALL SELECT 'S10 cancelled with an outcome ' || s.task_id FROM tenure.task_state s
  JOIN tenure.outcome o USING (tenant_id, task_id)
  WHERE s.state NOT IN ('COMPLETED', 'FAILED')
UNION ALL SELECT 'S11 a tombstone and a task ' || s.task_id FROM tenure.task_state s
  JOIN tenure.tombstone USING (tenant_id, task_id)
"""
STATES: Final = "SELECT tenant_id, task_id::text, state, change, token, lines, ready FROM tenure.task_state"
FUNCTION: Final = "SELECT pg_get_functiondef($1::text::regproc)"
TURNS: Final = "SELECT tenant_id FROM tenure.tenant ORDER BY turn"
SERVICES: Final = {"set_tenant_policy": "tenants", "get_tenant": "tenants"} | dict.fromkeys(
    ("remove_tasks", "list_tombstones", "get_tombstone", "compact_signals"), "retention"
) | dict.fromkeys(
    ("lease_tasks", "heartbeat_task", "report_progress", "load_input", "load_checkpoints", "append_checkpoint", "complete_task",
     "fail_task", "release_task", "confirm_cancel", "suspend_task", "heartbeat_tasks", "append_checkpoints", "complete_tasks",
     "fail_tasks", "complete_and_lease_tasks"), "leases"
)  # fmt: skip


class Real:
    """A store, its API and a look into its database, for one thread that is not its own."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._ids = random.Random(0)
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._patches = [mock.patch(f"store_service.operations.{module}.uuid4", self._new_id) for module in ("tasks", "waits")]
        for patch in self._patches:
            patch.start()
        self._logging = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self._thread.start()
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._served = asyncio.run_coroutine_threadsafe(self._serve(started), self._loop)
        self._served.add_done_callback(lambda served: None if started.done() else started.set_exception(served.exception()))
        started.result(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._served.result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
        for patch in self._patches:
            patch.stop()
        structlog.configure(**self._logging)

    def forget(self) -> None:
        """As new: no tenants, no tasks, the first moment."""
        self._ids.seed(0)
        self._run(self._database.execute(FORGET))
        self.set_clock(START, 0.5)

    def set_clock(self, now: int, dice: float) -> None:
        """It is `now` until it is set again, and so are the dice."""
        self._run(self._database.execute(SET, now, dice))

    def execute(self, query: str, *arguments: Any) -> None:
        """Changes the database behind the store's back."""
        self._run(self._database.execute(query, *arguments))

    def function(self, name: str) -> str:
        """The text of a function of the database."""
        text: str = self._run(self._database.fetchval(FUNCTION, f"tenure.{name}"))
        return text

    def call(self, name: str, arguments: dict[str, Any]) -> Outcome:
        """One call of the API."""
        return self._run(self._call(name, getattr(calls, name)(**arguments)))

    def call_batch(self, method: str, message: Any) -> Outcome:
        """One call of a method that takes many items."""
        return self._run(self._call(method, message))

    def look(self, reads: Reads, strict: Sequence[str]) -> tuple[list[Outcome], list[Any], list[str]]:
        """What reads return, where every task stands, and what is wrong, of it the leases of `strict` tenants."""
        return self._run(self._look(reads, strict))

    def turns(self) -> list[str]:
        """The tenants in the order in which they were served."""
        return [row[0] for row in self._run(self._database.fetch(TURNS))]

    async def _look(self, reads: Reads, strict: Sequence[str]) -> tuple[list[Outcome], list[Any], list[str]]:
        answers = await asyncio.gather(*(self._call(name, getattr(calls, name)(**arguments)) for name, arguments in reads))
        states = await self._database.fetch(STATES)
        wrong = await self._database.fetch(VIOLATIONS, list(strict))
        return list(answers), [tuple(row) for row in states], [row[0] for row in wrong]

    async def _call(self, name: str, message: Any) -> Outcome:
        stub = getattr(self._stubs, SERVICES.get(name, "tasks"))
        method = getattr(stub, "".join(word.capitalize() for word in name.split("_")))
        try:
            return to_outcome(await method(message, timeout=20))
        except grpc.aio.AioRpcError as error:
            return to_outcome(error)

    async def _serve(self, started: "concurrent.futures.Future[None]") -> None:
        store = Store(
            Config(
                dsn=self._dsn, port=0, admin_port=0, allow_test_clock=True, drain_seconds=2,
                cancel_grace_seconds=GRACE_MS / 1000, max_crashes=MAX_CRASHES,
            )
        )  # fmt: skip
        await store.start()
        assert store._parts is not None
        await store._parts.chores.stop()
        self._database = await asyncpg.connect(self._dsn)
        async with open_stubs(store) as stubs:
            self._stubs: Stubs = stubs
            started.set_result(None)
            await self._stop.wait()
        await self._database.close()
        await store.stop()

    def _run(self, work: "Coroutine[Any, Any, T]") -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _new_id(self) -> UUID:
        return UUID(int=self._ids.getrandbits(128), version=4)
