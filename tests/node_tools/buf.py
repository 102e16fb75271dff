"""Runs buf on `proto/`: `python -m tests.node_tools.buf lint`.

buf is given the API as protoc reads it, so that nothing is fetched from a schema registry.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import google.rpc.status_pb2
import grpc_tools
from grpc_tools import protoc

from tests.node_tools.installation import default_folder, install, run

PROTO = Path(__file__).resolve().parents[2] / "proto"
TIMEOUT_SECONDS = 120


async def main(arguments: list[str]) -> int:
    """Runs one command of buf on the image of `proto/`; prints what it says; returns its status."""
    installation = await install(default_folder())
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "taskstore.binpb"
        write_image(image)
        status, output = await run(
            installation.command(
                installation.buf, *arguments, str(image), "--config", str(PROTO / "buf.yaml"), "--path", "taskstore"
            ),
            environment={**installation.environment(), "HOME": folder},
            timeout_seconds=TIMEOUT_SECONDS,
            folder=PROTO,
        )
    print(output or "buf: nothing to say")
    return 1 if status is None else status


def write_image(image: Path) -> None:
    """Writes the descriptors of the API, with their comments, and of all that it imports."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    googleapis = Path(google.rpc.status_pb2.__file__).parents[2]
    sources = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "taskstore").rglob("*.proto"))
    includes = [f"-I{os.fspath(folder)}" for folder in (PROTO, well_known, googleapis)]
    command = ["protoc", *includes, "--include_imports", "--include_source_info", f"--descriptor_set_out={image}", *sources]
    if protoc.main(command) != 0:
        raise SystemExit("protoc refused the sources; see above")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
