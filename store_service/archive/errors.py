"""What can go wrong with an archive."""

from enum import StrEnum


class Fault(StrEnum):
    """Why an archive did not do what it was asked for."""

    CONFIGURATION = "configuration"
    """The destination is not as it must be. Nothing was written; an operator mends it."""
    AUTHORIZATION = "authorization"
    """The destination does not let us. Nothing was written."""
    TIMEOUT = "timeout"
    """The destination did not answer in time. Nothing was written."""
    UNAVAILABLE = "unavailable"
    """The destination cannot be reached, or cannot do it now. Nothing was written."""
    INTEGRITY = "integrity"
    """What is kept is not what was to be kept."""
    AMBIGUOUS = "ambiguous"
    """It is not known whether the batch was written. To put it again settles it, as a batch is written once."""
    OTHER = "other"
    """Anything else."""


class ArchiveError(Exception):
    """The archive did not do what it was asked for. The message is for operators."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
