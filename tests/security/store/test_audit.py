"""What operators do is written down, with who did it by its certificate. Security checklist S7."""

import contextlib

import asyncpg
import grpc
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from taskstore.v1 import retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from store_service.dev_certs import DOMAIN
from tests.security.store.conftest import Guarded
from tests.store.builders import cancel, new_task, refusal_of
from tests.store.refusals.calls import NO_ID


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


async def lines_of(guarded: Guarded, tenant_id: str = "acme", after: int = 0) -> list[tenants_pb2.AuditLine]:
    async with guarded.caller("auditor") as stubs:
        request = tenants_pb2.ListAuditLinesRequest(tenant_id=tenant_id, after_cursor=after, page_size=100)
        return list((await stubs.tenants.ListAuditLines(request)).lines)


@pytest.mark.row("S7")
async def test_what_an_operator_changes_is_kept_for_the_auditor_who_it_was_what_and_how_it_ended(guarded: Guarded) -> None:
    async with guarded.caller("bridge") as bridge:
        task = (await bridge.tasks.CreateTask(new_task(data=b'"canary"'))).task
    sent = tasks_pb2.PublishSignalRequest(tenant_id="acme", signal_id="s", task_id=task.task_id, name="go")
    sent.payload.data = b'"canary"'
    pause = tenants_pb2.PauseWorkRequest(tenant_id="acme", actor="ann", reason="too\0 much")
    async with guarded.caller("operator") as operator:
        await operator.tasks.PublishSignal(sent)
        await operator.tasks.CancelTask(cancel(task.task_id))
        assert (await refusal_of(operator.tasks.CancelTask(cancel(NO_ID)))).reason == "TASK_NOT_FOUND"
        assert (await refusal_of(operator.tenants.PauseWork(pause))).reason == "INVALID_INPUT"
        await operator.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="acme", task_id=task.task_id))
    async with guarded.caller("bridge") as bridge:
        await bridge.tasks.CancelTask(cancel(task.task_id))
    told = await lines_of(guarded)
    assert [(one.cursor, one.method, one.outcome) for one in told] == [
        (1, "PublishSignal", "OK"),
        (2, "CancelTask", "OK"),
        (3, "CancelTask", "TASK_NOT_FOUND"),
        (4, "PauseWork", "INVALID_INPUT"),
    ]
    assert {one.caller for one in told} == {f"{DOMAIN}/operator"}
    assert task.task_id in told[1].request
    assert 'actor: "ann"' in told[3].request
    assert not any("canary" in one.request for one in told)
    assert await lines_of(guarded, after=3) == told[3:]
    with pytest.raises(grpc.aio.AioRpcError, match="may not"):
        await lines_of(guarded, "globex")


@pytest.mark.row("S7")
async def test_nothing_is_done_by_an_operator_that_cannot_be_written_down(
    guarded: Guarded, database: asyncpg.Connection
) -> None:
    async with guarded.caller("bridge") as bridge:
        task = (await bridge.tasks.CreateTask(new_task())).task
        await database.execute("ALTER TABLE tenure.audit_line ADD CHECK (caller = '')")
        async with guarded.caller("operator") as operator:
            with pytest.raises(grpc.aio.AioRpcError, match="it was logged"):
                await operator.tasks.CancelTask(cancel(task.task_id))
        read = tasks_pb2.GetTaskRequest(tenant_id="acme", task_id=task.task_id)
        assert (await bridge.tasks.GetTask(read)).task.state == types_pb2.TASK_STATE_QUEUED


@pytest.mark.row("S7", "P3")
async def test_a_line_of_the_audit_stays_whoever_tries(guarded: Guarded, database: asyncpg.Connection) -> None:
    async with guarded.caller("operator") as operator:
        await operator.tenants.PauseWork(tenants_pb2.PauseWorkRequest(tenant_id="acme", actor="ann"))
    for change in ("UPDATE tenure.audit_line SET caller = ''", "UPDATE tenure.audit_outcome SET outcome = ''"):
        with pytest.raises(asyncpg.RaiseError, match="never changed"):
            await database.execute(change)
    for role in ("tenure_app", "tenure_scheduler", "tenure_governance", "tenure_metrics"):
        for table in ("audit_line", "audit_outcome"):
            await database.execute(f"SET ROLE {role}")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await database.execute(f"DELETE FROM tenure.{table}")
            await database.execute("RESET ROLE")
