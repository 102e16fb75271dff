"""How a container is confined, by what the kernel says of its process."""

from pathlib import Path
from typing import Final

from tests.pods.podman import inspect
from tests.pods.replicas import Pod

UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
SHELLS: Final = ("bin/sh", "bin/bash", "usr/bin/sh", "usr/bin/bash", "usr/bin/dash")
FILTERED: Final = "2"
"""Seccomp, of /proc/PID/status: a filter decides on each system call."""


class NotConfinedError(RuntimeError):
    """A container may do what the overlay does not let it."""


async def seen(pod: Pod) -> str:
    """What a pod's container may not do, in one line. Raises NotConfinedError."""
    found = await inspect(pod.container)
    process = Path("/proc") / str(found["State"]["Pid"])
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    spec, container = pod.workload.template["spec"], pod.workload.container
    (root,) = [line.split() for line in (process / "mountinfo").read_text().splitlines() if line.split()[4] == "/"]
    limit = container["resources"]["limits"]["memory"]
    user, group = spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]
    wished = {
        "user": (set(status["Uid"].split()), {str(user)}),
        "group": (set(status["Gid"].split()), {str(group)}),
        "capabilities": ({int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")}, {0}),
        "no new privileges": (status["NoNewPrivs"], "1"),
        "seccomp": (status["Seccomp"], FILTERED),
        "root": ("ro" in root[5].split(","), True),
        "memory": (found["HostConfig"]["Memory"], int(limit[:-2]) * UNITS[limit[-2:]]),
    }
    for name, (have, want) in wished.items():
        if have != want:
            raise NotConfinedError(f"{pod.name}: {name} is {have}, not {want}")
    shell = next((path for path in SHELLS if (process / "root" / path).exists()), None)
    return (
        f"user {user}:{group}, no capabilities, no new privileges, seccomp filter, root read-only, memory {limit}, "
        f"{'no shell' if shell is None else f'/{shell}'}"
    )
