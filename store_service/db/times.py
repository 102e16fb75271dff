"""The bounds of what is listed where none are named: for Postgres, `-infinity` and `infinity`."""

from datetime import UTC, datetime
from typing import Final

EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
LATEST: Final = datetime.max.replace(tzinfo=UTC)
