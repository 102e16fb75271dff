"""Who may do what at the store, by the certificate that a caller shows."""

import asyncio
from typing import Any

import grpc
import pytest
from cryptography import x509
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from store_service.client import StoreError, TaskStore
from store_service.client.channel import open_channel
from store_service.dev_certs import DOMAIN, make_authority
from store_service.rpc.policy import Role
from store_service.rpc.rules import RULES, check_rules
from tests.conftest import Stubs
from tests.descriptors import methods
from tests.security.store.conftest import Guarded
from tests.store.builders import cancel, checkpoint, claim, complete, heartbeat, new_task, refusal_in, refusal_of

OWN_ROLE = {
    Role.BRIDGE: "bridge-of-acme",
    Role.WORKER: "reports",
    Role.OPERATOR: "operator",
    Role.AUDITOR: "auditor",
}


async def is_denied(call: object) -> bool:
    refused = await refusal_of(call)  # type: ignore[arg-type]
    return (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")


@pytest.mark.parametrize("role", Role)
@pytest.mark.row("G3")
async def test_a_role_reaches_its_methods_and_no_others(role: Role, guarded: Guarded) -> None:
    async with guarded.caller(OWN_ROLE[role]) as stubs:
        services = {
            "TaskService": stubs.tasks, "LeaseService": stubs.leases, "TenantService": stubs.tenants,
            "BudgetService": stubs.budgets, "RetentionService": stubs.retention,
            "GovernanceService": stubs.governance,
        }  # fmt: skip
        for service, rules in RULES.items():
            for name, roles in rules.items():
                method = methods()[name]
                if method.client_streaming or method.server_streaming:
                    continue
                # Empty, so that who may call is told that the request is not valid, or that it is not his tenant.
                empty = GetMessageClass(method.input_type)(**{"page_size": -1} if name == "ListCleanupTenants" else {})
                refused = await refusal_of(getattr(services[service], name)(empty))
                was_let_in = refused.reason != "PERMISSION_DENIED" or await _names_a_tenant(stubs, services[service], name)
                assert was_let_in == (role in roles), f"{role} {name}: {refused}"


async def _names_a_tenant(stubs: Stubs, service: object, name: str) -> bool:
    """Whether the same call for one of the caller's tenants is let in."""
    request = GetMessageClass(methods()[name].input_type)()
    lease = getattr(request, "lease", None)
    if isinstance(request, leases_pb2.LeaseTasksRequest):
        request = claim(worker_id="reports-1")
    elif isinstance(request, leases_pb2.CompleteAndLeaseTasksRequest):
        request.lease.CopyFrom(claim(worker_id="reports-1"))
    elif isinstance(lease, types_pb2.Lease):
        lease.tenant_id, lease.worker_id = "acme", "reports-1"
    elif lease is not None:
        lease.tenant_id = "acme"
    elif hasattr(request, "tenant_id"):
        request.tenant_id = "acme"
    try:
        await getattr(service, name)(request)
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.PERMISSION_DENIED
    return True


@pytest.mark.row("G3")
def test_a_method_without_a_rule_keeps_the_store_from_starting() -> None:
    pool = DescriptorPool()
    file = FileDescriptorProto(name="later.proto", package="taskstore.v1")
    file.message_type.add(name="Empty")
    file.service.add(name="TenantService").method.add(
        name="DropTenant", input_type=".taskstore.v1.Empty", output_type=".taskstore.v1.Empty"
    )
    later = pool.AddSerializedFile(file.SerializeToString()).services_by_name["TenantService"]
    check_rules()
    with pytest.raises(LookupError, match="no rule for \\['DropTenant'\\]"):
        check_rules([later])


async def test_a_bridge_of_one_tenant_reaches_no_other(guarded: Guarded) -> None:
    async with guarded.caller("bridge-of-acme") as acme, guarded.caller("bridge") as both:
        own = (await acme.tasks.CreateTask(new_task())).task
        other = (await both.tasks.CreateTask(new_task(tenant_id="globex"))).task
        assert await is_denied(acme.tasks.CreateTask(new_task(tenant_id="globex")))
        batch = tasks_pb2.CreateTasksRequest(items=[new_task(), new_task(tenant_id="globex")])
        assert await is_denied(acme.tasks.CreateTasks(batch))
        assert await is_denied(acme.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="globex", task_id=other.task_id)))
        assert await is_denied(acme.tasks.CancelTask(cancel(other.task_id, tenant_id="globex")))
        watched = [
            tasks_pb2.WatchedTask(number=1, tenant_id="globex", task_id=other.task_id),
            tasks_pb2.WatchedTask(number=2, tenant_id="acme", task_id=own.task_id),
        ]
        watch = aiter(acme.tasks.WatchTasks(iter([tasks_pb2.WatchTasksRequest(add=watched)])))
        told = [*(await anext(watch)).items, *(await anext(watch)).items]
        assert (told[0].number, refusal_in(told[0].refused).reason) == (1, "PERMISSION_DENIED")
        assert (told[1].number, told[1].task.task_id) == (2, own.task_id), "one that is refused does not end the others"
        assert (
            await acme.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="acme", task_id=own.task_id))
        ).task.task_id == own.task_id


