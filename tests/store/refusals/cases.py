"""A case for each method and reason."""

from typing import Final

from tests.store.refusals.case import Case
from tests.store.refusals.of_leases import OF_LEASES
from tests.store.refusals.of_retention import OF_RETENTION
from tests.store.refusals.of_tasks import OF_TASKS
from tests.store.refusals.of_tenants import OF_TENANTS
from tests.store.refusals.promised import Pair

CASES: Final[dict[Pair, Case]] = OF_TASKS | OF_LEASES | OF_TENANTS | OF_RETENTION
