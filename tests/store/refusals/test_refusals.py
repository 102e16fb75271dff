"""Every method refuses for the reasons that its comment promises, with the code that the reason promises, and for no others.

The comments of `proto/taskstore/v1` are the table. Each pair in it has a case, each case is in it.
"""

import asyncio
import functools
from typing import Final

import asyncpg
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status
from taskstore.v1 import retention_pb2, tasks_pb2

from store_service.db import pool
from store_service.rpc import status
from tests.conftest import Stubs, serving
from tests.descriptors import READS, methods
from tests.store.budgets import Amounts, set_budget
from tests.store.builders import Refused, blocked, create, get, holding, refusal_in, until
from tests.store.refusals.calls import ONE_OF, UNDER_LEASE, WATCHES, Scene, a_request, in_batch, refused
from tests.store.refusals.cases import CASES
from tests.store.refusals.promised import ANYWHERE, REASONS, RETRIED, Pair, codes, pairs

CODES: Final = codes()
ELSEWHERE: Final[dict[Pair, str]] = {("WatchTasks", "DRAINING"): "test_watch.py, by a store that stops"}
"""Pairs whose test has to do more than call."""
LOCK_EVERYTHING: Final = """
DO $$ BEGIN
PERFORM set_config('deadlock_timeout', '30s', true);  -- a chore that is under way is the victim, and tries again
EXECUTE (
  SELECT 'LOCK TABLE ' || string_agg(format('tenure.%I', relname), ', ' ORDER BY relname) FROM pg_class
  WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' AND relname <> 'epoch');
END $$
"""
CUT_WAITING: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'tenure-store' AND wait_event_type = 'Lock'
"""


def check(refusal: Refused, reason: str) -> None:
    assert (refusal.reason, refusal.code) == (reason, CODES[reason]), refusal.message
    assert (refusal.retry_after_ms > 0) == (reason in RETRIED)


def test_the_comments_promise_exactly_what_has_a_case() -> None:
    assert pairs() - CASES.keys() - ELSEWHERE.keys() == set(), "promised, and no case shows it"
    assert CASES.keys() - pairs() == set(), "shown by a case, and no comment promises it"


def test_each_reason_and_each_method_of_the_api_has_its_place() -> None:
    assert CODES.keys() == REASONS == {reason.value for reason in status.CODES}
    assert {reason for _, reason in {*CASES, *ELSEWHERE}} | ANYWHERE == REASONS
    assert {method for method, _ in CASES} <= methods().keys()
    assert {reason.value: code for reason, code in status.CODES.items()} == CODES


@pytest.mark.parametrize(("method", "reason"), CASES, ids=lambda one: one)
async def test_a_refusal_has_its_code_and_reason(store: Stubs, database: asyncpg.Connection, method: str, reason: str) -> None:
    request = await CASES[method, reason](Scene(store, database))
    batched = request if type(request).DESCRIPTOR is methods()[method].input_type else in_batch(method, request)
    check(await refused(store, method, batched), reason)


async def test_an_empty_request_is_invalid_everywhere(store: Stubs) -> None:
    for method, about in methods().items():
        empty = GetMessageClass(about.input_type)()
        if method == "WatchTasks":  # to watch nothing is not wrong
            empty = tasks_pb2.WatchTasksRequest(add=[tasks_pb2.WatchedTask()])
        if method == "ListCleanupTenants":  # nor is to look at all
            empty = retention_pb2.ListCleanupTenantsRequest(tenant_ids=[""])
        check(await refused(store, method, empty), "INVALID_INPUT")


@pytest.fixture
async def requests(store: Stubs, database: asyncpg.Connection) -> dict[str, Message]:
    """A request for each method that asks the database."""
    await set_budget(store, Amounts(tokens=1_000))
    asking = sorted(methods().keys() - WATCHES, key=lambda method: ONE_OF.get(method, method) not in UNDER_LEASE)
    return {method: await a_request(Scene(store, database), method) for method in asking}


async def test_a_method_whose_connection_is_cut_says_whether_it_may_have_been_applied(
    dsn: str, database: asyncpg.Connection, requests: dict[str, Message]
) -> None:
    async with serving(dsn, pool_size=100) as store, holding(dsn, LOCK_EVERYTHING):
        calls = {method: asyncio.ensure_future(refused(store, method, request)) for method, request in requests.items()}

        async def all_are_answered() -> bool:
            await database.execute(CUT_WAITING)
            return all(call.done() for call in calls.values())

        await until(all_are_answered, "every call is answered")
    for method, call in calls.items():
        check(await call, "STORAGE_UNAVAILABLE" if method in READS else "OUTCOME_UNKNOWN")


async def test_a_method_that_gets_no_connection_says_that_the_server_is_overloaded(
    dsn: str, database: asyncpg.Connection, requests: dict[str, Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = functools.partial(pool.open_database, acquire_seconds=0.3)
    monkeypatch.setattr("store_service.server.open_database", short)
    async with serving(dsn, pool_size=2) as store:
        task_id = (await create(store, workflow="probe")).task_id
        async with holding(dsn, LOCK_EVERYTHING):
            hogs = [asyncio.ensure_future(get(store, task_id)) for _ in range(2)]
            await blocked(database, count=2)  # one of them may be a chore's, and one of these finds no connection either
            refusals = await asyncio.gather(*(refused(store, method, request) for method, request in requests.items()))
        ended = await asyncio.gather(*hogs, return_exceptions=True)
    refusals += [refusal_in(rpc_status.from_call(one)) for one in ended if isinstance(one, grpc.aio.AioRpcError)]
    for refusal in refusals:
        check(refusal, "OVERLOADED")
