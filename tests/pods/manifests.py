"""An overlay as `podman kube play` can play it: `kubectl kustomize OVERLAY | python -m tests.pods.manifests FOLDER`.

Podman plays pods, ConfigMaps and claims. What makes pods elsewhere becomes pods here, and what says who may do what within a
pod is kept to the letter; tests/k8s holds that. Whatever else is changed or left out is told, with its reason.
"""

import copy
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

Resource = Mapping[str, Any]
POSTGRES: Final = "localhost/tenure-postgres:local"
PLAYED_AS_THEY_ARE: Final = ("ConfigMap", "PersistentVolumeClaim")
MAKE_PODS: Final = ("Job", "StatefulSet", "Deployment")
LEFT_OUT: Final = {
    "Namespace": "podman has none: the pods' network is their own",
    "ServiceAccount": "no pod has a token of one",
    "Service": "its name is an alias of its pods in the network's DNS, which answers with all of them, as a headless one does",
    "NetworkPolicy": "podman has no counterpart: in the network all reach each other, and nobody outside of this machine does",
    "PodDisruptionBudget": "nothing evicts pods here",
    "CronJob": "it is suspended, and for an operator to run",
}
NOT_FOR_PODMAN: Final = {
    "livenessProbe": "podman would run it in the container, with a shell and curl",
    "readinessProbe": "podman would run it in the container, with a shell and curl",
    "startupProbe": "podman would run it in the container, with a shell and curl",
    "ports": "podman would open them on this machine, to all; the pods reach each other's without",
}
PASSED_OVER: Final = (
    "topologySpreadConstraints (one node)",
    "serviceAccountName, automountServiceAccountToken, enableServiceLinks (none there)",
    "fsGroup (a volume belongs to the user of its container)",
    "seccompProfile RuntimeDefault (podman's own profile, always)",
    "terminationGracePeriodSeconds (say it to `podman stop --time`)",
)
"""What podman reads and does not act upon."""


class NotPlayableError(ValueError):
    """The overlay has what podman cannot play and nothing here says how to do without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What keeps pods: a Deployment, a StatefulSet or a Job."""

    name: str
    kind: str
    replicas: int
    template: Resource
    """The pod, with its probes."""

    @property
    def grace_seconds(self) -> int:
        """How long a pod may take to end."""
        return int(self.template["spec"].get("terminationGracePeriodSeconds", 30))

    @property
    def container(self) -> Resource:
        """The one container."""
        (container,) = self.template["spec"]["containers"]
        return dict(container)

    def pod(self, name: str | None = None) -> Resource:
        """The pod of that name as podman plays it; its name is that of the workload where none is given."""
        pod, name = copy.deepcopy(dict(self.template)), name or self.name
        empty = {
            volume["name"]: f"{name}-{volume['name']}" for volume in pod["spec"].get("volumes", ()) if "emptyDir" in volume
        }
        for container in pod["spec"]["containers"]:
            for field in NOT_FOR_PODMAN:
                container.pop(field, None)
            if _is_postgres(container):
                container["image"] = POSTGRES
            for named in (*container.get("volumeMounts", ()), *pod["spec"].get("volumes", ())):
                named["name"] = empty.get(named["name"], named["name"])
        return {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": name}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Playable:
    """An overlay for podman."""

    workloads: tuple[Workload, ...]
    """In the order in which they are needed: the database, the migration, then who serves and works."""
    others: tuple[Resource, ...]
    """ConfigMaps and claims."""
    secrets: Mapping[str, str]
    """By name what `podman secret create` takes."""
    changes: tuple[str, ...]
    """What is otherwise than in a cluster, a line each."""


def playable(resources: Iterable[Resource]) -> Playable:
    """The resources of an overlay as podman can play them. Raises NotPlayableError."""
    workloads: list[Workload] = []
    others: list[Resource] = []
    secrets: dict[str, str] = {}
    changes: dict[str, list[str]] = {}  # by reason, what is changed for it
    for resource in resources:
        kind, name = resource["kind"], resource["metadata"]["name"]
        if kind in MAKE_PODS:
            others += _claims(resource)
            workloads.append(_workload(resource))
            for reason in _reasons(resource):
                changes.setdefault(reason, []).append(f"{kind} {name}")
        elif kind == "Secret":
            secrets[name] = json.dumps(dict(resource["data"]))
            changes.setdefault("a secret of podman's, referred to as before", []).append(f"Secret {name}")
        elif kind in PLAYED_AS_THEY_ARE:
            others.append(resource)
        elif kind in LEFT_OUT:
            changes.setdefault(f"left out: {LEFT_OUT[kind]}", []).append(f"{kind} {name}")
        else:
            raise NotPlayableError(f"{kind} {name}: not for podman")
    order = {"StatefulSet": 0, "Job": 1, "Deployment": 2}
    return Playable(
        workloads=tuple(sorted(workloads, key=lambda one: order[one.kind])),
        others=tuple(others),
        secrets=secrets,
        changes=(
            *(f"{', '.join(of)}: {reason}" for reason, of in changes.items()),
            *(f"passed over: {what}" for what in PASSED_OVER),
        ),
    )


def _workload(resource: Resource) -> Workload:
    spec, name = resource["spec"], resource["metadata"]["name"]
    template = copy.deepcopy(dict(spec["template"]))
    volumes = [
        {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": _claim_name(claim, name)}}
        for claim in spec.get("volumeClaimTemplates", ())
    ]
    if volumes:
        template["spec"]["volumes"] = [*template["spec"].get("volumes", ()), *volumes]
    return Workload(name=name, kind=resource["kind"], replicas=spec.get("replicas", 1), template=template)


def _claims(resource: Resource) -> Iterator[Resource]:
    for claim in resource["spec"].get("volumeClaimTemplates", ()):
        named = {"name": _claim_name(claim, resource["metadata"]["name"])}
        yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": named, "spec": claim["spec"]}


def _claim_name(claim: Resource, owner: str) -> str:
    """As a StatefulSet names the claim of its first pod."""
    return f"{claim['metadata']['name']}-{owner}-0"


def _reasons(resource: Resource) -> Iterator[str]:
    yield "its pods by themselves: podman neither replaces nor rolls them"
    for container in resource["spec"]["template"]["spec"]["containers"]:
        for field in sorted(NOT_FOR_PODMAN.keys() & container.keys()):
            yield f"without {field}: {NOT_FOR_PODMAN[field]}"
        if _is_postgres(container):
            yield f"{POSTGRES}, which is Debian's, in place of {container['image']}"
    if any("emptyDir" in volume for volume in resource["spec"]["template"]["spec"].get("volumes", ())):
        yield "each emptyDir by a name with its pod's in it: podman makes volumes of them, for all to use"


def _is_postgres(container: Resource) -> bool:
    return str(container["image"]).partition(":")[0].rpartition("/")[2] == "postgres"


def main() -> int:
    """Writes pods.yaml and the secrets into the folder, and prints what is otherwise than in a cluster."""
    folder = Path(sys.argv[1])
    plays = playable(yaml.safe_load_all(sys.stdin))
    folder.mkdir(parents=True, exist_ok=True)
    documents = [*plays.others, *(each.pod() for each in plays.workloads)]
    (folder / "pods.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False))
    for name, content in plays.secrets.items():
        path = folder / f"{name}.json"
        path.touch(mode=0o600)
        path.write_text(content)
    print("\n".join(plays.changes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
