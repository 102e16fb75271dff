"""What a policy file must name somebody for: deny by default, fail closed, and in one's own name. Contract, section 14."""

from collections.abc import Callable

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from taskstore.v1 import retention_pb2, tasks_pb2, tenants_pb2

from store_service import watched_file
from store_service.dev_certs import DOMAIN
from store_service.rpc.policy import Permission
from store_service.rpc.rules import PERMISSIONS, RULES
from tests.conftest import Stubs
from tests.descriptors import methods
from tests.model.operations import in_python
from tests.security.store.conftest import POLICY, Guarded
from tests.store.builders import Refused, new_task, refusal_of
from tests.store.retention import claim_cleanup, place_hold


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at whenever they are asked for."""
    monkeypatch.setattr(watched_file, "_LOOK_SECONDS", 0.0)


async def reason_of(store: Stubs, method: str, **fields: object) -> Refused:
    """How a method of governance is refused that is asked for nothing but this."""
    request = GetMessageClass(methods()[method].input_type)(**fields)
    return await refusal_of(getattr(store.governance, method)(request))


async def is_let_in(store: Stubs, method: str, **fields: object) -> bool:
    """Whether it is asked at all, whatever it says then."""
    request = GetMessageClass(methods()[method].input_type)(**fields)
    try:
        await getattr(store.governance, method)(request)
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.PERMISSION_DENIED
    return True


def for_tenant(method: str, tenant_id: str) -> dict[str, object]:
    """The fields by which a request of this method names a tenant."""
    about = methods()[method].input_type.fields_by_name
    return {"lease": {"tenant_id": tenant_id}} if "lease" in about else {"tenant_id": tenant_id}


def test_each_method_of_governance_that_decides_or_proves_has_a_permission_of_its_own() -> None:
    assert PERMISSIONS.keys() == RULES["GovernanceService"].keys() - {"ListHolds"}
    assert {method: str(one) for method, one in PERMISSIONS.items()} == {method: in_python(method) for method in PERMISSIONS}
    assert set(PERMISSIONS.values()) == set(Permission)


@pytest.mark.parametrize("method", PERMISSIONS)
@pytest.mark.row("G3")
async def test_an_operator_without_the_permission_is_refused(guarded: Guarded, method: str) -> None:
    async with guarded.caller("operator") as able, guarded.caller("helper") as helper:
        assert await is_let_in(able, method, **for_tenant(method, "acme"))
        assert (await reason_of(helper, method, **for_tenant(method, "acme"))).reason == "PERMISSION_DENIED"


@pytest.mark.row("G3")
async def test_a_permission_is_for_its_operation_and_its_tenants_alone(guarded: Guarded) -> None:
    async with guarded.caller("counsel") as counsel:
        assert await is_let_in(counsel, "PlaceHold", tenant_id="acme")
        assert (await reason_of(counsel, "PlaceHold", tenant_id="globex")).reason == "PERMISSION_DENIED"
        assert (await reason_of(counsel, "ReleaseHold", tenant_id="acme")).reason == "PERMISSION_DENIED"


def garbled(policy: str) -> str:
    return policy + "  - {identity: x}\n"


@pytest.mark.parametrize("change", [garbled, None])
async def test_while_the_policy_cannot_be_read_nobody_has_a_permission_and_all_else_goes_on(
    guarded: Guarded, change: Callable[[str], str] | None
) -> None:
    path = guarded.folder / "policy.yaml"
    async with guarded.caller("operator") as able, guarded.caller("helper") as helper, guarded.caller("bridge") as bridge:
        await bridge.tasks.CreateTask(new_task())
        if change is None:
            path.unlink()
        else:
            path.write_text(change(POLICY))
        for caller in (able, helper):
            refused = await reason_of(caller, "PlaceHold", tenant_id="acme")
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "POLICY_UNAVAILABLE")
        assert (await reason_of(bridge, "PlaceHold", tenant_id="acme")).reason == "PERMISSION_DENIED"
        await able.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id="acme"))
        await bridge.tasks.CreateTask(new_task())
        path.write_text(POLICY)
        assert await is_let_in(able, "PlaceHold", tenant_id="acme")
        assert (await reason_of(helper, "PlaceHold", tenant_id="acme")).reason == "PERMISSION_DENIED"


@pytest.mark.row("S7")
async def test_whoever_does_it_does_it_in_his_own_name(guarded: Guarded) -> None:
    name = f"{DOMAIN}/operator"
    async with guarded.caller("operator") as able, guarded.caller("bridge") as bridge:
        task_id = (await bridge.tasks.CreateTask(new_task())).task.task_id
        for principal in ("ann", f"{DOMAIN}/counsel"):
            refused = await refusal_of(able.governance.PlaceHold(place_hold(task_id, principal=principal)))
            assert refused.reason == "PERMISSION_DENIED"
            refused = await refusal_of(able.retention.ClaimCleanup(claim_cleanup(principal=principal)))
            assert refused.reason == "PERMISSION_DENIED"
        for principal in ("", name):
            assert (await able.governance.PlaceHold(place_hold(task_id, principal=principal))).hold.placed_by == name


async def test_a_cleanup_lease_is_of_no_use_to_another_operator(guarded: Guarded) -> None:
    async with guarded.caller("operator") as able, guarded.caller("helper") as helper, guarded.caller("bridge") as bridge:
        await bridge.tasks.CreateTask(new_task())
        lease = (await able.retention.ClaimCleanup(claim_cleanup(principal=""))).lease
        request = retention_pb2.RemoveTasksRequest(lease=lease)
        assert (await refusal_of(helper.retention.RemoveTasks(request))).reason == "LEASE_LOST"
        await able.retention.RemoveTasks(request)


async def test_an_operator_of_one_tenant_is_shown_its_own_alone(guarded: Guarded) -> None:
    (guarded.folder / "policy.yaml").write_text(
        POLICY + f"  - {{identity: {DOMAIN}/janitor, role: operator, tenants: [acme]}}\n"
    )
    async with guarded.caller("janitor") as janitor, guarded.caller("bridge") as bridge:
        for tenant_id in ("acme", "globex"):
            await bridge.tasks.CreateTask(new_task(tenant_id=tenant_id))
        whole = retention_pb2.ListCleanupTenantsRequest(page_size=1)
        assert (await janitor.retention.ListCleanupTenants(whole)).next_tenant_id == "acme"
        whole.after_tenant_id = "acme"
        assert not (await janitor.retention.ListCleanupTenants(whole)).next_tenant_id
        named = retention_pb2.ListCleanupTenantsRequest(tenant_ids=["globex"])
        assert (await refusal_of(janitor.retention.ListCleanupTenants(named))).reason == "PERMISSION_DENIED"
        assert (await refusal_of(janitor.retention.ClaimCleanup(claim_cleanup(tenant_id="globex", principal="")))).reason == (
            "PERMISSION_DENIED"
        )
        listed = tasks_pb2.ListTasksRequest(tenant_id="acme")
        assert len((await janitor.tasks.ListTasks(listed)).tasks) == 1
