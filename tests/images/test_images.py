"""The images as containers: they migrate, serve, work and end as they should, without root and without writing anything.

`make image-test`. It needs root, buildah and debootstrap, and builds a base of its own, so that no registry is asked.
"""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_bridge.client import TaskClient
from store_service.embedded import EmbeddedPostgres
from tests.images import build as build_images
from tests.images.base import BUILDAH, buildah
from tests.images.build import EXTRAS, ROOT, VERSION, build_local
from tests.pair import free_ports

START_SECONDS = 60
USER = 65532
LARGEST_BYTES = 180 * 2**20
ROUTES = ROOT / "k8s" / "overlays" / "dev" / "routes.yaml"

pytestmark = pytest.mark.timeout(1_800)  # the first of them builds the images


@pytest.fixture(scope="module")
def images() -> None:
    """Store, bridge and worker, on a base of this machine's own."""
    for program in ("buildah", "debootstrap"):
        assert shutil.which(program), f"{program} is not installed; `make image-tools` installs it on Debian"
    build_local()


class Container:
    """One container with the host's network, as user 65532."""

    def __init__(self, image: str, *arguments: str, environment: Mapping[str, str], volumes: Mapping[Path, str]) -> None:
        self.name = buildah("from", f"localhost/tenure-{image}:{VERSION}")
        options = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
        options += [word for path, place in volumes.items() for word in ("--volume", f"{path}:{place}:ro")]
        module = {"store": ["-m", "store_service"], "bridge": ["-m", "mcp_bridge"], "worker": ["/app/hello.py"]}[image]
        self._process = subprocess.Popen(
            ["buildah", "run", "--user", "65532:65532", *options, self.name, "--", "/usr/bin/python3", *module, *arguments],
            env=BUILDAH,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait(self) -> int:
        """Until it has ended; its exit code."""
        return self._process.wait(START_SECONDS)

    def wait_ready(self, port: int) -> None:
        """Until its probe says so."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        raise AssertionError(f"{self.name} was not ready")

    def stop(self) -> None:
        """SIGTERM to all of it, as a node does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(START_SECONDS)
        finally:
            if self._process.stderr is not None:
                print(self._process.stderr.read()[-4_000:], file=sys.stderr)
                self._process.stderr.close()
            buildah("rm", self.name)


def test_the_pair_and_a_worker_run_from_their_images(images: None, tmp_path: Path) -> None:
    store, store_admin, bridge, bridge_admin, worker_admin = free_ports(5)
    running: list[Container] = []
    with EmbeddedPostgres(tmp_path / "postgres", durable=False) as postgres:
        database = {
            "TENURE_STORE_DSN": postgres.dsn,
            "TENURE_STORE_PORT": str(store),
            "TENURE_STORE_ADMIN_PORT": str(store_admin),
        }
        serve = {
            "TENURE_BRIDGE_PORT": str(bridge),
            "TENURE_BRIDGE_ADMIN_PORT": str(bridge_admin),
            "TENURE_BRIDGE_STORE": f"127.0.0.1:{store}",
            "TENURE_BRIDGE_ROUTES": "/etc/tenure/routes.yaml",
        }
        work = {"STORE": f"127.0.0.1:{store}", "ADMIN_PORT": str(worker_admin)}
        try:
            migrate = Container("store", "migrate", environment=database, volumes={})
            running.append(migrate)
            assert migrate.wait() == 0
            for image, arguments, environment, volumes, port in (
                ("store", ["serve"], database, {}, store_admin),
                ("bridge", ["serve"], serve, {ROUTES: "/etc/tenure/routes.yaml"}, bridge_admin),
                ("worker", [], work, {}, worker_admin),
            ):
                running.append(Container(image, *arguments, environment=environment, volumes=volumes))
                running[-1].wait_ready(port)
            assert asyncio.run(call(f"http://127.0.0.1:{bridge}/mcp")) == "Hello, Ann!\nHello, Bob!"
        finally:
            for container in reversed(running):
                container.stop()


async def call(url: str) -> str:
    async with TaskClient(url) as client:
        return (await client.call_tool("greet_all", {"names": ["Ann", "Bob"]})).text


@pytest.mark.parametrize("image", EXTRAS)
def test_an_image_has_no_shell_no_root_and_nothing_that_its_user_may_write(images: None, image: str) -> None:
    container = buildah("from", f"localhost/tenure-{image}:{VERSION}")
    try:
        root = Path(buildah("mount", container))
        files = [path for path in root.rglob("*") if not path.is_symlink()]
        programs = {path.name for path in files if path.is_file() and path.stat().st_mode & stat.S_IXUSR}
        assert "python3.11" in programs
        assert programs & {"sh", "bash", "dash", "busybox", "apt", "dpkg", "perl", "pip", "su"} == set()
        writable = [path for path in files if path.stat().st_uid == USER or path.stat().st_mode & stat.S_IWOTH]
        assert [str(path.relative_to(root)) for path in writable] == ["tmp"]
        assert [path for path in files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
        assert buildah("inspect", "--format", "{{.OCIv1.Config.User}}", container) == f"{USER}:{USER}"
        size = sum(path.stat().st_size for path in files if path.is_file())
        print(f"{image}: {size / 2**20:.0f} MiB")
        assert size < LARGEST_BYTES
    finally:
        buildah("rm", container)


def test_the_first_builder_whose_engine_answers_builds_each_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (("docker", "exit 1"), ("podman", f'echo "$@" >> {tmp_path}/asked')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(build_images, "fill_context", lambda: tmp_path)
    names = build_images.build(builders=("docker", "podman", "buildah"))
    assert names == [f"localhost/tenure-{image}:{VERSION}" for image in EXTRAS]
    built = [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("build ")]
    assert [line.split()[-1] for line in built] == [str(tmp_path)] * len(names)
    for image, name, line in zip(EXTRAS, names, built, strict=True):
        assert f"--target {image} --tag {name}" in line
