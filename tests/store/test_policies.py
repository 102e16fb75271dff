"""What a tenant's policy holds back: the size of inputs and the rate of creations."""

import pytest
from taskstore.v1 import tasks_pb2, tenants_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import DAY_MS, TENANT, create, new_task, refusal_in, refusal_of


async def set_policy(store: Stubs, **policy: int) -> tenants_pb2.Tenant:
    fields = {"max_outstanding": 100, "max_leased": 10, "retention_ms": DAY_MS, **policy}
    request = tenants_pb2.SetTenantPolicyRequest(tenant_id=TENANT, policy=tenants_pb2.TenantPolicy(**fields))
    return (await store.tenants.SetTenantPolicy(request)).tenant


async def test_an_input_over_the_tenants_bound_is_refused_and_nothing_is_written(store: Stubs) -> None:
    tenant = await set_policy(store, max_input_bytes=8)
    assert tenant.policy.max_input_bytes == 8
    await create(store, data=b'"123456"')
    refused = await refusal_of(store.tasks.CreateTask(new_task(data=b'"1234567"')))
    assert refused.reason == "INPUT_TOO_LARGE"
    assert (await store.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=TENANT))).tenant.outstanding == 1


@pytest.mark.must("L-16")
async def test_creations_over_the_rate_are_refused_until_time_has_passed(store: Stubs, clock: Clock) -> None:
    await set_policy(store, max_creates_per_second=3)
    request = tasks_pb2.CreateTasksRequest(items=[new_task() for _ in range(5)])
    items = (await store.tasks.CreateTasks(request)).items
    assert [item.WhichOneof("outcome") for item in items] == ["created"] * 3 + ["refused"] * 2
    refused = refusal_in(items[3].refused)
    assert (refused.reason, refused.retry_after_ms) == ("CREATE_RATE", 1_000)
    again = (await store.tasks.CreateTask(request.items[0])).replayed
    assert again, "a repetition is no creation"
    await clock.advance(seconds=60)
    items = (await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=[new_task() for _ in range(5)]))).items
    assert [item.WhichOneof("outcome") for item in items] == ["created"] * 3 + ["refused"] * 2


async def test_a_fork_is_a_creation_and_a_refused_one_is_none(store: Stubs, clock: Clock) -> None:
    task = await create(store)
    await set_policy(store, max_creates_per_second=1)
    one, two = (
        tasks_pb2.ForkTaskRequest(tenant_id=TENANT, request_id=name, source_task_id=task.task_id) for name in ("one", "two")
    )
    await store.tasks.ForkTask(one)
    assert (await refusal_of(store.tasks.ForkTask(two))).reason == "CREATE_RATE"
    assert (await refusal_of(store.tasks.CreateTask(new_task()))).reason == "CREATE_RATE"
    assert (await store.tasks.ForkTask(one)).replayed
    await clock.advance(seconds=60)
    assert not (await store.tasks.ForkTask(two)).replayed
    assert (await refusal_of(store.tasks.CreateTask(new_task()))).reason == "CREATE_RATE"


async def test_a_tenant_without_a_rate_creates_as_many_as_come(store: Stubs) -> None:
    items = (await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=[new_task() for _ in range(200)]))).items
    assert all(item.HasField("created") for item in items)


async def test_a_clock_that_stepped_back_holds_back_no_creations(store: Stubs, clock: Clock) -> None:
    await set_policy(store, max_creates_per_second=2)
    await create(store)
    await clock.advance(seconds=-3_600)
    await create(store)
    assert (await refusal_of(store.tasks.CreateTask(new_task()))).reason == "CREATE_RATE"
    await clock.advance(seconds=1)
    await create(store)
