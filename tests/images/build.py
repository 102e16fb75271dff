"""Fills the context of k8s/Dockerfile and builds its images: `python -m tests.images.build [BASE | --local]`.

For each image it lays down what the lock says, by hash, as wheels for the Python of the base, and Tenure's own wheel. Then it
builds with whatever there is: docker, podman, or buildah. With `--local` it asks no registry: buildah builds, on a base made of
Debian's packages, and makes an image of Postgres besides.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.images.base import BUILDAH, DebianError, make_base, make_postgres

ROOT: Final = Path(__file__).parents[2]
CONTEXT: Final = ROOT / ".tenure" / "images"
UV: Final = Path(sys.executable).with_name("uv")
PYTHON: Final = "3.11"  # of the base
PLATFORM: Final = "x86_64-manylinux_2_28"
EXTRAS: Final = {"store": ("store", "archive", "traces"), "bridge": ("bridge", "traces"), "worker": ("traces",)}
VERSION: Final = version("tenure")
BUILDERS: Final = ("docker", "podman", "buildah")


class BuildError(RuntimeError):
    """An image could not be built. The message says what to do."""


def fill_context() -> Path:
    """Writes what goes into each image; returns the folder."""
    shutil.rmtree(CONTEXT, ignore_errors=True)
    CONTEXT.mkdir(parents=True)
    _run(UV, "build", "--quiet", "--wheel", "--out-dir", CONTEXT / "wheel", ROOT)
    (wheel,) = (CONTEXT / "wheel").glob("*.whl")
    for name, extras in EXTRAS.items():
        locked, into = CONTEXT / f"{name}.txt", CONTEXT / name
        wanted = [f"--extra={extra}" for extra in extras]
        _run(UV, "export", "--quiet", "--frozen", "--no-default-groups", "--no-emit-project", *wanted, "--output-file", locked)
        place = ("--target", into, "--python-version", PYTHON, "--python-platform", PLATFORM, "--only-binary", ":all:")
        _run(UV, "pip", "install", "--quiet", "--require-hashes", *place, "--requirement", locked)
        _run(UV, "pip", "install", "--quiet", "--no-deps", *place, wheel)
        (into / ".lock").unlink(missing_ok=True)  # uv's own, for all to write
    shutil.copy(ROOT / "tests" / "images" / "hello.py", CONTEXT / "worker" / "hello.py")
    return CONTEXT


def build(base: str | None = None, builders: Sequence[str] = BUILDERS) -> list[str]:
    """Builds every image; returns their names."""
    builder = next((found for name in builders if (found := _works(name))), None)
    if builder is None:
        raise BuildError(f"of {', '.join(builders)} none works here")
    context, images = fill_context(), []
    for name in EXTRAS:
        image = f"localhost/tenure-{name}:{VERSION}"
        based = ["--build-arg", f"BASE={base}"] if base is not None else []
        file = ("--file", ROOT / "k8s" / "Dockerfile", "--target", name, "--tag", image)
        before = _id(builder, image)
        _run(builder, "build", *file, *based, context)
        if before not in ("", _id(builder, image)):
            subprocess.run([builder, "rmi", before], check=False, capture_output=True)  # it stays where a container has it
        images.append(image)
    return images


def build_local() -> list[str]:
    """Builds every image, its base and Postgres without a registry, as root; returns their names."""
    base = make_base()
    return [base, make_postgres(), *build(base, ("buildah",))]


def _works(name: str) -> str | None:
    """The program, if it is there and its engine answers."""
    found = shutil.which(name)
    if found is None or subprocess.run([found, "info"], check=False, capture_output=True).returncode != 0:
        return None
    return found


def _id(builder: str, image: str) -> str:
    """Which image has the name now; empty if none."""
    return subprocess.run([builder, "images", "--quiet", image], check=False, capture_output=True, text=True).stdout.strip()


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, cwd=ROOT, env=BUILDAH, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{(done.stderr or done.stdout)[-2_000:]}")


def main(arguments: Sequence[str]) -> int:
    """Builds, and prints the images' names."""
    try:
        print("\n".join(build_local() if arguments[:1] == ["--local"] else build(*arguments[:1])))
    except (BuildError, DebianError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
