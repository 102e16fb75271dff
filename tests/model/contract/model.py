"""The store's contract as one class, cut by noun as the store is.

Operations have the names of the API and return what its answers hold, as plain values: a field that is empty is left out,
times are microseconds since 1970, enums are names without prefix. `Refused` carries the reason. Where the store may choose (a
task's id, a random rest, the order of turns within one claim), the operation is told the choice and checks that it was allowed
to make it. Nothing here knows SQL, batches or locks.
"""

from tests.model.contract.budgets import Budgets
from tests.model.contract.governance import Governance
from tests.model.contract.leases import Leases
from tests.model.contract.tasks import Tasks
from tests.model.contract.waits import Waits


class Model(Tasks, Leases, Waits, Budgets, Governance):
    """What the store does, one operation after the other."""
