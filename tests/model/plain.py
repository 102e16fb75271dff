"""From the API's messages to the plain values that the model returns: what is empty is left out, times are microseconds."""

import re
from typing import Any

import grpc
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_status import rpc_status

from tests.store.builders import refusal_in

Outcome = tuple[str, Any]
"""`OK` with the answer, or the gRPC code's name with the reason."""


def to_outcome(answer: Message | grpc.RpcError) -> Outcome:
    """What a call came to."""
    if isinstance(answer, Message):
        return "OK", to_plain(answer)
    status = rpc_status.from_call(answer)
    if status is None:
        return answer.code().name, answer.details()
    refused = refusal_in(status)
    return refused.code.name, refused.reason


def to_plain(message: Message) -> Any:
    """A message as a dictionary of the fields that are set."""
    if isinstance(message, timestamp_pb2.Timestamp):
        return message.ToMicroseconds()
    if isinstance(message, status_pb2.Status):
        return refusal_in(message).reason
    plain = {field.name: _value(field, value) for field, value in message.ListFields()}
    if "pauses" in plain:  # they have no order
        plain["pauses"].sort(key=lambda pause: (pause["scope"].get("workflow", ""), pause["scope"].get("workflow_version", 0)))
    return plain


def _value(field: FieldDescriptor, value: Any) -> Any:
    many = field.is_repeated
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return [to_plain(one) for one in value] if many else to_plain(value)
        case FieldDescriptor.TYPE_ENUM:
            return [_enum(field, one) for one in value] if many else _enum(field, value)
        case _:
            return list(value) if many else value


def _enum(field: FieldDescriptor, number: int) -> str:
    assert field.enum_type is not None
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", field.enum_type.name).upper() + "_"
    name: str = field.enum_type.values_by_number[number].name
    return name.removeprefix(prefix)
