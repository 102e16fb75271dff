"""How a tenant is moved from one cell to another, and how that goes on after it was broken off anywhere.

Where it stands is written in both databases (`db/migrations`, the file `moves`), and nothing of it is kept here: each run
looks, and does what is next.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from store_service.db.moves import MoveRows
from store_service.model.moves import MoveError, MoveState, Place

SETTLE_SECONDS: Final = 60.0
FORGET_ROWS: Final = 5_000
_LOOK_SECONDS: Final = 0.1

Tell = Callable[[str], None]
"""Is told of each step that is done, for people."""

_WHY: Final = {
    "TENANT_NOT_FOUND": "no such tenant lives in the first database",
    "MOVING": "its move between other databases is under way; end that one first, or take it back with `tenant stay`",
    "LIVES_HERE": "a tenant of this name lives in the second database too; it is not overwritten",
    "NOT_EMPTY": "rows of it are left in the second database",
    "OLDER": "the first database is older than a move that the second knows of; move it from where it lives",
}


async def move_tenant(source: MoveRows, target: MoveRows, *, drain_seconds: float, tell: Tell) -> None:
    """Moves the tenant, or goes on where a move was broken off, or finds that it is there.

    Work that is leased may go on for `drain_seconds`; then its leases are over, and it is taken up again where the tenant goes.
    Raises MoveError where it cannot be moved; then, and after any failure, it may be moved again, or kept by `keep_tenant`.
    """
    here, there = await _look(source, target)
    if _is_older(here, there) and there.other == source.identity:  # as after a restore to a moment before the move
        await source.leave(target.identity, there.epoch)
        await source.settle(within_seconds=SETTLE_SECONDS)
    elif here.state is not MoveState.LEFT or there.state is MoveState.ARRIVING:
        await _bring(source, target, here, drain_seconds=drain_seconds, tell=tell)
    elif here.other != target.identity or there.state is not MoveState.HERE:
        raise MoveError(f"it left the first database for {here.other}, and does not live in the second; name that one")
    await _forget(source)
    tell("it lives in the second database; nothing of it is left in the first")


async def keep_tenant(source: MoveRows, target: MoveRows, *, tell: Tell) -> None:
    """Takes a move back that has not come to its end: the tenant stays. Raises MoveError once it has left."""
    here, there = await _look(source, target)
    if here.state is MoveState.LEFT or there.state is MoveState.HERE:
        raise MoveError("it has left the first database; to bring it back, move it from the second to the first")
    if there.state is MoveState.ARRIVING:
        await target.abandon_arrival()
        await _forget(target)
        tell("nothing of it is left in the second database")
    await source.stay()
    tell("it lives in the first database, as before")


async def _look(source: MoveRows, target: MoveRows) -> tuple[Place, Place]:
    """What both know of it. Raises MoveError where a move with a third one is under way."""
    here, there = await source.find_move(), await target.find_move()
    is_leaving = here.state in (MoveState.DRAINING, MoveState.FROZEN)
    if (is_leaving and here.other != target.identity) or (there.state is MoveState.ARRIVING and there.other != source.identity):
        _check("MOVING")
    return here, there


def _is_older(here: Place, there: Place) -> bool:
    """Whether what is here is a copy from before the tenant went there."""
    is_under_way = here.state in (MoveState.DRAINING, MoveState.FROZEN)
    return there.state is MoveState.HERE and (there.epoch > here.epoch or (there.epoch == here.epoch and is_under_way))


async def _bring(source: MoveRows, target: MoveRows, here: Place, *, drain_seconds: float, tell: Tell) -> None:
    if here.state is not MoveState.LEFT:
        if not here.lives:
            _check("TENANT_NOT_FOUND")
        await _freeze(source, target, drain_seconds=drain_seconds, tell=tell)
    there, here = await target.find_move(), await source.find_move()
    if (here.other, there.other) != (target.identity, source.identity):
        raise MoveError(f"it left the first database for {here.other}; name that one")
    if not there.copied:
        await source.settle(within_seconds=SETTLE_SECONDS)
        tell(f"{await target.copy_from(source, epoch=here.epoch)} rows are copied")
    if not await source.leave(target.identity, here.epoch):
        raise MoveError("it does not stand in the first database as it did; look who else moves it")
    tell("it has left the first database")
    await target.arrive()
    tell("it lives in the second database")


async def _freeze(source: MoveRows, target: MoveRows, *, drain_seconds: float, tell: Tell) -> None:
    await _forget(target)  # what may be left of when it lived there
    _check(await target.begin_arrival(source.identity, (await source.find_move()).epoch))
    await target.settle(within_seconds=SETTLE_SECONDS)
    tell("the second database awaits it")
    _check(await source.begin_leaving(target.identity))
    tell("nothing new of it is leased")
    loop = asyncio.get_running_loop()
    until = loop.time() + drain_seconds
    leased = await source.count_leased()
    while leased and loop.time() < until:
        await asyncio.sleep(_LOOK_SECONDS)
        leased = await source.count_leased()
    await source.freeze()
    tell(f"it is frozen; {leased} leases were not waited for")


async def _forget(rows: MoveRows) -> None:
    while await rows.forget_rows(FORGET_ROWS):
        pass


def _check(outcome: str) -> None:
    """Raises MoveError for an outcome that is not OK."""
    if outcome != "OK":
        raise MoveError(_WHY[outcome])
