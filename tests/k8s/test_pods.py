"""What podman plays is what the overlay says: the pods of `make k8s-e2e` may do no more than those of a cluster."""

import copy
import re
from typing import Any

import pytest

from tests.k8s.conftest import Resource, render
from tests.pods import walk
from tests.pods.manifests import NOT_FOR_PODMAN, NotPlayableError, playable

PLAYS = playable(render("dev"))
TEMPLATES = {each["metadata"]["name"]: each["spec"]["template"] for each in render("dev") if "template" in each.get("spec", {})}


def test_every_workload_of_the_overlay_is_played_the_database_first_and_then_the_migration() -> None:
    assert {workload.name for workload in PLAYS.workloads} == TEMPLATES.keys()
    assert [workload.name for workload in PLAYS.workloads][:2] == ["tenure-postgres", "tenure-migrate"]


def test_a_pod_is_its_template_but_for_probes_ports_volumes_and_the_image_of_postgres() -> None:
    for workload in PLAYS.workloads:
        played, wished = workload.pod(), TEMPLATES[workload.name]
        assert played["metadata"] == {**wished["metadata"], "name": workload.name}
        spec: dict[str, Any] = copy.deepcopy(played["spec"])
        for container, expected in zip(spec["containers"], wished["spec"]["containers"], strict=True):
            assert not NOT_FOR_PODMAN.keys() & container.keys()
            container.update({field: expected[field] for field in NOT_FOR_PODMAN if field in expected})
            if workload.name == "tenure-postgres":
                assert container["image"].startswith("localhost/")
                assert [each["name"] for each in container["volumeMounts"]] == [
                    "data",
                    "tenure-postgres-run",
                    "tenure-postgres-tmp",
                ]
                container.update(image=expected["image"], volumeMounts=expected["volumeMounts"])
                assert spec.pop("volumes") == [
                    {"name": "tenure-postgres-run", "emptyDir": {}},
                    {"name": "tenure-postgres-tmp", "emptyDir": {}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data-tenure-postgres-0"}},
                ]
                spec["volumes"] = wished["spec"]["volumes"]
        assert spec == wished["spec"]


def test_pods_of_one_workload_differ_by_their_name_alone() -> None:
    (store,) = [workload for workload in PLAYS.workloads if workload.name == "tenure-store"]
    one, other = store.pod("a"), store.pod("b")
    assert one["metadata"]["name"] == "a"
    assert other == {**one, "metadata": {**one["metadata"], "name": "b"}}


def test_every_secret_config_and_claim_that_a_pod_names_is_there() -> None:
    there = {other["metadata"]["name"] for other in PLAYS.others} | PLAYS.secrets.keys()
    for workload in PLAYS.workloads:
        spec = workload.pod()["spec"]
        for volume in spec.get("volumes", ()):
            named = volume.get("configMap", {}).get("name") or volume.get("persistentVolumeClaim", {}).get("claimName")
            assert "emptyDir" in volume or named in there, volume
        for one in spec["containers"][0].get("env", ()):
            assert "valueFrom" not in one or one["valueFrom"]["secretKeyRef"]["name"] in there, one


def test_whatever_is_not_played_is_told() -> None:
    played = {f"ConfigMap {other['metadata']['name']}" for other in PLAYS.others}
    told = "\n".join(PLAYS.changes)
    for resource in render("dev"):
        name = f"{resource['kind']} {resource['metadata']['name']}"
        assert name in played or name in told, name


def test_what_nobody_knows_how_to_play_is_refused() -> None:
    unknown: Resource = {"kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {}}
    with pytest.raises(NotPlayableError, match="DaemonSet a"):
        playable([unknown])


def test_the_walk_of_the_readme_is_found_and_names_what_there_is() -> None:
    trial, end = walk.commands()
    targets = set(re.findall(r"^([a-z0-9-]+):", (walk.ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for line in re.findall(r"^make (.*)$", trial, re.MULTILINE) for target in line.split()}
    assert {"image-tools", "pod-tools", "images-local", "pods"} <= named <= targets
    assert "podman kube play" in trial
    assert "podman pod kill" in trial
    for made in re.findall(r"podman (network|secret) create (\S+)", trial):
        assert re.search(rf"podman {made[0]} rm .*{made[1]}", end), made
