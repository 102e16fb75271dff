"""Images for the images to stand on, made of Debian's packages by this machine itself, so that no registry is asked.

The base is what distroless is: Python, the libraries it links to, certificates, and nothing else: no shell, no package manager.
Postgres is Debian's, with the settings, the user and the folders of the image that the overlays name.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BASE: Final = "localhost/tenure-base:local"
POSTGRES: Final = "localhost/tenure-postgres:local"
DEBIAN: Final = "bookworm"
POSTGRES_VERSION: Final = 15
"""The one that this Debian has."""
WORK: Final = ROOT / ".tenure" / "debian"
BUILDAH: Final = {**os.environ, "BUILDAH_ISOLATION": "chroot"}  # works in a container, and without namespaces
PACKAGES: Final = (
    "base-files", "netbase", "media-types", "tzdata", "ca-certificates",
    "libc6", "libgcc-s1", "libstdc++6", "libcrypt1", "zlib1g", "libbz2-1.0", "liblzma5", "libexpat1", "libffi8", "libssl3",
    "libsqlite3-0", "libdb5.3", "libtinfo6", "libncursesw6", "libreadline8", "libuuid1", "libnsl2", "libtirpc3",
    "python3", "python3-minimal", "python3.11", "python3.11-minimal", "libpython3-stdlib",
    "libpython3.11-minimal", "libpython3.11-stdlib",
)  # fmt: skip
"""What the base has: Python, and what it links to."""
WRITTEN: Final = ("etc/ssl/certs/ca-certificates.crt", "etc/ld.so.cache", "etc/nsswitch.conf")
"""What their installation wrote."""
MERGED: Final = ("bin", "sbin", "lib", "lib64")
"""Folders that are links into usr."""
LEFT_OUT: Final = ("usr/share/doc/", "usr/share/man/", "usr/share/lintian/", "usr/share/bug/")


class DebianError(RuntimeError):
    """An image of Debian's packages could not be made. The message says what did not work."""


def buildah(*arguments: str | Path) -> str:
    """What buildah printed."""
    done = subprocess.run(["buildah", *arguments], env=BUILDAH, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise DebianError(f"buildah {' '.join(map(str, arguments))} ended with {done.returncode}\n{done.stderr[-2_000:]}")
    return done.stdout.strip()


def make_base() -> str:
    """Makes the base that the images are built on; returns its name. As root."""
    debian, tree = _debian(), WORK / "base"
    if not tree.exists():
        growing = tree.with_suffix(".growing")
        shutil.rmtree(growing, ignore_errors=True)
        _lay(debian, growing)
        growing.rename(tree)
    return _commit(BASE, tree, "--user", "65532:65532", "--env", "LANG=C.UTF-8", "--env", "PATH=/usr/bin")


def make_postgres() -> str:
    """Makes an image of Postgres that is configured as the official one is; returns its name. As root."""
    script = Path(__file__).with_name("postgres.sh")
    path = f"PATH=/usr/sbin:/usr/bin:/usr/lib/postgresql/{POSTGRES_VERSION}/bin"
    settings = ("--user", "999:999", "--env", path, "--entrypoint", '["/postgres.sh"]')
    return _commit(POSTGRES, _debian(), *settings, script=script)


def _debian() -> Path:
    """A Debian with Python and Postgres, as debootstrap makes it."""
    tree = WORK / "all"
    if not tree.exists():
        growing = tree.with_suffix(".growing")
        shutil.rmtree(growing, ignore_errors=True)
        growing.parent.mkdir(parents=True, exist_ok=True)
        include = "--include=python3,ca-certificates,tzdata,netbase,media-types,libstdc++6,postgresql"
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", include, DEBIAN, str(growing)], check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise DebianError(f"debootstrap ended with {done.returncode}\n{done.stdout[-2_000:]}")
        shutil.rmtree(growing / "var" / "cache" / "apt")
        (growing / "run" / "postgresql").chmod(0o3777)  # as in the official image: for whichever user it runs as
        for name, line in (("passwd", "database:x:999:999::/var/lib/postgresql:/bin/sh\n"), ("group", "database:x:999:\n")):
            with (growing / "etc" / name).open("a") as file:
                file.write(line)
        growing.rename(tree)
    return tree


def _lay(debian: Path, tree: Path) -> None:
    """Lays the packages of the base down, and the files that their installation wrote."""
    (tree / "usr").mkdir(parents=True)
    for name in MERGED:
        (tree / "usr" / name).mkdir()
        (tree / name).symlink_to(f"usr/{name}")
    for relative in (*_files(debian), *WRITTEN):
        source, target = debian / relative, tree / relative
        if source.is_dir() and not source.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
        elif source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    (tree / "tmp").chmod(0o1777)
    people = "root:x:0:{}\nnonroot:x:65532:{}\n"
    (tree / "etc" / "passwd").write_text(people.format("0:root:/root:/sbin/nologin", "65532::/:/sbin/nologin"))
    (tree / "etc" / "group").write_text(people.format("", ""))


def _files(debian: Path) -> Iterator[str]:
    """The paths of the packages' files."""
    for package in PACKAGES:
        lists = [*debian.glob(f"var/lib/dpkg/info/{package}.list"), *debian.glob(f"var/lib/dpkg/info/{package}:*.list")]
        if not lists:
            raise DebianError(f"{package} is not among what debootstrap installed")
        for line in lists[0].read_text().splitlines():
            relative = line.removeprefix("/")
            if relative not in (".", *MERGED) and not relative.startswith(LEFT_OUT):
                yield relative


def _commit(image: str, tree: Path, *settings: str, script: Path | None = None) -> str:
    """Makes an image of a folder and a script, unless it is there already, made of the same."""
    made_of = hashlib.sha256(repr((PACKAGES, DEBIAN, settings, script and script.read_text())).encode()).hexdigest()
    label = '{{index .OCIv1.Config.Labels "tenure.made-of"}}'
    with contextlib.suppress(DebianError):
        if buildah("inspect", "--type", "image", "--format", label, image) == made_of:
            return image
    container = buildah("from", "scratch")
    try:
        buildah("add", "-q", container, tree, "/")
        if script is not None:
            buildah("add", "-q", "--chmod", "0755", container, script, f"/{script.name}")
        buildah("config", "--label", f"tenure.made-of={made_of}", *settings, container)
        buildah("commit", "-q", container, image)
    finally:
        buildah("rm", container)
    return image
