"""Writes the Python stubs of `proto/` into a folder: `python proto/generate.py [FOLDER]`.

The committed stubs stand in `proto/gen`. `make proto` writes them, `make proto-check` shows that they are current.
"""

import sys
from pathlib import Path

import google.rpc.status_pb2
import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).parent


def generate(folder: Path) -> None:
    """Writes messages, services and their types for every file of `taskstore.v1` into `folder`."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    googleapis = Path(google.rpc.status_pb2.__file__).parents[2]
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "taskstore").rglob("*.proto"))
    arguments = [f"-I{ROOT}", f"-I{well_known}", f"-I{googleapis}"]
    arguments += [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    if protoc.main(["protoc", *arguments, *sources]) != 0:
        raise SystemExit("protoc refused the sources; see above")
    for package in (folder / "taskstore", folder / "taskstore" / "v1"):
        (package / "__init__.py").write_text('"""Generated from `proto/`. Do not edit."""\n')
        (package / "py.typed").touch()


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "gen")
