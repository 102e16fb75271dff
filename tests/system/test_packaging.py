"""The wheel of a clean clone has all that it needs and runs where the clone is not."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from store_service.embedded import EmbeddedPostgres
from tests.pair import ROOT, Process, free_ports

INSTALL_SECONDS = 300
SCRIPTS = {"tenure-store": "store", "tenure-bridge": "bridge", "tenure": "client"}


def run(*command: str | Path, folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a clone of what is committed."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    run("git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(clone), folder=out)
    run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--wheel", "--out-dir", str(out), folder=clone)
    return next(out.glob("*.whl"))


def test_the_wheel_has_stubs_sql_schema_and_type_markers(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "taskstore/v1/tasks_pb2.py",
        "taskstore/v1/tasks_pb2.pyi",
        "taskstore/v1/leases_pb2_grpc.py",
        "taskstore/py.typed",
        "store_service/py.typed",
        "store_service/db/tasks.sql",
        "store_service/db/migrations/0001_pre_tenants.sql",
        "mcp_bridge/py.typed",
        "mcp_bridge/access/routes.schema.json",
    } <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"store_service", "mcp_bridge", "taskstore"}


def test_the_installed_wheel_migrates_serves_and_checks_routes(wheel: Path, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    uv, venv = Path(sys.executable).with_name("uv"), tmp_path / "venv"
    run(uv, "venv", "--quiet", "--python", sys.executable, str(venv), folder=tmp_path)
    target = venv / "bin"
    run(
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        str(target / "python"),
        f"tenure[store,bridge] @ {wheel.as_uri()}",
        folder=tmp_path,
    )
    where = run(target / "python", "-c", "import store_service; print(store_service.__file__)", folder=tmp_path)
    assert where.startswith(str(venv))
    port, admin_port = free_ports(2)
    environment = {
        "PATH": str(target),
        "TENURE_STORE_DSN": postgres.dsn,
        "TENURE_STORE_PORT": str(port),
        "TENURE_STORE_ADMIN_PORT": str(admin_port),
    }
    assert "the schema is current" in run(target / "tenure-store", "migrate", folder=tmp_path, environment=environment)
    routes = ROOT / "tests" / "examples" / "durable_report" / "routes.yaml"
    run(target / "tenure-bridge", "check-config", str(routes), folder=tmp_path, environment={"PATH": str(target)})
    store = Process(
        "store",
        ["serve"],
        program=target / "tenure-store",
        environment=environment,
        log=tmp_path / "store.log",
        folder=tmp_path,
    )
    try:
        store.wait_ready(admin_port)
    finally:
        assert store.stop() == 0


def test_the_base_install_is_enough_for_a_worker_and_scripts_tell_what_they_need(wheel: Path, tmp_path: Path) -> None:
    uv, venv = Path(sys.executable).with_name("uv"), tmp_path / "venv"
    run(uv, "venv", "--quiet", "--python", sys.executable, str(venv), folder=tmp_path)
    python = venv / "bin" / "python"
    run(uv, "pip", "install", "--quiet", "--python", str(python), str(wheel), folder=tmp_path)
    run(python, "-c", "from store_service.client import Worker, TaskStore", folder=tmp_path)
    for script, extra in SCRIPTS.items():
        done = subprocess.run([python.with_name(script), "--help"], capture_output=True, text=True, timeout=60, check=False)
        assert re.fullmatch(rf"{script}: \w+ is not installed; run: pip install 'tenure\[{extra}\]'\n", done.stderr)
        assert done.returncode == 2
