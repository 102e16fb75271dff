"""Runs buf on `proto/`: `python -m tests.node_tools.buf lint`, or `... breaking [REVISION]`.

buf is given the API as protoc reads it, so that nothing is fetched from a schema registry. `breaking` compares it with a
revision of git, the newest release if none is named: what a client of that one relies on must still be there.
"""

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import google.rpc.status_pb2
import grpc_tools
from grpc_tools import protoc

from tests.node_tools.installation import default_folder, install, run

PROTO = Path(__file__).resolve().parents[2] / "proto"
TIMEOUT_SECONDS = 120


async def lint() -> tuple[int, str]:
    """Whether the API keeps to its rules. Returns buf's status and what it says."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "taskstore.binpb"
        write_image(image)
        return await _buf("lint", str(image))


async def breaking(before: Path, *, now: Path = PROTO) -> tuple[int, str]:
    """Whether a client of the API in the folder `before` can use that in `now`. Returns buf's status and what it says."""
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "before.binpb", Path(folder) / "now.binpb"
        write_image(images[0], proto=before)
        write_image(images[1], proto=now)
        return await _buf("breaking", str(images[1]), "--against", str(images[0]), "--against-config", str(PROTO / "buf.yaml"))


def write_image(image: Path, *, proto: Path = PROTO) -> None:
    """Writes the descriptors of the API, with their comments, and of all that it imports."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    googleapis = Path(google.rpc.status_pb2.__file__).parents[2]
    sources = sorted(str(path.relative_to(proto)) for path in (proto / "taskstore").rglob("*.proto"))
    includes = [f"-I{os.fspath(folder)}" for folder in (proto, well_known, googleapis)]
    command = ["protoc", *includes, "--include_imports", "--include_source_info", f"--descriptor_set_out={image}", *sources]
    if protoc.main(command) != 0:
        raise SystemExit("protoc refused the sources; see above")


def newest_release() -> str | None:
    """The newest release that the checkout knows of, as a tag `v…`."""
    command = ["git", "tag", "--list", "v*", "--sort=-version:refname", "--merged"]
    tags = subprocess.run(command, cwd=PROTO, check=True, capture_output=True, text=True).stdout.split()
    return tags[0] if tags else None


async def _buf(*arguments: str) -> tuple[int, str]:
    installation = await install(default_folder())
    with tempfile.TemporaryDirectory() as home:
        status, output = await run(
            installation.command(installation.buf, *arguments, "--config", str(PROTO / "buf.yaml"), "--path", "taskstore"),
            environment={**installation.environment(), "HOME": home},
            timeout_seconds=TIMEOUT_SECONDS,
            folder=PROTO,
        )
    return (1 if status is None else status), output


def _take_out(revision: str, folder: Path) -> Path:
    command = ["git", "archive", "--format=tar", revision, "taskstore"]
    archive = subprocess.run(command, cwd=PROTO, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


async def _main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["lint"]:
            status, output = await lint()
        case ["breaking", *rest] if len(rest) < 2:
            revision = rest[0] if rest else newest_release()
            if revision is None:
                print("buf breaking: nothing was released yet")
                return 0
            with tempfile.TemporaryDirectory() as folder:
                status, output = await breaking(_take_out(revision, Path(folder)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    print(output or f"buf {arguments[0]}: nothing to say")
    return status


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1:])))
