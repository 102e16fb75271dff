"""Moves of tenants between cells."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MoveState(StrEnum):
    """What one of the two cells may do with a tenant."""

    DRAINING = "DRAINING"
    """It lives here. Nothing new of it is leased."""
    FROZEN = "FROZEN"
    """It lives here, and nothing of it changes."""
    LEFT = "LEFT"
    """It lives in the other."""
    ARRIVING = "ARRIVING"
    """It does not live here yet."""
    HERE = "HERE"
    """It came from the other, or stayed."""


UNFINISHED: Final = (MoveState.DRAINING, MoveState.FROZEN, MoveState.ARRIVING, MoveState.LEFT)
"""How a move stands that has not come to its end. One that has LEFT is done once none of its rows are there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one cell knows of a tenant."""

    lives: bool
    """It has rows here."""
    state: MoveState | None
    """None for one that never moved."""
    other: str
    """The other database; empty for one that never moved."""
    epoch: int
    """The cell with the highest one is where it lives."""
    copied: bool
    """It is arriving, and all of it is here."""


@dataclass(frozen=True, slots=True)
class UnfinishedMove:
    """How one cell sees a move that has not come to its end."""

    tenant_id: str
    state: MoveState
    """LEFT: it has left, and rows of it are left."""
    seconds: float
    """How long it has stood so."""
    is_attended: bool
    """Whether a mover is at it."""


class MoveError(Exception):
    """A tenant cannot be moved so. The message says why, and what to do."""
