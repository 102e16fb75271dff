"""Who follows calls down to their statements, where traces are on. The class is above, in `telemetry`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Traces(Protocol):
    """Spans, as this floor knows them."""

    def asker(self) -> Any:
        """Whoever asks for something now."""

    def statement(self, name: str) -> AbstractContextManager[None]:
        """A statement is run within."""

    def together(self, name: str, askers: Sequence[Any]) -> AbstractContextManager[None]:
        """What is done within is for all who ask."""
