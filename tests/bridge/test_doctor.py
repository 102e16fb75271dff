"""`tenure-bridge doctor` says what is wrong, and what to do."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from mcp_bridge.config import Config
from mcp_bridge.doctor import examine
from store_service.dev_certs import make_authority, make_dev_certs
from store_service.telemetry.findings import Verdict
from tests.conftest import Stubs
from tests.databases import Databases
from tests.pair import free_ports
from tests.security.authorization_server import Codes, authorization_server
from tests.store.builders import claim, create
from tests.store.moving import move

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: report, workflow: report, task: optional, input_schema: {type: object}}
      - {name: bill, workflow: bill, workflow_version: 2, task: optional, input_schema: {type: object}}
"""


@pytest.fixture
def config(tmp_path: Path, store: Stubs) -> Config:
    """A bridge in development mode, over the store."""
    (tmp_path / "routes.yaml").write_text(ROUTES)
    return Config(routes=str(tmp_path / "routes.yaml"), store=store.address)


@pytest.fixture
async def codes() -> AsyncIterator[Codes]:
    """An authorization server."""
    (port,) = free_ports(1)
    async with authorization_server(port) as running:
        yield running


async def told(config: Config) -> list[tuple[str, Verdict, str]]:
    """What was found, in order."""
    return [(one.subject, one.verdict, one.text) async for one in examine(config)]


async def test_tools_that_no_worker_runs_are_told(config: Config, store: Stubs) -> None:
    await store.leases.LeaseTasks(claim())
    await store.leases.LeaseTasks(claim(workflow="bill", version=1))
    found = await told(config)
    assert [(subject, verdict) for subject, verdict, _ in found] == [
        ("TENURE_BRIDGE_ROUTES", Verdict.WELL),
        ("callers", Verdict.DOUBTFUL),
        ("store", Verdict.WELL),
        ("tenant dev", Verdict.DOUBTFUL),
    ]
    assert found[-1][2] == "tool bill: no worker asked for bill version 2 during the last day"
    await store.leases.LeaseTasks(claim(workflow="bill", version=2))
    assert (await told(config))[-1] == ("tenant dev", Verdict.WELL, "workers ask for what its tools run")


async def test_a_store_that_is_away_and_routes_that_are_wrong_are_told(config: Config) -> None:
    Path(config.routes).write_text("version: 1\ntenants: {dev: {tools: [{name: report}]}}\n")
    (nowhere,) = free_ports(1)
    found = await told(replace(config, store=f"127.0.0.1:{nowhere}"))
    assert [(subject, verdict) for subject, verdict, _ in found if verdict is Verdict.WRONG] == [
        ("TENURE_BRIDGE_ROUTES", Verdict.WRONG),
        ("store", Verdict.WRONG),
    ]


async def test_each_tenant_is_looked_for_in_its_cell(config: Config, store: Stubs) -> None:
    (nowhere,) = free_ports(1)
    cells = f"cells: {{east: '{store.address}', west: '127.0.0.1:{nowhere}'}}\ntenants:\n"
    tenants = "  acme: {cell: east, tools: []}\n  beta: {cell: west, tools: []}\n"
    Path(config.routes).write_text(ROUTES.replace("tenants:\n", cells) + tenants)
    await store.leases.LeaseTasks(claim())
    await store.leases.LeaseTasks(claim(workflow="bill", version=2))
    assert [(subject, verdict) for subject, verdict, _ in (await told(config))[2:]] == [
        ("store", Verdict.WELL),  # the default cell
        ("tenant dev", Verdict.WELL),
        ("cell east", Verdict.WELL),
        ("tenant acme", Verdict.WELL),
        ("cell west", Verdict.WRONG),
    ]


async def test_a_tenant_that_moved_is_told_as_such(config: Config, store: Stubs, dsn: str, databases: Databases) -> None:
    await create(store, tenant_id="dev")
    there = await databases.take()
    await move(dsn, there, tenant_id="dev")
    assert (await told(config))[-1] == (
        "tenant dev", Verdict.WRONG, "it moves to another cell, or has moved, and is refused in this one",
    )  # fmt: skip
    await databases.give_back(there)


async def test_an_issuer_is_asked_for_its_keys_and_its_metadata(config: Config, codes: Codes, tmp_path: Path) -> None:
    file = tmp_path / "issuers.yaml"

    async def judged(issuer: str, jwks: str) -> list[Verdict]:
        file.write_text(yaml.safe_dump({"version": 1, "issuers": [{"issuer": issuer, "jwks": jwks, "tenant": "dev"}]}))
        found = await told(replace(config, issuers=str(file), public_url="http://127.0.0.1:8080"))
        return [verdict for subject, verdict, _ in found if subject == issuer]

    jwks = f"{codes.issuer}jwks"
    assert await judged(codes.issuer, jwks) == [Verdict.WELL, Verdict.WELL]
    assert await judged(codes.issuer, f"{codes.issuer}nothing") == [Verdict.WRONG, Verdict.WELL]
    assert await judged(codes.issuer.removesuffix("/"), jwks) == [Verdict.WELL, Verdict.WRONG]
    (nowhere,) = free_ports(1)
    assert await judged(f"http://127.0.0.1:{nowhere}", jwks) == [Verdict.WELL, Verdict.DOUBTFUL]


async def test_the_certificates_towards_the_store_are_looked_at(config: Config, tmp_path: Path) -> None:
    make_dev_certs(tmp_path)
    ca, certificate, key = (str(tmp_path / file) for file in ("ca.crt", "bridge.crt", "bridge.key"))
    secure = replace(config, store_ca=ca, store_certificate=certificate, store_key=key)

    async def judged() -> dict[str, Verdict]:
        found = {subject: verdict for subject, verdict, _ in await told(secure)}
        return {subject: verdict for subject, verdict in found.items() if subject.startswith("TENURE_BRIDGE_STORE")}

    assert await judged() == {"TENURE_BRIDGE_STORE_CA": Verdict.WELL, "TENURE_BRIDGE_STORE_CERTIFICATE": Verdict.WELL}
    make_authority(tmp_path).issue(tmp_path, "bridge", [x509.DNSName("bridge")], days=-1)
    assert (await judged())["TENURE_BRIDGE_STORE_CERTIFICATE"] is Verdict.WRONG
