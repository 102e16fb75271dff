"""What the tests of moves say again and again."""

from collections.abc import Sequence
from typing import Final

from store_service.db.moves import open_move
from store_service.operations.moves import keep_tenant, move_tenant
from tests.store.builders import TENANT

STEPS: Final = ("awaits it", "nothing new", "frozen", "copied", "has left", "lives in the second", "nothing of it is left")
"""What is told after each step."""


class BrokenOff(Exception):  # noqa: N818 (nothing is wrong)
    """The mover died."""


async def move(here: str, there: str, *, tenant_id: str = TENANT, until: str = "", drain_seconds: float = 0) -> Sequence[str]:
    """Moves a tenant from one database to another; dies once `until` was told. Returns all that was told."""
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if until and until in text:
            raise BrokenOff

    async with open_move(here, there, tenant_id) as (source, target):
        await move_tenant(source, target, drain_seconds=drain_seconds, tell=tell)
    return told


async def stay(here: str, there: str, *, tenant_id: str = TENANT) -> None:
    """Takes a move back."""
    async with open_move(here, there, tenant_id) as (source, target):
        await keep_tenant(source, target, tell=lambda _: None)
