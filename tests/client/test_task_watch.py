"""The watch of tasks: one stream for all who look, opened again when it ends, and nothing is told twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import grpc
import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import StoreError, TaskStore
from store_service.client.task_watch import Snapshot
from tests.client.fake_tasks import SILENCE, FakeTasks, refused, snapshot

ENDED = types_pb2.TASK_STATE_COMPLETED


@pytest.fixture
def scripted() -> Iterator[FakeTasks]:
    with FakeTasks().serve() as serving:
        yield serving


@pytest.fixture
async def client(scripted: FakeTasks) -> AsyncIterator[TaskStore]:
    async with TaskStore.connect(scripted.address) as connected:
        yield connected


def wanted(task_id: str) -> tasks_pb2.WatchedTask:
    return tasks_pb2.WatchedTask(tenant_id="acme", task_id=task_id, view=types_pb2.TASK_VIEW_OUTCOME)


class Reader:
    """One who looks at some tasks, and what it was told: the change of each, or why nothing follows."""

    def __init__(self, client: TaskStore, *task_ids: str) -> None:
        self.heard: asyncio.Queue[tuple[str, int | str]] = asyncio.Queue()
        self.followings = [client.follow_task(wanted(task_id), self._note(task_id)) for task_id in task_ids]

    def _note(self, task_id: str):  # type: ignore[no-untyped-def]
        def told(news: Snapshot | StoreError) -> None:
            self.heard.put_nowait((task_id, news.reason if isinstance(news, StoreError) else news.task.change))

        return told

    async def next(self) -> tuple[str, int | str]:
        """What it is told next."""
        return await asyncio.wait_for(self.heard.get(), 60)


def asked(scripted: FakeTasks) -> list[list[tuple[str, int]]]:
    """What was to be watched, by request: each task with the change that is known."""
    return [[(one.task_id, one.known_change) for one in call.add] for call in scripted.calls]


async def test_a_watch_goes_on_after_the_store_was_away_and_tells_nothing_twice(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].extend(
        [
            [snapshot("a", change=1), refused("c", "TASK_NOT_FOUND"), snapshot("b", change=2, state=ENDED), "broken"],
            ["STORAGE_UNAVAILABLE"],
            [],
            [snapshot("a", change=1), snapshot("a", change=3), snapshot("a", change=4, state=ENDED), SILENCE],
        ]
    )
    reader = Reader(client, "a", "b", "c")
    heard = [await reader.next() for _ in range(5)]
    assert heard == [("a", 1), ("c", "TASK_NOT_FOUND"), ("b", 2), ("a", 3), ("a", 4)]
    assert asked(scripted)[0] == [("a", 0), ("b", 0), ("c", 0)]
    assert asked(scripted)[-1] == [("a", 1)]
    assert {one.view for call in scripted.calls for one in call.add} == {types_pb2.TASK_VIEW_OUTCOME}


async def test_all_who_look_share_one_stream_and_one_number_a_task(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].append([snapshot("a", change=1), snapshot("b", change=1), snapshot("a", change=2), SILENCE])
    readers = [Reader(client, "a", "b") for _ in range(20)]
    for reader in readers:
        assert [await reader.next() for _ in range(3)] == [("a", 1), ("b", 1), ("a", 2)]
    assert asked(scripted) == [[("a", 0), ("b", 0)]]
    assert not scripted.calls[0].remove


async def test_one_who_comes_later_is_told_what_stands_then_and_the_others_not_again(
    scripted: FakeTasks, client: TaskStore
) -> None:
    script: list[object] = [snapshot("a", change=1), snapshot("b", change=1), snapshot("a", change=1), snapshot("a", change=2)]
    scripted.answers["WatchTasks"].append([*script, SILENCE])
    first = Reader(client, "a")
    assert await first.next() == ("a", 1)
    second = Reader(client, "a", "b")
    assert [await second.next() for _ in range(3)] == [("b", 1), ("a", 1), ("a", 2)]
    assert await first.next() == ("a", 2)
    added = [one for call in scripted.calls for one in call.add if one.task_id == "a"]
    removed = [number for call in scripted.calls for number in call.remove]
    assert removed == [added[0].number]
    assert added[1].known_change == 0


async def test_one_who_knows_the_task_says_so_to_the_store_until_another_looks(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].extend([["broken"], [snapshot("a", change=3), snapshot("a", change=4, state=ENDED)]])
    knowing = asyncio.create_task(_changes(client, known_change=2))
    await scripted.until(lambda: len(scripted.calls) >= 2)  # also when the store was away
    assert asked(scripted)[:2] == [[("a", 2)], [("a", 2)]]
    assert (await knowing)[-1] == 4
    scripted.answers["WatchTasks"].append([snapshot("a", change=7), snapshot("a", change=8, state=ENDED), SILENCE])
    first = asyncio.create_task(_changes(client, known_change=7))
    second = asyncio.create_task(_changes(client, known_change=5))  # it may have missed one
    assert [(await one)[-1] for one in (first, second)] == [8, 8]
    assert asked(scripted)[-1] == [("a", 0)]


async def _changes(client: TaskStore, *, known_change: int) -> list[int]:
    async with asyncio.timeout(60):
        return [seen.task.change async for seen in client.watch_task(wanted("a"), known_change=known_change)]


async def test_who_leaves_is_told_no_more_and_the_last_one_ends_the_watch_of_its_task(
    scripted: FakeTasks, client: TaskStore
) -> None:
    scripted.answers["WatchTasks"].append([snapshot("a", change=1), snapshot("b", change=1), snapshot("a", change=2), SILENCE])
    first, second = Reader(client, "a"), Reader(client, "a")
    assert await first.next() == await second.next() == ("a", 1)
    first.followings[0].close()
    Reader(client, "b")
    assert await second.next() == ("a", 2)
    assert first.heard.empty()
    second.followings[0].close()
    second.followings[0].close()
    await scripted.until(lambda: scripted.calls[-1].remove)
    assert list(scripted.calls[-1].remove) == [scripted.calls[0].add[0].number]


async def test_a_watch_that_is_refused_as_a_whole_tells_all(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].append(["INVALID_INPUT"])
    reader = Reader(client, "a", "b")
    heard = [await reader.next() for _ in range(2)]
    assert heard == [("a", "INVALID_INPUT"), ("b", "INVALID_INPUT")]


async def test_one_reader_that_breaks_does_not_end_the_watch_of_others(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].append([snapshot("a", change=1), snapshot("b", change=1), SILENCE])

    def breaks(_news: Snapshot | StoreError) -> None:
        raise RuntimeError("broken")

    client.follow_task(wanted("a"), breaks)
    assert await Reader(client, "b").next() == ("b", 1)


async def test_no_more_tasks_are_looked_at_than_the_store_allows(
    scripted: FakeTasks, client: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.client.task_watch.MOST_TASKS", 2)
    scripted.answers["WatchTasks"].append([SILENCE])
    Reader(client, "a", "b", "a")
    with pytest.raises(StoreError, match="OVERLOADED"):
        Reader(client, "c")


async def test_who_looks_when_the_client_is_closed_is_told(scripted: FakeTasks) -> None:
    scripted.answers["WatchTasks"].append([SILENCE])
    async with TaskStore.connect(scripted.address) as client:
        waiting = asyncio.create_task(anext(client.watch_task(wanted("a"))))
        await asyncio.sleep(0)
    with pytest.raises(StoreError) as raised:
        await waiting
    assert raised.value.code is grpc.StatusCode.CANCELLED
    with pytest.raises(StoreError):
        client.follow_task(wanted("a"), lambda _: None)


async def test_one_task_is_read_snapshot_by_snapshot(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].append([snapshot("a", change=1), snapshot("a", change=2, state=ENDED), SILENCE])
    async with asyncio.timeout(60):
        assert [seen.task.change async for seen in client.watch_task(wanted("a"))][-1] == 2


async def test_one_who_reads_a_task_again_and_again_hears_of_each_report_once(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].extend(
        [
            [snapshot("a", change=3, reports=[1, 2]), "broken"],
            [snapshot("a", change=3, reports=[1, 2]), snapshot("a", change=4, reports=[3]), "broken"],
            [snapshot("a", change=6, state=ENDED, reports=[2, 3, 4]), SILENCE],
        ]
    )
    async with asyncio.timeout(60):
        seen = [report.sequence async for one in client.watch_task(wanted("a")) for report in one.reports]
    assert seen == [1, 2, 3, 4]
    known = [one.known_report for call in scripted.calls for one in call.add]
    assert known == [0, 2, 3]


async def test_one_task_that_is_not_there_raises(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].append([refused("a", "TASK_NOT_FOUND"), SILENCE])
    with pytest.raises(StoreError, match="TASK_NOT_FOUND"):
        await asyncio.wait_for(anext(client.watch_task(wanted("a"))), 60)


async def test_a_reader_of_one_task_that_stops_looks_no_longer(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["WatchTasks"].append([snapshot("a", change=1), SILENCE])
    async with aclosing(client.watch_task(wanted("a"))) as snapshots:
        assert (await anext(snapshots)).task.change == 1
    await scripted.until(lambda: scripted.calls[-1].remove)
