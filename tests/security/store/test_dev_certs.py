"""The trial authority: its store, bridge and worker speak to each other as its command says."""

from pathlib import Path
from typing import Any

import pytest

from mcp_bridge.client import TaskClient
from store_service.__main__ import main
from store_service.client import Context, Tls, Worker
from store_service.config import read_config
from store_service.server import Store
from tests.conftest import bridge_on, started

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: hello, workflow: hello, task: optional, input_schema: {type: object}}
"""


async def test_a_call_goes_through_the_whole_pair_encrypted(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev-certs", str(tmp_path / "certs")]) == 0
    printed = [line.removeprefix("export ").split("=") for line in capsys.readouterr().out.splitlines()]
    fixed = {"TENURE_STORE_DSN": dsn, "TENURE_STORE_PORT": "0", "TENURE_STORE_ADMIN_PORT": "0"}
    async with started(Store(read_config({**fixed, **dict(printed), "TENURE_STORE_ALLOW_TEST_CLOCK": "true"}))) as store:
        certs, address = tmp_path / "certs", f"localhost:{store.port}"
        (tmp_path / "routes.yaml").write_text(ROUTES)
        files = {"store_ca": "ca.crt", "store_certificate": "bridge.crt", "store_key": "bridge.key"}
        shown = {name: str(certs / file) for name, file in files.items()}
        async with started(bridge_on(tmp_path / "routes.yaml", store=address, **shown)) as bridge:
            tls = Tls(ca=certs / "ca.crt", certificate=certs / "worker.crt", key=certs / "worker.key")
            worker = Worker(address, tls=tls, name="worker")

            @worker.workflow("hello")
            async def hello(ctx: Context, args: dict[str, Any]) -> str:
                return "hello"

            async with worker, TaskClient(f"http://127.0.0.1:{bridge.port}/mcp") as client:
                result = await client.call_tool("hello", {})
    assert result.text == "hello"


def test_the_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    assert main(["dev-certs", str(tmp_path)]) == 0
    keys = list(tmp_path.glob("*.key"))
    assert len(keys) == 7
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}
