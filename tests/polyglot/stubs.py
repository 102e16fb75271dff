"""Writes the stubs for TypeScript, Go and Java into `proto/stubs`: `python -m tests.polyglot.stubs`.

buf runs the plugins that `proto/buf.gen.yaml` names, all of them local: nothing is sent to a schema registry. The
plugin for TypeScript comes from npm, at the version of the lock; the others are asked of the machine.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.node_tools.buf import PROTO, write_image
from tests.node_tools.installation import default_folder, install, run

STUBS: Final = PROTO / "stubs"
PROGRAMS: Final = ("protoc", "protoc-gen-go", "protoc-gen-go-grpc", "grpc_java_plugin")
TIMEOUT_SECONDS: Final = 120


class ToolError(RuntimeError):
    """A program is missing, or did not do its work. The message says what to do."""


async def write_stubs() -> Path:
    """Writes all of them anew; returns their folder. Raises ToolError."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        raise ToolError(f"not found: {', '.join(missing)}; `make stubs-tools` installs them on Debian")
    installation = await install(default_folder())
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "taskstore.binpb"
        write_image(image)
        environment = dict(installation.environment())
        environment["PATH"] = os.pathsep.join((str(installation.packages / ".bin"), environment["PATH"]))
        status, output = await run(
            installation.command(installation.buf, "generate", str(image), "--path", "taskstore"),
            environment={**environment, "HOME": folder},
            timeout_seconds=TIMEOUT_SECONDS,
            folder=PROTO,
        )
    if status != 0:
        raise ToolError(f"buf could not write the stubs:\n{output}")
    return STUBS


if __name__ == "__main__":
    try:
        print(f"written to {asyncio.run(write_stubs())}")
    except ToolError as error:
        sys.exit(str(error))
