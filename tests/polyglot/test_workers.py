"""Workers made from the stubs of three languages, at a real store: `make stubs-test`."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs, serving
from tests.pair import Process
from tests.polyglot.builds import Built, build_go, build_java, build_typescript
from tests.polyglot.stubs import write_stubs
from tests.store.builders import TENANT, create, get, history

BUILDS = {"typescript": build_typescript, "go": build_go, "java": build_java}
LEASE_SECONDS = 5  # as each of the workers asks for
MOST_SECONDS = 60  # a runtime has to start


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """A worker of each language."""

    async def build() -> dict[str, Built]:
        stubs = await write_stubs()
        return {name: await each(stubs, tmp_path_factory.mktemp(name)) for name, each in BUILDS.items()}

    return asyncio.run(build())


@contextlib.contextmanager
def working(name: str, worker: Built, store: Stubs, folder: Path) -> Iterator[Process]:
    arguments = [*worker.arguments, store.address, name]
    process = Process(name, arguments, environment={}, log=folder / f"{name}.log", program=worker.program)
    try:
        yield process
    finally:
        process.kill()
        print(process.tail(), file=sys.stderr)


async def shout(store: Stubs, words: list[str], pause_ms: int) -> str:
    data = json.dumps({"words": words, "pause_ms": pause_ms}).encode()
    return (await create(store, workflow="shout", data=data)).task_id


async def ended(store: Stubs, task_id: str) -> types_pb2.Task:
    async with asyncio.timeout(MOST_SECONDS):
        while (task := await get(store, task_id)).state != types_pb2.TASK_STATE_COMPLETED:
            await asyncio.sleep(0.05)
    return task


async def saved(store: Stubs, task_id: str, count: int) -> None:
    """Waits until so many checkpoints are there: they move no task visibly, so they are asked for."""
    request = tasks_pb2.ListCheckpointsRequest(tenant_id=TENANT, task_id=task_id)
    async with asyncio.timeout(MOST_SECONDS):
        while len((await store.tasks.ListCheckpoints(request)).checkpoints) < count:
            await asyncio.sleep(0.05)


def text_of(task: types_pb2.Task) -> str:
    text: str = json.loads(task.result.data)["content"][0]["text"]
    return text


@pytest.mark.parametrize("language", BUILDS)
async def test_a_worker_leases_heartbeats_checkpoints_and_completes(
    language: str, built: dict[str, Built], store: Stubs, tmp_path: Path
) -> None:
    task_id = await shout(store, ["a", "b"], pause_ms=LEASE_SECONDS * 700)  # longer than a lease, in two steps
    with working(language, built[language], store, tmp_path):
        task = await ended(store, task_id)
    assert text_of(task) == f"A by {language}, B by {language}"
    assert await history(store, task_id) == ["CREATED", "LEASED", "COMPLETED"]


async def test_a_task_goes_from_one_language_to_the_next_with_what_is_done(
    built: dict[str, Built], store: Stubs, dsn: str, clock: Clock, tmp_path: Path
) -> None:
    task_id = await shout(store, ["a", "b", "c"], pause_ms=1_000)
    for count, language in enumerate(["typescript", "go"], start=1):
        async with serving(dsn, drain_seconds=60) as its_store:  # whose end no heartbeat under way outlives
            with working(language, built[language], its_store, tmp_path):
                await saved(store, task_id, count)
        await clock.advance(seconds=LEASE_SECONDS + 1)
    with working("java", built["java"], store, tmp_path):
        task = await ended(store, task_id)
    assert text_of(task) == "A by typescript, B by go, C by java"
