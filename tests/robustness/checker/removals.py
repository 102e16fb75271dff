"""S11: a task is gone if and only if it has a tombstone, or had one that is kept elsewhere. Nothing that is held goes."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from store_service.archive.batches import Receipt
from store_service.archive.chain import Broken, read_chain
from store_service.archive.folder import Folder
from tests.robustness.checker.tasks import SLACK_US
from tests.robustness.evidence import Evidence
from tests.robustness.history import OK


def check_removals(evidence: Evidence) -> Iterator[str]:
    """All of it."""
    yield from _check_stones(evidence)
    yield from _check_purges(evidence)
    yield from _check_holds(evidence)
    yield from _check_readers(evidence)
    for tenant, (through, receipt) in evidence.exports.items():
        if evidence.archive is not None:
            yield from asyncio.run(_check_archive(evidence, evidence.archive, tenant, through, receipt))


def _check_stones(evidence: Evidence) -> Iterator[str]:
    for task in evidence.versions.keys() - evidence.rows.keys():
        if not evidence.was_removed(task):
            yield f"S11 {task}: is gone without a tombstone"
    for task in (evidence.tombstones.keys() | evidence.purged.keys()) & evidence.rows.keys():
        yield f"S11 {task}: has a tombstone and is there"
    for task, versions in evidence.versions.items():
        if versions[-1].op == "D" and versions[-1].held:
            yield f"S11 {task}: was removed while it was held"
    cursors: dict[str, list[int]] = defaultdict(list)
    for tenant, cursor in evidence.tombstones.values():
        cursors[tenant].append(cursor)
    for stone in evidence.purged.values():
        cursors[stone.tenant].append(stone.cursor)
    for tenant, found in cursors.items():
        if sorted(found) != list(range(1, len(found) + 1)):
            yield f"S11 {tenant}: the cursors of its {len(found)} tombstones are not 1 to {len(found)}"


def _check_purges(evidence: Evidence) -> Iterator[str]:
    for task, stone in evidence.purged.items():
        if stone.held:
            yield f"S11 {task}: its tombstone was purged while it was held"
        if not stone.exported:
            yield f"S11 {task}: its tombstone was purged, and is kept nowhere else"
    counts = Counter(stone.tenant for stone in evidence.purged.values())
    for tenant in counts.keys() | evidence.purges.keys():
        if counts[tenant] != (proved := evidence.purges.get(tenant, 0)):
            yield f"S11 {tenant}: {counts[tenant]} tombstones were purged, there is evidence of {proved}"


def _check_holds(evidence: Evidence) -> Iterator[str]:
    """Nothing goes from the moment on in which a hold was acknowledged, until somebody asks to end it."""
    lost = {task: versions[-1].at for task, versions in evidence.versions.items() if versions[-1].op == "D"}
    held: dict[str, int] = {}
    for call in evidence.calls:
        if call.op == "place hold" and call.outcome == OK:
            held.setdefault(call.task, call.returned)
        elif call.op == "release hold" and call.task in held:
            since = held.pop(call.task)
            yield from _gone_between(evidence, lost, call.task, since, call.invoked)
    for task, since in held.items():
        yield from _gone_between(evidence, lost, task, since, 1 << 62)


def _gone_between(evidence: Evidence, lost: dict[str, int], task: str, since: int, until: int) -> Iterator[str]:
    if since + SLACK_US < lost.get(task, 0) < until - SLACK_US:
        yield f"S11 {task}: was removed after a hold of it was acknowledged"
    purged = evidence.purged.get(task)
    if purged is not None and since + SLACK_US < purged.at < until - SLACK_US:
        yield f"S11 {task}: its tombstone was purged after a hold of it was acknowledged"


def _check_readers(evidence: Evidence) -> Iterator[str]:
    """Who reads from a cursor on misses nothing but what was purged."""
    purged: dict[str, dict[int, int]] = defaultdict(dict)
    for stone in evidence.purged.values():
        purged[stone.tenant][stone.cursor] = stone.at
    for call in evidence.calls:
        if call.op == "tombstones" and call.outcome == OK and (seen := call.detail["seen"]):
            went = purged[call.tenant]
            missed = set(range(call.detail["after"] + 1, seen[-1])) - set(seen)
            if seen != sorted(seen) or any(went.get(cursor, 1 << 62) > call.returned + SLACK_US for cursor in missed):
                yield f"S11 {call.tenant}: after {call.detail['after']} a reader saw tombstones to {seen[-1]}, and not all"


async def _check_archive(evidence: Evidence, folder: Path, tenant: str, through: int, receipt: str) -> list[str]:
    """From the last receipt back to the first batch, all is there, each tombstone with the history that it proves."""
    stones = {stone.cursor: stone.task for stone in evidence.stones if stone.tenant == tenant and stone.op == "I"}
    found, kept = [], {}
    async for batch in read_chain(Folder(folder), Receipt.parse(receipt)):
        if isinstance(batch, Broken):
            found.append(f"S11 {tenant}: batch {batch.batch_id} of the archive is {batch.reason}")
            continue
        kept.update({record.cursor: record.task_id for record in batch.records})
        found += [f"S11 {each.task_id}: its history is not as digested" for each in batch.records if each.is_proved is False]
    if kept != {cursor: stones.get(cursor) for cursor in range(1, through + 1)}:
        found.append(f"S11 {tenant}: the archive has other tombstones than came up to {through}")
    return found
