"""The store that the model is compared with: a real one on a real Postgres, called through gRPC, under a clock that stands
still until it is set.

Three things are taken in hand, so that a run can be repeated: the clock, which is one row; the dice of retries, which is
another; and the ids of tasks. The store's loops are stopped: what falls due is brought along by claims alone, which is what
the contract says of time anyway, and so the moments between the due and its discovery can be looked into. Limits that would
take thousands of calls to meet are made small.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Self, TypeVar
from unittest import mock
from uuid import UUID

import asyncpg
import grpc
import structlog

from store_service.model.refusals import Reason, Refusal
from tests.conftest import store_on
from tests.model import calls
from tests.model.contract.checks import Answer, Limits
from tests.model.contract.tasks import in_order
from tests.model.operations import read_operations
from tests.model.picture import QUERY, Picture, read_picture
from tests.model.plain import Outcome, to_outcome, to_plain

T = TypeVar("T")

START: Final = 1_900_000_000_000_000
"""Where the clock of every example starts, in microseconds since 1970."""
LIMITS: Final = Limits(
    cancel_grace_ms=20_000,
    max_crashes=2,
    questions=6,
    signals=3,
    checkpoints=5,
    checkpoint_bytes=300,
    pauses=2,
    answer_bytes=300,
)
_MADE_SMALL: Final = {
    "waits.QUESTIONS_PER_TASK": LIMITS.questions, "waits.PENDING_SIGNALS_PER_TASK": LIMITS.signals,
    "leases.CHECKPOINTS_PER_TASK": LIMITS.checkpoints, "leases.CHECKPOINT_BYTES_PER_TASK": LIMITS.checkpoint_bytes,
    "tenants.PAUSES_PER_TENANT": LIMITS.pauses, "leases.ANSWER_BYTES": LIMITS.answer_bytes,
}  # fmt: skip
_SECONDS: Final = 30.0
"""How long a call may take, and whatever else is waited for."""

TAKEN_IN_HAND: Final = """
CREATE TABLE clock.hand (at timestamptz NOT NULL, dice float8 NOT NULL);
INSERT INTO clock.hand VALUES ('2030-01-01Z', 0.5);
GRANT USAGE ON SCHEMA clock TO PUBLIC;
GRANT SELECT ON clock.hand TO PUBLIC;
CREATE OR REPLACE FUNCTION tenure.task_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM clock.hand';
CREATE FUNCTION clock.random() RETURNS float8 LANGUAGE sql VOLATILE AS 'SELECT dice FROM clock.hand';
CREATE FUNCTION clock.us(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE
  AS 'SELECT (extract(epoch FROM at) * 1000000)::bigint';
ALTER FUNCTION tenure.finish_tasks SET search_path = tenure, clock, pg_catalog, pg_temp;
"""
_SET: Final = "UPDATE clock.hand SET at = to_timestamp(0) + $1::bigint * interval '1 us', dice = $2"
_TABLES: Final = """
SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' AND relname <> 'epoch'
"""
_FUNCTION: Final = "SELECT pg_get_functiondef($1::text::regproc)"
_TURNS: Final = "SELECT tenant_id FROM tenure.tenant ORDER BY turn"
_FORFEITED: Final = """
SELECT task_id::text FROM tenure.budget_fact WHERE kind = 'FORFEITED' GROUP BY tenant_id, task_id ORDER BY max(cursor)
"""
_SIGNALS: Final = "SELECT signal_id FROM tenure.signal WHERE tenant_id = $1"
_THEIRS: Final = "FROM pg_stat_activity WHERE datname = current_database() AND pid = ANY ($1)"
_STORES: Final = """
SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tenure-%'
"""
_TIDY_EVERY: Final = 25


class Real:
    """A store, its API and a look into its database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._ids = random.Random(0)
        self._operations = read_operations()
        self._is_losing = self._was_lost = False
        self._examples = 0

    def __enter__(self) -> Self:
        self._patches: list[Any] = [
            mock.patch("store_service.operations.tasks._new_ids", self._new_ids),
            mock.patch("store_service.operations.waits.uuid4", self._new_id),
        ]
        self._patches += [mock.patch(f"store_service.db.{name}", value) for name, value in _MADE_SMALL.items()]
        self._patches.append(mock.patch("store_service.operations.chores.Chores.start"))
        for patch in self._patches:
            patch.start()
        self._logging = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self._thread.start()
        self._database = self._run(self._connect())
        self._tables = [row[0] for row in self._run(self._database.fetch(_TABLES))]
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._run(self._database.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)
        self._loop.close()
        for patch in self._patches:
            patch.stop()
        structlog.configure(**self._logging)

    def forget(self) -> None:
        """As new: no tenants, no tasks, the first moment."""
        self._ids.seed(0)
        empty = [f"DELETE FROM {table}" for table in self._tables]
        self.execute(";".join([*empty, "UPDATE tenure.epoch SET epoch = 1"]))
        self.set_clock(START, 0.5)
        self._examples += 1
        if self._examples % _TIDY_EVERY == 0:
            self.execute(f"VACUUM {', '.join(self._tables)}")

    def set_clock(self, now: int, dice: float) -> None:
        """It is `now` until it is set again, and so are the dice."""
        self._run(self._database.execute(_SET, now, dice))

    def execute(self, query: str) -> None:
        """Changes the database behind the store's back."""
        self._run(self._database.execute(query))

    def function(self, name: str) -> str:
        """The text of a function of the database."""
        text: str = self._run(self._database.fetchval(_FUNCTION, f"tenure.{name}"))
        return text

    def call(self, name: str, fields: dict[str, Any]) -> Outcome:
        """One call of the API."""
        return self.send(name, getattr(calls, name)(**fields))

    def send(self, name: str, message: Any) -> Outcome:
        """One call of the API."""
        try:
            answer = self._methods[name](message, timeout=_SECONDS)
            if self._operations[name].kind == "unary_stream":  # whatever it says at once
                first = next(answer)
                answer.cancel()
                return to_outcome(first)
            return to_outcome(answer)
        except grpc.RpcError as error:
            return to_outcome(error)

    def lose_answer(self, name: str, fields: dict[str, Any]) -> tuple[Outcome, bool]:
        """One call whose first write is done, and its answer lost between the database and the store. Tells whether it was:
        a call that writes nothing loses nothing."""
        self._is_losing, self._was_lost = True, False
        outcome, lost = self.call(name, fields), self._was_lost
        self._is_losing = self._was_lost = False
        return outcome, lost

    @contextlib.contextmanager
    def watching(self, fields: dict[str, Any]) -> Iterator[Iterator[Answer]]:
        """What a watch tells, as long as the block lasts. Whoever watches has nothing more to say."""
        stream = self._methods["watch_tasks"](iter([calls.watch_tasks(**fields)]), timeout=_SECONDS)
        try:
            yield (to_plain(item) for answer in stream for item in answer.items)
        finally:
            stream.cancel()

    def watch(self, fields: dict[str, Any], count: int, *, ends: bool) -> Outcome:
        """What a watch tells first, so many things; and that it ends then, where it shall."""
        with self.watching(fields) as told:
            try:
                items = sorted(islice(told, count), key=in_order)
                assert not ends or not list(told), "a watch of what is over tells more"
            except grpc.RpcError as error:
                return to_outcome(error)
        return "OK", {"items": items, "ended": ends}

    def look(self, task_ids: Sequence[str], strict: Sequence[str]) -> Picture:
        """What the database holds, of these tasks all; and what is wrong, of it the leases of `strict` tenants."""
        return read_picture(self._run(self._database.fetchval(QUERY, list(task_ids), list(strict))))

    def turns(self) -> list[str]:
        """The tenants in the order in which they were served."""
        return self._column(_TURNS)

    def forfeited(self) -> list[str]:
        """The tasks that lost a reservation, in the order in which they did."""
        return self._column(_FORFEITED)

    def signals(self, tenant_id: str) -> list[str]:
        """The signals that a tenant has."""
        return self._column(_SIGNALS, tenant_id)

    def meter(self) -> None:
        """The loop that counts the facts of budgets goes round once."""
        assert self._store._parts is not None
        self._run(self._store._parts.chores._figures.record_facts())

    def cut(self) -> None:
        """Every connection of the store to its database is gone, and the store has noticed."""
        self._run(self._cut())

    def crash(self) -> None:
        """The store is gone, with all that was not in its database; another one comes."""
        self.cut()
        self._stop()
        self._start()

    def _start(self) -> None:
        port = self._run(self._serve())
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._methods: dict[str, Callable[..., Any]] = {}
        for name, one in self._operations.items():
            self._methods[name] = getattr(self._channel, one.kind)(
                one.path, one.request.SerializeToString, one.answer.FromString
            )

    def _stop(self) -> None:
        self._channel.close()
        self._run(self._store.stop())

    async def _cut(self) -> None:
        theirs = await self._database.fetchval(_STORES)
        await self._database.execute(f"SELECT pg_terminate_backend(pid) {_THEIRS}", theirs)
        async with asyncio.timeout(_SECONDS):
            while await self._database.fetchval(f"SELECT count(*) {_THEIRS}", theirs):
                pass
        assert self._store._parts is not None
        await self._store._parts.databases[0]._pool.expire_connections()

    async def _connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self._dsn)

    async def _serve(self) -> int:
        self._store = store_on(self._dsn, cancel_grace_seconds=LIMITS.cancel_grace_ms / 1000, max_crashes=LIMITS.max_crashes)
        await self._store.start()
        assert self._store._parts is not None
        database = self._store._parts.databases[0]
        write = database.write

        async def lose(query: str, *arguments: Any) -> list[asyncpg.Record]:
            rows = await write(query, *arguments)
            if self._is_losing:
                self._is_losing, self._was_lost = False, True
                raise Refusal(Reason.OUTCOME_UNKNOWN)
            return rows

        database.write = lose  # type: ignore[method-assign]  # the one place where an answer can be lost
        return self._store.port

    def _column(self, query: str, *arguments: Any) -> list[str]:
        return [row[0] for row in self._run(self._database.fetch(query, *arguments))]

    def _run(self, work: "Coroutine[Any, Any, T]") -> T:
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_SECONDS)

    def _new_ids(self, count: int) -> list[str]:
        return [str(self._new_id()) for _ in range(count)]

    def _new_id(self) -> UUID:
        return UUID(int=self._ids.getrandbits(128), version=4)