@pytest.mark.row("G4")
async def test_a_worker_is_given_the_work_of_its_tenants_and_workflows_alone(guarded: Guarded) -> None:
    async with guarded.caller("bridge") as bridge, guarded.caller("reports") as reports:
        for tenant_id in ("acme", "globex", "initech"):
            await bridge.tasks.CreateTask(new_task(tenant_id=tenant_id))
        leased: list[str] = []
        while found := (await reports.leases.LeaseTasks(claim(worker_id="reports-1", wait_ms=500))).tasks:
            leased += [task.lease.tenant_id for task in found]
        assert sorted(leased) == ["acme", "globex"]
        assert await is_denied(reports.leases.LeaseTasks(claim(worker_id="reports-1", tenant_ids=["initech"])))
        assert await is_denied(reports.leases.LeaseTasks(claim(worker_id="reports-1", workflow="mail")))


@pytest.mark.row("G2", "G5")
async def test_a_worker_cannot_act_as_another(guarded: Guarded) -> None:
    async with guarded.caller("bridge") as bridge, guarded.caller("reports") as reports, guarded.caller("mails") as mails:
        await bridge.tasks.CreateTask(new_task())
        [task] = (await reports.leases.LeaseTasks(claim(worker_id="reports-1"))).tasks
        for worker_id in ("mails-1", "report", "reports1", ""):
            assert await is_denied(reports.leases.LeaseTasks(claim(worker_id=worker_id)))
        # The lease is no secret that opens doors by itself: who holds the certificate of another cannot use it.
        assert await is_denied(mails.leases.HeartbeatTask(heartbeat(task.lease)))
        assert await is_denied(mails.leases.AppendCheckpoint(checkpoint(task.lease)))
        assert await is_denied(mails.leases.LoadInput(leases_pb2.LoadInputRequest(lease=task.lease)))
        assert await is_denied(mails.leases.CompleteTask(complete(task.lease)))
        batch = leases_pb2.CompleteTasksRequest(items=[complete(task.lease)])
        assert await is_denied(mails.leases.CompleteTasks(batch))
        await reports.leases.CompleteTask(complete(task.lease))


async def test_an_operator_decides_and_an_auditor_reads(guarded: Guarded) -> None:
    policy = tenants_pb2.SetTenantPolicyRequest(
        tenant_id="acme", policy=tenants_pb2.TenantPolicy(max_outstanding=5, max_leased=5, retention_ms=86_400_000)
    )
    async with guarded.caller("operator") as operator, guarded.caller("auditor") as auditor:
        await operator.tenants.SetTenantPolicy(policy)
        assert await is_denied(auditor.tenants.SetTenantPolicy(policy))
        assert (await auditor.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id="acme"))).tenant.policy.max_leased == 5
        await auditor.retention.ListTombstones(retention_pb2.ListTombstonesRequest(tenant_id="acme"))
        assert await is_denied(auditor.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="acme", task_id="x")))


