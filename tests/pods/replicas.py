"""What a cluster does and podman does not: as many pods as are wished, probed, replaced one by one."""

import asyncio
import contextlib
import http.client
import itertools
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.pods.manifests import Resource, Workload
from tests.pods.podman import PodmanError, infra, inspect, play, podman

READY_SECONDS: Final = 240.0
"""How long a pod may take to become ready."""


class NotReadyError(RuntimeError):
    """A pod did not become ready. The message has what it logged."""


class NotEndedError(RuntimeError):
    """A pod that was asked to end did not end well within its grace. The message has what it logged."""


class Pod:
    """One pod that is played, and whether it is ready by its readiness probe."""

    def __init__(self, name: str, workload: Workload, *, network: str, configs: Sequence[Resource]) -> None:
        self.name = name
        self.workload = workload
        self._network = network
        self._configs = configs
        self.network = Path("/nowhere")
        self.address = ""
        self.is_ready = False
        self._probing: asyncio.Task[None] | None = None

    @property
    def container(self) -> str:
        """The name of its one container."""
        return f"{self.name}-{self.workload.container['name']}"

    async def start(self) -> None:
        """Plays it, under the workload's name in DNS, and begins to probe it."""
        await play([*self._configs, self.workload.pod(self.name)], network=self._network, alias=self.workload.name)
        settings = (await infra(self.name))["NetworkSettings"]
        self.network = Path(settings["SandboxKey"])
        self.address = settings["Networks"][self._network]["IPAddress"]
        if "readinessProbe" in self.workload.container:
            self._probing = asyncio.create_task(self._probe())

    async def wait_ready(self) -> None:
        """Until its probe says so. Raises NotReadyError."""
        until = time.monotonic() + READY_SECONDS
        while not self.is_ready:
            if time.monotonic() > until:
                raise NotReadyError(f"{self.name} is not ready\n{await self.log()}")
            await asyncio.sleep(0.1)

    async def wait_done(self) -> None:
        """Until it has ended by itself, and well. Raises NotReadyError."""
        until = time.monotonic() + READY_SECONDS
        while (state := (await inspect(self.container))["State"])["Status"] != "exited" or state["ExitCode"] != 0:
            if time.monotonic() > until:
                raise NotReadyError(f"{self.name} has not done its work\n{await self.log()}")
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """Ends it as a node does: it leaves the endpoints, gets SIGTERM, and has its grace."""
        await self._leave()
        # Not the pod: podman would end its network at once, and not when its container has ended.
        await podman("stop", "--time", str(self.workload.grace_seconds), self.container)
        if (code := (await inspect(self.container))["State"]["ExitCode"]) != 0:
            raise NotEndedError(f"{self.name} ended with {code}\n{await self.log()}")
        await self.remove()

    async def kill(self) -> None:
        """SIGKILL, and nobody is told: that it is away is for its probe to find."""
        await podman("kill", "--signal", "KILL", self.container)

    async def remove(self) -> None:
        """Away with it, however it is."""
        await self._leave()
        with contextlib.suppress(PodmanError):
            await podman("pod", "rm", "--force", "--time", "0", self.name)

    async def log(self) -> str:
        """What it said last."""
        with contextlib.suppress(PodmanError):
            return await podman("logs", "--tail", "20", self.container)
        return ""

    async def _leave(self) -> None:
        self.is_ready = False
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])

    async def _probe(self) -> None:
        """As a node does by `readinessProbe`; while it starts, twice a second."""
        probe = self.workload.container["readinessProbe"]
        failures, allowed = 0, probe.get("failureThreshold", 3)
        while True:
            if await self._answers(probe):
                failures, self.is_ready = 0, True
            elif (failures := failures + 1) >= allowed:
                self.is_ready = False
            await asyncio.sleep(probe.get("periodSeconds", 10) if self.is_ready else 0.5)

    async def _answers(self, probe: Mapping[str, Any]) -> bool:
        if "exec" in probe:
            try:
                await podman("exec", self.container, *probe["exec"]["command"])
            except PodmanError:
                return False
            return True
        asked = probe["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in self.workload.container["ports"]}
        url = f"http://{self.address}:{ports[asked['port']]}{asked['path']}"
        return await asyncio.to_thread(_is_well, url, probe.get("timeoutSeconds", 1))


class Replicas:
    """The pods of a Deployment or a StatefulSet, or the one of a Job."""

    def __init__(self, workload: Workload, *, network: str, configs: Sequence[Resource], count: int | None = None) -> None:
        self.workload = workload
        self._network = network
        self._configs = configs
        self._count = workload.replicas if count is None else count
        self._numbers = itertools.count()
        self.pods: list[Pod] = []

    def ready(self) -> list[Pod]:
        """Those that a Service sends connections to."""
        return [pod for pod in self.pods if pod.is_ready]

    async def start(self) -> None:
        """Plays as many as are wished."""
        for _ in range(self._count):
            await self._add()

    async def wait(self) -> None:
        """Until all are ready, or have done their work if it is a Job."""
        for pod in self.pods:
            await (pod.wait_done() if self.workload.kind == "Job" else pod.wait_ready())

    async def replace(self, pod: Pod) -> None:
        """Another one in place of one that was killed."""
        await pod.remove()
        self.pods.remove(pod)
        await (await self._add()).wait_ready()

    async def roll(self) -> None:
        """Replaces each, as a Deployment does by maxSurge 1 and maxUnavailable 0: a new one, and when it is ready, one less."""
        for old in list(self.pods):
            await (await self._add()).wait_ready()
            self.pods.remove(old)
            await old.stop()

    async def end(self) -> None:
        """Away with all of them."""
        for pod in self.pods:
            await pod.remove()

    async def _add(self) -> Pod:
        pod = Pod(f"{self.workload.name}-{next(self._numbers)}", self.workload, network=self._network, configs=self._configs)
        self.pods.append(pod)
        await pod.start()
        return pod


def _is_well(url: str, timeout_seconds: float) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
            return bool(answer.status < 400)
    except (OSError, http.client.HTTPException):
        return False
