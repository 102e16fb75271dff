"""The operators' commands act by the name that their certificate has, and by no other."""

from tests.operator.conftest import Operator
from tests.security.store.conftest import Guarded
from tests.store.builders import new_task


async def test_a_command_is_done_in_the_name_of_its_certificate_and_only_with_permission(guarded: Guarded) -> None:
    async with guarded.caller("bridge") as bridge:
        task_id = (await bridge.tasks.CreateTask(new_task(tenant_id="acme"))).task.task_id

    def operator(name: str) -> Operator:
        tls = guarded.tls(name)
        return Operator(
            {
                "TENURE_OPERATOR_STORE": guarded.address,
                "TENURE_OPERATOR_CA": str(tls.ca),
                "TENURE_OPERATOR_CERTIFICATE": str(tls.certificate),
                "TENURE_OPERATOR_KEY": str(tls.key),
            }
        )

    place = ("holds", "place", "--tenant", "acme", task_id, "--reason", "case 17")
    helper = operator("helper")
    assert await helper.does(*place) == 4
    assert "PERMISSION_DENIED" in helper.trouble
    allowed = operator("operator")
    assert await allowed.does(*place, "--principal", "somebody else") == 0
    assert allowed.row["placed_by"].endswith("/operator")
    assert await allowed.does("holds", "list", "--tenant", "acme") == 0
    assert len(allowed.rows) == 1
