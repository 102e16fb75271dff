"""The one table from refusals to gRPC."""

from typing import Final

from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from store_service.model.refusals import Reason, Refusal

DOMAIN: Final = "taskstore.tenure"

CODES: Final[dict[Reason, StatusCode]] = {
    Reason.INVALID_INPUT: StatusCode.INVALID_ARGUMENT,
    Reason.TASK_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.CHECKPOINT_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.TENANT_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.TOMBSTONE_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.SIGNAL_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.SIGNAL_ID_CONFLICT: StatusCode.ALREADY_EXISTS,
    Reason.INPUT_LIMIT: StatusCode.FAILED_PRECONDITION,
    Reason.SIGNAL_LIMIT: StatusCode.RESOURCE_EXHAUSTED,
    Reason.CREATE_RATE: StatusCode.RESOURCE_EXHAUSTED,
    Reason.INPUT_TOO_LARGE: StatusCode.INVALID_ARGUMENT,
    Reason.BUDGET_NOT_CONFIGURED: StatusCode.FAILED_PRECONDITION,
    Reason.BUDGET_DENIED: StatusCode.RESOURCE_EXHAUSTED,
    Reason.BUDGET_EXCEEDED: StatusCode.FAILED_PRECONDITION,
    Reason.BUDGET_CONFLICT: StatusCode.FAILED_PRECONDITION,
    Reason.BUDGET_RESERVED: StatusCode.FAILED_PRECONDITION,
    Reason.PAUSE_LIMIT: StatusCode.FAILED_PRECONDITION,
    Reason.REQUEST_ID_CONFLICT: StatusCode.ALREADY_EXISTS,
    Reason.REVISION_CONFLICT: StatusCode.ABORTED,
    Reason.LEASE_LOST: StatusCode.FAILED_PRECONDITION,
    Reason.CHECKPOINT_LIMIT: StatusCode.FAILED_PRECONDITION,
    Reason.OUTSTANDING_LIMIT: StatusCode.RESOURCE_EXHAUSTED,
    Reason.BATCH_FULL: StatusCode.RESOURCE_EXHAUSTED,
    Reason.OVERLOADED: StatusCode.RESOURCE_EXHAUSTED,
    Reason.STORAGE_UNAVAILABLE: StatusCode.UNAVAILABLE,
    Reason.DRAINING: StatusCode.UNAVAILABLE,
    Reason.OUTCOME_UNKNOWN: StatusCode.UNKNOWN,
    Reason.UNAUTHENTICATED: StatusCode.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED: StatusCode.PERMISSION_DENIED,
    Reason.POLICY_UNAVAILABLE: StatusCode.UNAVAILABLE,
    Reason.HOLD_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.HOLD_RELEASED: StatusCode.FAILED_PRECONDITION,
    Reason.EXPORT_CONFLICT: StatusCode.FAILED_PRECONDITION,
    Reason.NOT_EXPORTED: StatusCode.FAILED_PRECONDITION,
    Reason.NOTHING_TO_PURGE: StatusCode.NOT_FOUND,
    Reason.PURGE_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.PURGE_CONFLICT: StatusCode.FAILED_PRECONDITION,
    Reason.SECOND_PERSON_REQUIRED: StatusCode.FAILED_PRECONDITION,
    Reason.TENANT_MOVED: StatusCode.UNAVAILABLE,
}


def to_status(refusal: Refusal) -> status_pb2.Status:
    """A refusal as `google.rpc.Status`, with its reason and, where waiting helps, for how long."""
    details = [_packed(error_details_pb2.ErrorInfo(reason=refusal.reason, domain=DOMAIN))]
    if refusal.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(refusal.retry_after_ms)
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    code: int = CODES[refusal.reason].value[0]
    return status_pb2.Status(code=code, message=refusal.message, details=details)


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