async def test_who_is_not_in_the_policy_is_nobody(guarded: Guarded) -> None:
    async with guarded.caller("stranger") as stubs:
        refused = await refusal_of(stubs.tasks.CreateTask(new_task()))
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")


async def test_a_certificate_that_names_two_callers_is_none(guarded: Guarded) -> None:
    names = [x509.UniformResourceIdentifier(f"{DOMAIN}/{name}") for name in ("bridge", "operator")]
    guarded.authority.issue(guarded.folder, "both", names)
    async with guarded.caller("both") as stubs:
        assert (await refusal_of(stubs.tasks.CreateTask(new_task()))).reason == "UNAUTHENTICATED"


@pytest.mark.row("G2")
async def test_a_name_of_another_kind_that_reads_like_a_callers_is_none(guarded: Guarded) -> None:
    name = f"{DOMAIN}/bridge"
    disguises = {"mail": x509.RFC822Name(f"{name}"), "host": x509.DNSName(name)}
    for kind, disguise in disguises.items():
        guarded.authority.issue(guarded.folder, kind, [disguise])
        async with guarded.caller(kind) as stubs:
            assert (await refusal_of(stubs.tasks.CreateTask(new_task()))).reason == "UNAUTHENTICATED"


@pytest.mark.row("G1")
async def test_without_a_certificate_of_its_authority_nobody_connects(guarded: Guarded) -> None:
    elsewhere = guarded.folder / "elsewhere"
    elsewhere.mkdir()
    make_authority(elsewhere).issue(elsewhere, "bridge", [x509.UniformResourceIdentifier(f"{DOMAIN}/bridge")])
    guarded.authority.issue(guarded.folder, "expired", [x509.UniformResourceIdentifier(f"{DOMAIN}/bridge")], days=-1)
    foreign = guarded.tls("bridge", certificate=elsewhere / "bridge.crt", key=elsewhere / "bridge.key")
    ca = (guarded.folder / "ca.crt").read_bytes()
    for channel in (
        open_channel(guarded.address),
        grpc.aio.secure_channel(guarded.address, grpc.ssl_channel_credentials(root_certificates=ca)),
        open_channel(guarded.address, foreign),
        open_channel(guarded.address, guarded.tls("expired")),
    ):
        async with TaskStore(channel) as store:
            with pytest.raises(StoreError) as raised:
                await store.create_task(new_task(), timeout_seconds=1)
            assert raised.value.is_transient  # it never came to a call


@pytest.mark.row("G12")
async def test_a_caller_with_all_its_calls_under_way_is_told_to_wait(guarded: Guarded) -> None:
    async with guarded.caller("narrow") as stubs, guarded.caller("bridge") as other:
        task = (await other.tasks.CreateTask(new_task())).task
        watched = [tasks_pb2.WatchedTask(tenant_id="acme", task_id=task.task_id)]
        watch = stubs.tasks.WatchTasks(iter([tasks_pb2.WatchTasksRequest(add=watched)]))
        await anext(aiter(watch))
        assert (await refusal_of(stubs.tasks.CreateTask(new_task()))).reason == "OVERLOADED"
        watch.cancel()
        async with asyncio.timeout(60):
            while (await _outcome(stubs)) == "OVERLOADED":
                await asyncio.sleep(0.01)


async def _outcome(stubs: Stubs) -> str:
    try:
        await stubs.tasks.CreateTask(new_task())
    except grpc.aio.AioRpcError as error:
        return "OVERLOADED" if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else error.code().name
    return "OK"


@pytest.mark.row("G9")
async def test_the_api_is_not_read_from_the_store_unless_it_is_asked_for(guarded: Guarded) -> None:
    async with open_channel(guarded.address, guarded.tls("operator")) as channel:
        read: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in read(iter([b""])):
                pass
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        unknown: Any = channel.unary_unary("/taskstore.v1.TaskService/DropTasks")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await unknown(b"")
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
