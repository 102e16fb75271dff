"""What operators did."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One call of an operator that changes something."""

    tenant_id: str
    cursor: int
    caller: str
    method: str
    request: str
    at: datetime
    outcome: str
    """Empty where its end is not known."""
