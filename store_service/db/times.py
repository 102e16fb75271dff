"""The bounds of what is listed where none are named: Postgres finds the place in an index only by values that it is given."""

from datetime import UTC, datetime
from typing import Final

EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
LATEST: Final = datetime.max.replace(tzinfo=UTC)
