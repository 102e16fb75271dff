"""What is asked of podman."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.pods.manifests import Resource

CONF: Final = Path(__file__).with_name("containers.conf")


class PodmanError(RuntimeError):
    """Podman could not do it; the message has what it said."""


def environment() -> dict[str, str]:
    """With our settings of podman, unless somebody chose others."""
    return {"CONTAINERS_CONF": str(CONF), **os.environ}


async def podman(*arguments: str | Path, given: str | None = None) -> str:
    """What podman printed. Raises PodmanError."""
    process = await asyncio.create_subprocess_exec(
        "podman",
        *arguments,
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # an interrupt is for us, who then end what runs
    )
    output, trouble = await process.communicate(None if given is None else given.encode())
    if process.returncode != 0:
        raise PodmanError(
            f"podman {' '.join(map(str, arguments))} ended with {process.returncode}: {trouble.decode()[-2_000:]}"
        )
    return output.decode().strip()


async def play(documents: list[Resource], *, network: str, alias: str | None = None) -> None:
    """Plays pods, claims and ConfigMaps; pods join the network, under an alias that they may share."""
    joined = network if alias is None else f"{network}:alias={alias}"
    await podman("kube", "play", "--network", joined, "-", given=yaml.safe_dump_all(documents))


async def inspect(container: str) -> Mapping[str, Any]:
    """A container as podman has it."""
    (found,) = json.loads(await podman("inspect", "--type", "container", container))
    return dict(found)


async def infra(pod: str) -> Mapping[str, Any]:
    """The container that holds a pod's network."""
    return await inspect(await podman("pod", "inspect", "--format", "{{.InfraContainerID}}", pod))
