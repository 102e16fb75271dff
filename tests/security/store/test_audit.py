"""What operators do is written down, with who did it by its certificate. Security checklist S7."""

import contextlib

import grpc
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from taskstore.v1 import retention_pb2, tenants_pb2

from store_service.dev_certs import DOMAIN
from tests.security.store.conftest import Guarded


@pytest.mark.row("S7")
async def test_each_call_for_operators_alone_is_audited_by_its_certificate_done_or_refused(guarded: Guarded) -> None:
    with capture_logs(processors=[merge_contextvars]) as lines:
        for name in ("operator", "auditor"):
            async with guarded.caller(name) as stubs:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stubs.tenants.PauseWork(tenants_pb2.PauseWorkRequest(tenant_id="acme", actor="ann", reason="canary"))
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stubs.retention.ListTombstones(retention_pb2.ListTombstonesRequest(tenant_id="acme"))
    told = [line for line in lines if line["event"] == "audit"]
    assert [(one["caller"], one["action"], one["tenant_id"], one["actor"], one["outcome"]) for one in told] == [
        (f"{DOMAIN}/operator", "PauseWork", "acme", "ann", "OK"),
        (f"{DOMAIN}/auditor", "PauseWork", "acme", "ann", "PERMISSION_DENIED"),
    ]
    assert "canary" not in repr(lines)
