"""Makes a worker of each language from its source and the stubs, and says how it is run."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.node_tools.installation import default_folder, install, run
from tests.polyglot.stubs import ToolError

HERE: Final = Path(__file__).parent
JARS: Final = Path("/usr/share/java")  # where Debian's packages put them
GO_SOURCES: Final = "/usr/share/gocode"
CLASS_PATH: Final = (
    "grpc-api", "grpc-core", "grpc-context", "grpc-netty", "grpc-protobuf", "grpc-protobuf-lite", "grpc-stub", "protobuf",
    "guava", "geronimo-annotation-1.3-spec", "perfmark-api", "netty-buffer", "netty-codec", "netty-codec-http",
    "netty-codec-http2", "netty-codec-socks",
    "netty-common", "netty-handler", "netty-handler-proxy", "netty-resolver", "netty-transport",
)  # fmt: skip
BUILD_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Built:
    """A worker that can be run: `PROGRAM ARGUMENTS HOST:PORT NAME`."""

    program: Path
    arguments: Sequence[str] = ()


async def build_typescript(stubs: Path, folder: Path) -> Built:
    """Node runs the source as it is; it finds stubs and packages beside it."""
    installation = await install(default_folder())
    shutil.copy(HERE / "typescript" / "worker.ts", folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "stubs").symlink_to(stubs / "typescript")
    (folder / "node_modules").symlink_to(installation.packages)
    # Links stay what they are, so that the stubs find the packages beside them too.
    links = ("--preserve-symlinks", "--preserve-symlinks-main", "--disable-warning=ExperimentalWarning")
    return Built(installation.node, [*links, str(folder / "worker.ts")])


async def build_go(stubs: Path, folder: Path) -> Built:
    """One program, from Debian's packages of Go."""
    (folder / "path").mkdir()
    (folder / "path" / "src").symlink_to(stubs / "go")
    environment = {"GO111MODULE": "off", "GOFLAGS": "-p=2", "GOPATH": f"{folder / 'path'}:{GO_SOURCES}"}
    await _build(("go", "build", "-o", str(folder / "worker"), str(HERE / "go" / "worker.go")), folder, environment)
    return Built(folder / "worker")


async def build_java(stubs: Path, folder: Path) -> Built:
    """Classes, against Debian's packages of grpc."""
    classes = folder / "classes"
    jars = [JARS / f"{name}.jar" for name in CLASS_PATH]
    if missing := [jar.name for jar in jars if not jar.is_file()]:
        raise ToolError(f"not in {JARS}: {', '.join(missing)}; `make stubs-tools` installs them on Debian")
    path = os.pathsep.join(map(str, (classes, *jars)))
    sources = folder / "sources"
    sources.write_text("\n".join(map(str, [*sorted((stubs / "java").rglob("*.java")), HERE / "java" / "Worker.java"])))
    await _build(("javac", "-nowarn", "-d", str(classes), "-cp", path, f"@{sources}"), folder, {})
    return Built(_program("java"), ["-cp", path, "Worker"])


async def _build(command: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
    _program(command[0])
    status, output = await run(command, environment={**os.environ, **environment}, timeout_seconds=BUILD_SECONDS, folder=folder)
    if status != 0:
        raise ToolError(f"{command[0]} failed:\n{output}")


def _program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise ToolError(f"not found: {name}; `make stubs-tools` installs it on Debian")
    return Path(found)
