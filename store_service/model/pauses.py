"""What operators hold back, as values."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class WorkScope:
    """Which of a tenant's work. An empty workflow is every one, version 0 is every version."""

    workflow: str
    version: int


@dataclass(frozen=True, slots=True)
class Pause:
    """That an operator holds work back."""

    scope: WorkScope
    actor: str
    reason: str
    paused_at: datetime
