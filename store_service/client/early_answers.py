"""Answers that came before their questions: whether they answer them."""

from collections.abc import Iterable
from typing import Any

import jsonschema_rs
import msgspec
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client.questions import APPROVAL, read_as


def fitting_keys(requests: Iterable[leases_pb2.NewInputRequest], answers: Iterable[types_pb2.InputAnswer]) -> list[str]:
    """The keys of those answers that answer what is about to be asked. A question whose schema cannot be used, one of a kind
    that is not known here, and an approval, which its caller must not give, have none: they are asked in their time."""
    asked = {request.name: request for request in requests}
    found = []
    for answer in answers:
        request = asked.get(answer.key.partition("#")[0])
        if request is not None and _fits(request, msgspec.json.decode(answer.response.data)):
            found.append(answer.key)
    return found


def _fits(request: leases_pb2.NewInputRequest, response: Any) -> bool:
    params = msgspec.json.decode(request.params.data)
    meta = params.get("_meta")
    if isinstance(meta, dict) and meta.get(APPROVAL):
        return False
    try:
        read_as(request.method, response)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    schema = params.get("requestedSchema")
    if schema is None or response["action"] != "accept":
        return True
    try:
        form = jsonschema_rs.Draft202012Validator(schema, pattern_options=jsonschema_rs.RegexOptions(), offline=True)
    except (ValueError, jsonschema_rs.ReferencingError):
        return False
    return form.is_valid(response.get("content", {}))
