"""Calls of operators that change something: written down before they are made, and how they ended."""

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString

from store_service.db.leaving import to_its_end
from store_service.model.limits import check_name
from store_service.model.refusals import Refusal
from store_service.operations.audit import Audit
from store_service.rpc.handlers import Unary
from store_service.rpc.policy import Caller

REQUEST_CHARACTERS: Final = 4_096


def audited(audit: Audit, caller: Caller, method: str, inner: Unary) -> Unary:
    """The method, with a line of the audit around it. Where that cannot be written, it is refused as the storage is."""

    async def call(request: Any, context: Any) -> Any:
        tenant_id = check_name("tenant_id", tenant_of(request))
        cursor = await audit.begin(tenant_id, caller=caller.identity, method=method, request=_described(request))
        outcome = ""
        try:
            answer = await inner(request, context)
            outcome = "OK"
            return answer
        except Refusal as refusal:
            outcome = refusal.reason.value
            raise
        finally:
            if outcome:  # else it was given up or broke, and its end is not known
                await to_its_end(audit.end(tenant_id, cursor, outcome))

    return call


def tenant_of(request: Any) -> str:
    """Whom a request is about: its tenant, or that of the lease that it is made under."""
    named = request.lease if "lease" in request.DESCRIPTOR.fields_by_name else request
    tenant_id: str = named.tenant_id
    return tenant_id


def _described(request: Message) -> str:
    """The request as text, its payloads left out."""
    shown = type(request)()
    shown.CopyFrom(request)
    _leave_out_bytes(shown)
    return MessageToString(shown, as_one_line=True, as_utf8=True)[:REQUEST_CHARACTERS]


def _leave_out_bytes(message: Any) -> None:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_BYTES:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if field.is_repeated else (value,):
                _leave_out_bytes(one)
