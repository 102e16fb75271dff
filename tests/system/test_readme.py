"""What the README says is what happens: its code, its route, its commands."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mcp_bridge.client import TaskClient
from store_service.embedded import EmbeddedPostgres
from tests.pair import ROOT, Process, free_ports

README = (ROOT / "README.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def block(language: str, mark: str) -> str:
    return next(text for kind, text in BLOCKS if kind == language and mark in text)


def commands(mark: str) -> tuple[dict[str, str], list[list[str]]]:
    """The variables that a block of shell exports, and its commands but for installing."""
    lines = [line.split("#")[0].split() for line in block("sh", mark).splitlines()]
    exports = dict(line[1].split("=", 1) for line in lines if line[:1] == ["export"])
    return exports, [line for line in lines if line and line[0] not in ("export", "pip")]


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", README, re.MULTILINE))
    assert {"demo", "test", "up", "check", "conformance", "help"} <= named <= targets


def test_every_link_leads_somewhere() -> None:
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_scripts_are_those_that_are_named() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {
        "tenure": "mcp_bridge.scripts:client",
        "tenure-store": "store_service.scripts:store",
        "tenure-bridge": "mcp_bridge.scripts:bridge",
    }


def test_the_translation_has_every_block_every_link_and_every_name() -> None:
    """So that what a reader copies from it is what the other tests run."""
    translated = (ROOT / "README.zh-CN.md").read_text()
    assert re.findall(r"```.*?```", translated, re.DOTALL) == re.findall(r"```.*?```", README, re.DOTALL)
    assert re.findall(r"^#+ ", translated, re.MULTILINE) == re.findall(r"^#+ ", README, re.MULTILINE)
    assert [row.count(" | ") for row in rows(translated)] == [row.count(" | ") for row in rows(README)]
    for ours, theirs in zip(rows(README), rows(translated), strict=True):
        assert parts(theirs, r"`([^`]+)`") == parts(ours, r"`([^`]+)`"), ours
    assert parts(translated, r"\]\(([^)]+)\)") == parts(README, r"\]\(([^)]+)\)") - {"README.zh-CN.md"}
    assert parts(translated, r"`([^`]+)`") == parts(README, r"`([^`]+)`")


def rows(text: str) -> list[str]:
    """The rows of all tables."""
    return re.findall(r"^\|.*$", text, re.MULTILINE)


def parts(text: str, pattern: str) -> set[str]:
    """What matches outside of blocks, with lines joined."""
    return set(re.findall(pattern, re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\n", " ")))


async def test_store_bridge_and_worker_run_apart_as_written(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    store_port, store_admin, bridge_port, bridge_admin = free_ports(4)
    (tmp_path / "hello.py").write_text(block("python", "# hello.py").replace("127.0.0.1:7233", f"127.0.0.1:{store_port}"))
    (tmp_path / "routes.yaml").write_text(block("yaml", "# routes.yaml"))
    base = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    store_exports, (migrate, serve_store) = commands("tenure-store serve")
    bridge_exports, (serve_bridge,) = commands("tenure-bridge serve")
    _, (work,) = commands("python hello.py")
    assert store_exports.keys() == {"TENURE_STORE_DSN"}
    store_environment = {
        **base, "TENURE_STORE_DSN": postgres.dsn,
        "TENURE_STORE_PORT": str(store_port), "TENURE_STORE_ADMIN_PORT": str(store_admin),
    }  # fmt: skip
    bridge_environment = {
        **base, **bridge_exports, "TENURE_BRIDGE_STORE": f"127.0.0.1:{store_port}",
        "TENURE_BRIDGE_PORT": str(bridge_port), "TENURE_BRIDGE_ADMIN_PORT": str(bridge_admin),
    }  # fmt: skip

    def start(command: list[str], environment: dict[str, str]) -> Process:
        program = Path(sys.executable).with_name(command[0])
        return Process(
            command[0],
            command[1:],
            program=program,
            environment=environment,
            folder=tmp_path,
            log=tmp_path / f"{command[0]}.log",
        )

    subprocess.run([Path(sys.executable).with_name(migrate[0]), *migrate[1:]], env=store_environment, check=True, timeout=60)
    running = [start(serve_store, store_environment)]
    try:
        running[0].wait_ready(store_admin)
        running.append(start(serve_bridge, bridge_environment))
        running[1].wait_ready(bridge_admin)
        running.append(start(work, base))
        async with TaskClient(f"http://127.0.0.1:{bridge_port}/mcp", capabilities={}) as client:
            assert (await client.call_tool("greet_all", {"names": ["Ann", "Bo"]})).text == "Hello, Ann!\nHello, Bo!"
    finally:
        codes = [process.stop() for process in reversed(running)]
    assert codes == [0, 0, 0]


@pytest.mark.parametrize("module", ["store_service", "mcp_bridge"])
def test_modules_run_as_the_commands_do(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert "serve" in done.stdout
