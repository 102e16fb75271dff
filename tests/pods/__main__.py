"""The dev overlay as real hardened pods, killed and rolled under load: `make k8s-e2e`. As root, with podman.

First it runs the commands that k8s/README.md gives to a newcomer; then it plays two stores, two bridges and two workers. It
prints what it runs, and ends all that it started.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import yaml

from tests.pods import hardening, walk
from tests.pods.load import Counts, Load
from tests.pods.manifests import Playable, playable
from tests.pods.podman import PodmanError, play, podman
from tests.pods.replicas import Replicas
from tests.pods.service import Service

ROOT: Final = Path(__file__).parents[2]
NETWORK: Final = "tenure-e2e"
NEEDED: Final = ("podman", "runc", "nsenter", "buildah", "debootstrap")
TWO_OF: Final = ("tenure-store", "tenure-bridge", "tenure-worker")
DOCTORS: Final = {"tenure-store": "store_service", "tenure-bridge": "mcp_bridge"}
ROUNDS: Final = 3
"""As many calls each client ends after each event: the first is the one that it was at."""


class FailedError(AssertionError):
    """It did not go as it should."""


def say(text: str) -> None:
    """A line, with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def overlay(kubectl: Path) -> Playable:
    """The dev overlay, rendered."""
    command: list[str | Path] = [kubectl, "kustomize", ROOT / "k8s" / "overlays" / "dev"]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return playable(yaml.safe_load_all(rendered))


async def run(plays: Playable) -> None:
    """Plays the overlay, calls, kills, rolls."""
    for change in plays.changes:
        say(change)
    configs = [other for other in plays.others if other["kind"] == "ConfigMap"]
    claims = [other for other in plays.others if other["kind"] != "ConfigMap"]
    async with contextlib.AsyncExitStack() as ending:
        await podman("network", "create", NETWORK)
        ending.push_async_callback(podman, "network", "rm", "--force", NETWORK)
        for name, content in plays.secrets.items():
            await podman("secret", "create", name, "-", given=content)
            ending.push_async_callback(podman, "secret", "rm", name)
        for other in plays.others:  # podman makes a volume of each
            ending.push_async_callback(podman, "volume", "rm", "--force", other["metadata"]["name"])
        await play(claims, network=NETWORK)
        parts = {}
        for workload in plays.workloads:
            count = 2 if workload.name in TWO_OF else None
            part = Replicas(workload, network=NETWORK, configs=configs, count=count)
            parts[workload.name] = part
            ending.push_async_callback(part.end)
            await part.start()  # all at once, as by `kubectl apply`: who needs another waits for it
            say(f"{workload.kind} {workload.name}: " + ", ".join(f"{pod.name} at {pod.address}" for pod in part.pods))
        for part in parts.values():
            await part.wait()
        await show_hardening(parts)
        await ask_doctors(parts)
        bridges = parts["tenure-bridge"]
        service = await ending.enter_async_context(Service(bridges.ready, port=8080))
        await disturb(parts, f"http://127.0.0.1:{service.port}/mcp")
        say(f"connections for which no bridge was there: {service.unserved}")


async def show_hardening(parts: dict[str, Replicas]) -> None:
    """Prints how each container is confined by what the kernel says; raises where it is not as the overlay wishes."""
    for part in parts.values():
        for pod in part.pods:
            if part.workload.kind != "Job":
                say(f"{pod.name}: {await hardening.seen(pod)}")


async def ask_doctors(parts: dict[str, Replicas]) -> None:
    """Prints what the doctors say where there is no shell to start them; raises where something is wrong."""
    for name, module in DOCTORS.items():
        container = parts[name].pods[0].container
        told = await podman("exec", container, "/usr/bin/python3", "-m", module, "doctor", "--output", "text")
        for line in told.splitlines():
            say(f"doctor of {name}: {line}")


async def disturb(parts: dict[str, Replicas], url: str) -> None:
    """Kills a pod of each kind and rolls all of each kind, while clients call."""
    async with Load(url) as load:
        await load.wait_rounds(ROUNDS)
        say(f"undisturbed: {judged(load.take())}")
        for name in TWO_OF:
            victim = parts[name].pods[0]
            await victim.kill()
            await parts[name].replace(victim)
            await load.wait_rounds(ROUNDS)
            say(f"{victim.name} killed: {judged(load.take())}")
        for name in TWO_OF:
            before = [pod.name for pod in parts[name].pods]
            await parts[name].roll()
            await load.wait_rounds(ROUNDS)
            counts = load.take()
            say(f"{', '.join(before)} rolled: {judged(counts)}")
            if counts.bare_failed:
                say(f"  such as: {counts.bare_failed[0]}")
    say(f"at the end: {judged(load.take())}")


def judged(counts: Counts) -> str:
    """What was counted, if no call failed. Raises FailedError."""
    if counts.failed:
        raise FailedError(f"{counts.told()}\n" + "\n".join(counts.failed[:10]))
    return counts.told()


def main() -> int:
    """The whole of it, or one half."""
    options = argparse.ArgumentParser(prog="python -m tests.pods", description=__doc__)
    options.add_argument("--kubectl", type=Path, required=True, help="the kubectl that renders the overlay")
    options.add_argument("--only", choices=("walk", "pods"), help="the commands of the README, or the killing and rolling")
    chosen = options.parse_args()
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        print(f"it needs root and {', '.join(missing) or 'nothing else'}; `make image-tools pod-tools`", file=sys.stderr)
        return 2
    try:
        if chosen.only != "pods":
            walk.take(say)
        if chosen.only != "walk":
            asyncio.run(interruptible(run(overlay(chosen.kubectl))))
    except asyncio.CancelledError:
        print("asked to end; all ended", file=sys.stderr)
        return 143
    except (FailedError, PodmanError, RuntimeError, TimeoutError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    say("all ended")
    return 0


async def interruptible(what: object) -> None:
    """Ends in order when asked to end."""
    task = asyncio.ensure_future(what)  # type: ignore[call-overload]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


if __name__ == "__main__":
    sys.exit(main())
