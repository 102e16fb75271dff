"""What is installed is pinned, listed, may be used, and is looked up for known faults. Security checklist S2."""

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.security import supply_chain
from tests.security.supply_chain import ROOT, faults, is_allowed, licence_of, read_packages, write_sbom

LOCK = tomllib.loads((ROOT / "uv.lock").read_text())["package"]


class Advisories(ThreadingHTTPServer):
    """A service of known faults, as OSV is one, that knows at most one faulty package."""

    def __init__(self, faulty: str) -> None:
        self.faulty = faulty
        super().__init__(("127.0.0.1", 0), Advice)


class Advice(BaseHTTPRequestHandler):
    server: Advisories

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        known = {"vulns": [{"id": "TEST-1", "modified": "2026-11-29T00:00:00Z"}]}
        self._answer({"results": [known if one["package"]["name"] == self.server.faulty else {} for one in asked]})

    def do_GET(self) -> None:
        package = {"ecosystem": "PyPI", "name": self.server.faulty}
        affected = [{"package": package, "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}]
        self._answer({"id": "TEST-1", "modified": "2026-11-29T00:00:00Z", "summary": "a fault", "affected": affected})

    def log_message(self, *args: object) -> None:
        """Says nothing."""

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(params=["", "grpcio"])
def advisories(request: pytest.FixtureRequest) -> Iterator[Advisories]:
    server = Advisories(request.param)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def audit(service: str) -> subprocess.CompletedProcess[str]:
    """`make audit`, asking this service."""
    command = ["make", "-s", "audit", f"ADVISORIES={service}"]
    environment = {**os.environ, "UV_HTTP_RETRIES": "0", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.row("S2")
def test_the_audit_fails_for_a_package_with_a_known_fault_and_for_no_other(advisories: Advisories) -> None:
    done = audit(f"http://127.0.0.1:{advisories.server_port}")
    assert (done.returncode == 0) == (not advisories.faulty), done.stdout + done.stderr
    assert ("TEST-1" in done.stdout + done.stderr) == bool(advisories.faulty)


@pytest.mark.row("S2")
def test_an_audit_that_can_ask_nobody_fails_and_says_so() -> None:
    done = audit("http://127.0.0.1:1")
    assert done.returncode != 0
    assert "the known faults could not be read" in done.stderr


@pytest.mark.row("S2")
def test_every_package_of_the_lock_file_is_a_wheel_and_pinned_by_hash() -> None:
    for package in LOCK:
        if package["name"] == "tenure":
            continue
        files = [*package["wheels"], *([package["sdist"]] if "sdist" in package else [])]
        assert package["wheels"], package["name"]
        assert all(file["hash"].startswith("sha256:") for file in files), package["name"]


@pytest.mark.row("S2")
def test_what_is_installed_may_be_used_and_stands_in_the_list(tmp_path: Path) -> None:
    sbom = read_packages()
    licences = {one["name"]: licence_of(one["name"]) for one in sbom["components"]}
    assert {"grpcio", "asyncpg", "aiohttp", "joserfc"} <= licences.keys()
    assert "pytest" not in licences
    assert faults(licences) == []
    write_sbom(sbom, licences, tmp_path / "dist" / "sbom.json")
    written = json.loads((tmp_path / "dist" / "sbom.json").read_text())
    assert (written["bomFormat"], written["specVersion"]) == ("CycloneDX", "1.5")
    for component in written["components"]:
        assert component["licenses"]
        assert component["purl"].startswith("pkg:pypi/")
        assert all(one["hashes"] for one in component["externalReferences"])


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT)", False),
        ("AGPL-3.0-only", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_by_name_and_by_choice(licence: str, allowed: bool) -> None:
    assert is_allowed(licence) is allowed


def test_a_package_whose_licence_may_not_be_one_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supply_chain, "licence_of", lambda name: "AGPL-3.0-only" if name == "grpcio" else "MIT")
    assert supply_chain.main([]) == 1
    assert capsys.readouterr().err == "not allowed: grpcio: AGPL-3.0-only\n"


def test_the_uv_that_installs_is_the_one_of_the_lock_file() -> None:
    pinned = next(package["version"] for package in LOCK if package["name"] == "uv")
    assert f"UV_VERSION := {pinned}\n" in (ROOT / "Makefile").read_text()
    assert Path(sys.executable).with_name("uv").exists()
