"""Moves of tenants between cells."""

from dataclasses import dataclass
from enum import StrEnum


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


class MoveError(Exception):
    """A tenant cannot be moved so. The message says why, and what to do."""
