"""Refusals of the store, as one exception: no caller of this package meets an error of gRPC."""

from typing import TYPE_CHECKING, Final, cast

import grpc
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

_DETAILS_KEY: Final = "grpc-status-details-bin"
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class StoreError(Exception):
    """The store refused a call, or could not be reached.

    `reason` is a name of `taskstore.v1.ErrorReason` without its prefix, for example `LEASE_LOST`; it is empty when
    the answer did not come from the store itself, such as when the connection broke. `message` is for people.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(f"{reason or code.name}: {message}")
        self.message = message
        self.reason = reason
        self.code = code
        self.retry_after_ms = retry_after_ms

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed a little later; every call of this API may be repeated with its ids."""
        if self.reason:
            return self.code is grpc.StatusCode.UNAVAILABLE or self.reason in ("OUTCOME_UNKNOWN", "OVERLOADED")
        return self.code in (
            grpc.StatusCode.UNAVAILABLE,  # not connected, or the connection broke
            grpc.StatusCode.UNKNOWN,  # the stream was removed under way
            grpc.StatusCode.CANCELLED,  # by the server, as it stopped
            grpc.StatusCode.DEADLINE_EXCEEDED,  # of one try
        )


class LeaseLost(StoreError):  # noqa: N818 (the word of the API)
    """The lease no longer allows the write. Whoever meets it stops the work and writes nothing more under it."""


def same_error(error: StoreError) -> StoreError:
    """Another error that says the same, for another caller."""
    return type(error)(error.message, reason=error.reason, code=error.code, retry_after_ms=error.retry_after_ms)


def from_status(status: status_pb2.Status) -> StoreError:
    """The refusal of one item of a batch, or of one watched task."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    reason, retry_after_ms = "", None
    for detail in status.details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason = info.reason.removeprefix("ERROR_REASON_")
        elif detail.Unpack(retry):
            retry_after_ms = retry.retry_delay.ToMilliseconds()
    kind = LeaseLost if reason == "LEASE_LOST" else StoreError
    return kind(status.message, reason=reason, code=code, retry_after_ms=retry_after_ms)


def given_up() -> StoreError:
    """Why there is no answer once the client is closed."""
    return StoreError("the client was closed, or failed", code=grpc.StatusCode.FAILED_PRECONDITION)


def from_rpc_error(error: grpc.RpcError) -> StoreError:
    """The refusal of a whole call, or its failure on the way."""
    metadata = cast("Iterable[tuple[str, str | bytes]] | None", error.trailing_metadata())
    for key, value in metadata or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return from_status(status_pb2.Status.FromString(value))
    return StoreError(error.details() or "the call failed on its way to the store", code=error.code())
