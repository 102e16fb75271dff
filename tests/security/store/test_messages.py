"""What is no message of the API is refused and breaks nothing. Security checklist G11; `tests/security/fuzz` asks at length."""

from typing import Any

import grpc
import pytest
from grpc_status import rpc_status
from structlog.testing import capture_logs

from store_service.client.channel import open_channel
from tests.conftest import Stubs
from tests.descriptors import methods
from tests.security.store.conftest import Guarded
from tests.store.builders import Refused, create, get, refusal_in

NO_MESSAGES = (b"\xff", b"\x0a\x05abc", b"\x0a\x03\xff\xfe\xfd", b"\x0b", b"\x0a\xff\xff\xff\xff\x0f")
"""Not a tag, cut short, not UTF-8, a group without an end, longer than there may be."""


async def refusal(channel: grpc.aio.Channel, method: str, data: bytes) -> Refused:
    """How a method refuses these bytes."""
    about = methods()[method]
    path = f"/{about.containing_service.full_name}/{method}"
    if not about.server_streaming:
        unary: Any = channel.unary_unary(path)
        answer = unary(data, timeout=20)
    else:
        stream: Any = channel.stream_stream(path) if about.client_streaming else channel.unary_stream(path)
        answer = anext(aiter(stream(iter([data]) if about.client_streaming else data, timeout=20)))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await answer
    status = rpc_status.from_call(raised.value)
    assert status is not None, f"{method} {raised.value.code()} {raised.value.details()}"
    return refusal_in(status)


@pytest.mark.row("G11")
async def test_bytes_that_are_no_message_are_refused_by_every_method_as_what_is_not_valid(
    store: Stubs, caplog: pytest.LogCaptureFixture
) -> None:
    task = await create(store)
    with capture_logs() as lines:
        async with grpc.aio.insecure_channel(store.address) as channel:
            for method in methods():
                for data in NO_MESSAGES:
                    refused = await refusal(channel, method, data)
                    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT"), method
                    assert refused.message == "request is no message of this method"
    assert {line["log_level"] for line in lines} == {"info"}
    assert caplog.text == ""
    assert (await get(store, task.task_id)).change == task.change


@pytest.mark.row("G11")
async def test_who_is_not_known_or_may_not_call_is_told_that_first(guarded: Guarded) -> None:
    for caller, method, reason in (
        ("stranger", "CreateTask", "UNAUTHENTICATED"),
        ("stranger", "WatchTasks", "UNAUTHENTICATED"),
        ("stranger", "WatchLeases", "UNAUTHENTICATED"),
        ("bridge-of-acme", "LeaseTasks", "PERMISSION_DENIED"),
        ("bridge-of-acme", "CreateTask", "INVALID_INPUT"),
        ("bridge-of-acme", "WatchTasks", "INVALID_INPUT"),
        ("reports", "WatchLeases", "INVALID_INPUT"),
        ("mails", "WatchLeases", "INVALID_INPUT"),
        ("bridge", "CreateTasks", "INVALID_INPUT"),
    ):
        async with open_channel(guarded.address, guarded.tls(caller)) as channel:
            assert (await refusal(channel, method, b"\xff")).reason == reason, (caller, method)
