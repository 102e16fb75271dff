"""Who reaches whom, by the network policies of each overlay: what is named here, and nothing else."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.k8s.conftest import Resource, render, templates

Labels = Mapping[str, str]
NAME: Final = "app.kubernetes.io/name"
PORTS: Final = {"grpc": 7233, "admin": 7234, "mcp": 8080, "postgres": 5432, "instance manager": 8000}
OUTSIDE: Final[Mapping[str, tuple[Labels, Labels]]] = {
    "gateway": ({"tenure.dev/gateway": "true"}, {}),
    "prometheus": ({"tenure.dev/monitoring": "true"}, {}),
    "worker elsewhere": ({"tenure.dev/workers": "true"}, {"tenure.dev/worker": "true"}),
    "who else is there": ({"tenure.dev/workers": "true"}, {}),
    "stranger": ({"kubernetes.io/metadata.name": "default"}, {"tenure.dev/worker": "true", NAME: "tenure-bridge"}),
    "operator of postgres": ({"kubernetes.io/metadata.name": "cnpg-system"}, {NAME: "cloudnative-pg"}),
}
"""Who is in other namespaces, whose own policies let them ask whom they like: the labels of namespace and pod."""
TRIAL: Final = {
    ("tenure-bridge", "tenure-store", "grpc"),
    ("tenure-worker", "tenure-store", "grpc"),
    ("worker elsewhere", "tenure-store", "grpc"),
    ("gateway", "tenure-bridge", "mcp"),
    ("tenure-store", "tenure-postgres", "postgres"),
    ("tenure-migrate", "tenure-postgres", "postgres"),
    ("tenure-epoch", "tenure-postgres", "postgres"),
}
PRODUCTION: Final = TRIAL | {
    ("prometheus", "tenure-store", "admin"),
    ("prometheus", "tenure-bridge", "admin"),
    ("prometheus", "tenure-worker", "admin"),
    ("tenure-postgres", "tenure-postgres", "postgres"),
    ("tenure-postgres", "tenure-postgres", "instance manager"),
    ("operator of postgres", "tenure-postgres", "postgres"),
    ("operator of postgres", "tenure-postgres", "instance manager"),
}
ABROAD: Final = {
    "dev": {("tenure-bridge", 443)},
    "production": {("tenure-bridge", 443), ("tenure-store", 443), ("tenure-postgres", 443), ("tenure-postgres", 6443)},
}
"""Who reaches what is on no list: issuers of tokens, the archive, the API server and backups."""


@dataclass(frozen=True)
class Place:
    """Where pods of one kind are."""

    labels: Labels
    namespace: Labels
    ports: Mapping[str, int] = field(default_factory=dict)
    is_inside: bool = True
    """Whether the policies are about them."""


def places(resources: tuple[Resource, ...]) -> dict[str, Place]:
    """All who might ask or be asked."""
    (namespace,) = [{"kubernetes.io/metadata.name": one["metadata"]["name"]} for one in resources if one["kind"] == "Namespace"]
    found = {name: Place(labels, elsewhere, is_inside=False) for name, (elsewhere, labels) in OUTSIDE.items()}
    for _, template in templates(resources):
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0].get("ports", ())}
        found[template["metadata"]["labels"][NAME]] = Place(template["metadata"]["labels"], namespace, ports)
    for one in resources:
        if one["kind"] == "Cluster":  # its operator makes its pods
            found[one["metadata"]["name"]] = Place({"cnpg.io/cluster": one["metadata"]["name"]}, namespace)
    return found


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a selector of Kubernetes takes these labels."""
    for one in selector.get("matchExpressions", ()):
        assert one["operator"] == "In", "another one is not known here"
        if labels.get(one["key"]) not in one["values"]:
            return False
    return set(selector.get("matchLabels", {}).items()) <= set(labels.items())


def is_peer(peer: Mapping[str, Any], place: Place, near: Labels) -> bool:
    """Whether a peer of a rule is that place, seen from a namespace."""
    if "ipBlock" in peer:
        return False
    there = selects(peer["namespaceSelector"], place.namespace) if "namespaceSelector" in peer else place.namespace == near
    return there and selects(peer.get("podSelector", {}), place.labels)


def rules(resources: tuple[Resource, ...], place: Place, way: str) -> Iterator[Mapping[str, Any]] | None:
    """The rules for what comes in or goes out there; None where no policy says anything of it."""
    if not place.is_inside:
        return None
    specs = [
        one["spec"] for one in resources if one["kind"] == "NetworkPolicy" and selects(one["spec"]["podSelector"], place.labels)
    ]
    if not any(way.capitalize() in spec["policyTypes"] for spec in specs):
        return None
    return (rule for spec in specs for rule in spec.get(way, ()))


def lets(rule: Mapping[str, Any], peers: str, other: Place | None, near: Labels, port: int, names: Mapping[str, int]) -> bool:
    """Whether a rule lets something pass; to what is in no cluster if there is no other place."""
    there = rule.get(peers)
    if there is not None and not any("ipBlock" in peer if other is None else is_peer(peer, other, near) for peer in there):
        return False
    ports = [names.get(one["port"], one["port"]) for one in rule.get("ports", ())]
    return not ports or port in ports


def reaches(resources: tuple[Resource, ...], source: Place, target: Place | None, port: int) -> bool:
    """Whether a connection is let out there and let in here."""
    names = {} if target is None else target.ports
    leaving = rules(resources, source, "egress")
    if leaving is not None and not any(lets(rule, "to", target, source.namespace, port, names) for rule in leaving):
        return False
    entering = None if target is None else rules(resources, target, "ingress")
    return entering is None or any(lets(rule, "from", source, target.namespace, port, names) for rule in entering)  # type: ignore[union-attr]


@pytest.mark.parametrize(("overlay", "expected"), [("dev", TRIAL), ("production", PRODUCTION)])
def test_they_reach_whom_they_need_and_nobody_else(overlay: str, expected: set[tuple[str, str, str]]) -> None:
    resources = render(overlay)
    there = places(resources)
    seen = set()
    for name, source in there.items():
        for asked, target in there.items():
            for what, usual in PORTS.items():
                if target.is_inside and reaches(resources, source, target, target.ports.get(what, usual)):
                    seen.add((name, asked, what))
    assert seen == expected


@pytest.mark.parametrize("overlay", ABROAD)
def test_they_reach_what_is_outside_where_they_must(overlay: str) -> None:
    resources = render(overlay)
    there = {name: place for name, place in places(resources).items() if place.is_inside}
    ports = (80, 443, 4317, 5432, 6443, 7233, 8000)
    seen = {(name, port) for name, place in there.items() for port in ports if reaches(resources, place, None, port)}
    assert seen == ABROAD[overlay]
