"""Several issuers: each is believed for its own tenants alone, and a subject is one issuer's. Security checklist A16."""

from pathlib import Path

import pytest

from mcp_bridge.config import Config
from tests.bridge.client import Client
from tests.security.authority import Authority
from tests.security.conftest import Users

OTHER = "https://login.partner.example"


@pytest.fixture
def partner(tmp_path: Path) -> Authority:
    """The issuer of beta, whose tokens name no tenant, and which has other names for its claims."""
    folder = tmp_path / "partner"
    folder.mkdir()
    return Authority(folder, OTHER)


@pytest.fixture
def config(config: Config, authority: Authority, partner: Authority) -> Config:
    authority.issuers.write_text(
        "version: 1\nissuers:\n"
        f"  - {{issuer: '{authority.issuer}', jwks: jwks.json, tenants: [acme]}}\n"
        f"  - {{issuer: '{OTHER}', jwks: partner/jwks.json, tenant: beta, scopes_claim: scp, groups_claim: 'https://p/roles'}}\n"
    )
    return config


async def tools_of(client: Client) -> list[str] | int:
    answer = await client.ask("tools/list")
    return answer.status if answer.status != 200 else [tool["name"] for tool in answer.result["tools"]]


@pytest.mark.row("A16", "A6")
async def test_an_issuer_speaks_for_its_own_tenants_alone(users: Users, partner: Authority) -> None:
    assert await tools_of(users.user(tenant="acme", scope="reports:write")) == ["report", "publish", "travel"]
    assert await tools_of(users.user(tenant="beta")) == 401
    assert await tools_of(users.bearing(partner.token(tenant="acme"))) == ["report"]  # it is beta's, whatever it says
    assert await tools_of(users.bearing(partner.token(tenant=None, scp=["reports:write"]))) == ["report"]
    assert await tools_of(users.bearing(partner.token(iss=users.authority.issuer, tenant="acme"))) == 401  # signed by another
    described = await users.bearing(None).send(
        b"", {}, verb="GET", url=f"http://127.0.0.1:{users.bridge.port}/.well-known/oauth-protected-resource"
    )
    assert described.json["authorization_servers"] == [users.authority.issuer, OTHER]


@pytest.mark.row("A16", "T4")
async def test_one_name_of_two_issuers_is_two_people(config: Config, users: Users, partner: Authority) -> None:
    file = Path(config.issuers)
    assert "beta" in file.read_text()
    task_id = (await users.bearing(partner.token(sub="ann")).call("report", tasks=True)).result["taskId"]
    assert (await users.bearing(partner.token(sub="ann")).task("get", task_id)).status == 200
    assert (await users.user("ann", tenant="acme").task("get", task_id)).status == 400
