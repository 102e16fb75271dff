"""What every overlay keeps to, whatever is changed in it."""

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
from cloudcoil.models.cert_manager import v1 as cert_manager
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus

from tests.k8s import models
from tests.k8s.conftest import K8S, TRACED, Resource, named, render, templates

VERSIONS = ("1.32.0", "1.37.0")
"""The oldest Kubernetes that is still supported, and the newest."""
MODELS: dict[tuple[str, str], Any] = {
    ("cert-manager.io/v1", "Certificate"): cert_manager.Certificate,
    ("cert-manager.io/v1", "Issuer"): cert_manager.Issuer,
    ("keda.sh/v1alpha1", "ScaledObject"): keda.ScaledObject,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): prometheus.ServiceMonitor,
    ("monitoring.coreos.com/v1", "PodMonitor"): prometheus.PodMonitor,
    ("monitoring.coreos.com/v1", "PrometheusRule"): prometheus.PrometheusRule,
    ("postgresql.cnpg.io/v1", "Cluster"): models.Cluster,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): models.HTTPRoute,
}
OURS = re.compile(r"Deployment/tenure-(store|bridge|worker)")


def is_custom(resource: Resource) -> bool:
    group = resource["apiVersion"].rpartition("/")[0]
    return ("." in group and not group.endswith(".k8s.io")) or resource["kind"] == "HTTPRoute"


def pods(resources: tuple[Resource, ...]) -> Iterator[tuple[str, Any, Any]]:
    """Name, pod template and pod spec of whatever runs pods."""
    for name, template in templates(resources):
        yield name, template, template["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_one_of_kubernetes_to_the_letter(resources: tuple[Resource, ...], version: str) -> None:
    for resource in resources:
        if not is_custom(resource):
            kubernetes_validate.validate(dict(resource), version, strict=True)


def test_every_custom_resource_is_as_its_model_says(resources: tuple[Resource, ...]) -> None:
    for resource in resources:
        if is_custom(resource):
            model = MODELS[resource["apiVersion"], resource["kind"]].model_validate(resource)
            again = model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
            assert again["spec"] == resource["spec"], f"{named(resource)} has what its model does not know"


def test_pods_run_without_rights_that_they_do_not_need(resources: tuple[Resource, ...]) -> None:
    for name, _, spec in pods(resources):
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
        assert not [volume for volume in spec.get("volumes", ()) if "hostPath" in volume], name


def test_the_cluster_refuses_pods_with_more_rights(resources: tuple[Resource, ...]) -> None:
    (namespace,) = [each for each in resources if each["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    inside = {named(each) for each in resources if each["metadata"].get("namespace") == namespace["metadata"]["name"]}
    assert {name for name, _, _ in pods(resources)} <= inside


def test_service_links_set_no_variables_of_ours(resources: tuple[Resource, ...]) -> None:
    for name, _, spec in pods(resources):
        assert spec["enableServiceLinks"] is False, f"{name}: a Service tenure-store would set TENURE_STORE_PORT"


def test_liveness_asks_nobody_else(resources: tuple[Resource, ...]) -> None:
    for name, _, spec in pods(resources):
        for container in spec["containers"]:
            if OURS.fullmatch(name):
                for probe in ("livenessProbe", "startupProbe"):  # a node starts anew who fails one of them
                    assert container.get(probe, container["livenessProbe"])["httpGet"]["path"] == "/livez", f"{name} {probe}"
                assert container["readinessProbe"]["httpGet"]["path"] == "/readyz", name


def test_a_store_waits_for_its_database_and_its_schema(resources: tuple[Resource, ...]) -> None:
    """So the migration has its order: whoever comes first, no store serves before it is done, and none is started anew."""
    (spec,) = [spec for name, _, spec in pods(resources) if name == "Deployment/tenure-store"]
    assert {"name": "TENURE_STORE_WAIT_FOR_DATABASE", "value": "true"} in spec["containers"][0]["env"]


def test_the_grace_is_longer_than_the_drain(resources: tuple[Resource, ...]) -> None:
    for name, _, spec in pods(resources):
        variables = {one["name"]: one.get("value", "") for one in spec["containers"][0].get("env", ())}
        drain = sum(float(value) for key, value in variables.items() if "_DRAIN_" in key)
        assert spec.get("terminationGracePeriodSeconds", 30) > drain, name


def test_secrets_are_named_and_never_written(resources: tuple[Resource, ...], overlay: str) -> None:
    for name, _, spec in pods(resources):
        for container in spec["containers"]:
            for one in container.get("env", ()):
                if re.search(r"DSN|PASSWORD|KEYS$|TOKEN$|ACCESS_KEY", one["name"]):
                    assert "secretKeyRef" in one.get("valueFrom", {}), f"{name} {one['name']}"
    if overlay != "dev":
        assert not [named(resource) for resource in resources if resource["kind"] == "Secret"]


def test_nothing_is_reached_but_what_is_named(resources: tuple[Resource, ...]) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in resources if each["kind"] == "NetworkPolicy"}
    default = policies["tenure-default"]
    assert default["podSelector"] == {}
    assert sorted(default["policyTypes"]) == ["Egress", "Ingress"]
    assert "ingress" not in default
    for name, policy in policies.items():
        assert all("from" in rule for rule in policy.get("ingress", ())), name


def test_every_selector_finds_its_pods(resources: tuple[Resource, ...]) -> None:
    labels = [template["metadata"]["labels"] for _, template, _ in pods(resources)]
    for resource in resources:
        selector = resource.get("spec", {}).get("selector", {})
        wanted = selector.get("matchLabels", selector) if isinstance(selector, dict) else {}
        if resource["kind"] in ("Service", "Deployment", "PodDisruptionBudget") and wanted:
            assert any(wanted.items() <= have.items() for have in labels), named(resource)


def test_every_config_and_claim_that_a_pod_mounts_is_there_or_is_told(resources: tuple[Resource, ...]) -> None:
    there = {named(resource) for resource in resources}
    told = (K8S / "README.md").read_text()
    for resource in resources:
        if resource["kind"] == "Certificate":
            there.add(f"Secret/{resource['spec']['secretName']}")
        if resource["kind"] == "Cluster":  # its operator makes it
            there.add(f"Secret/{resource['metadata']['name']}-ca")
    for name, _, spec in pods(resources):
        wanted = set()
        for volume in spec.get("volumes", ()):
            if "configMap" in volume:
                wanted.add(f"ConfigMap/{volume['configMap']['name']}")
            if "secret" in volume:
                wanted.add(f"Secret/{volume['secret']['secretName']}")
        for container in spec["containers"]:
            for one in container.get("env", ()):
                if reference := one.get("valueFrom", {}).get("secretKeyRef"):
                    wanted.add(f"Secret/{reference['name']}")
        for each in wanted - there:
            assert re.search(rf"[ `]{each.partition('/')[2]}[ `]", told), f"{name} needs {each}, and no one says so"


def test_production_has_two_of_everything_spread_and_kept() -> None:
    resources = render("production")
    scaled = {each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in resources
              if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")}  # fmt: skip
    kept = {each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] for each in resources
            if each["kind"] == "PodDisruptionBudget"}  # fmt: skip
    for resource in resources:
        if resource["kind"] == "Deployment":
            name, spec = resource["metadata"]["name"], resource["spec"]
            if name in scaled:
                assert "replicas" not in spec, f"{name}: each apply would undo what its scaler did"
            scaler = scaled.get(name, {})
            assert scaler.get("minReplicas", scaler.get("minReplicaCount", spec.get("replicas"))) >= 2, name
            assert name in kept, name
            keys = {one["topologyKey"] for one in spec["template"]["spec"]["topologySpreadConstraints"]}
            assert keys == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}, name
            assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}, name
    (service,) = [each for each in resources if named(each) == "Service/tenure-store"]
    assert service["spec"]["clusterIP"] == "None", "gRPC's clients must see every store"


def test_traces_are_on_everywhere_and_reach_their_collector_and_nobody_else() -> None:
    resources = render(TRACED)
    (settings,) = [each for each in resources if named(each) == "ConfigMap/tenure-traces"]
    for name, _, spec in pods(resources):
        (container, *_) = spec["containers"]
        wanted = [{"configMapRef": {"name": "tenure-traces"}}] if OURS.fullmatch(name) else []
        assert container.get("envFrom", []) == wanted, name
        on = [one["value"] for one in container.get("env", ()) if one["name"].endswith("_TRACES")]
        assert on == (["true"] if name in ("Deployment/tenure-store", "Deployment/tenure-bridge") else []), name
    (policy,) = [each for each in resources if named(each) == "NetworkPolicy/tenure-traces"]
    (rule,) = policy["spec"]["egress"]
    assert rule["ports"] == [{"port": int(settings["data"]["OTEL_EXPORTER_OTLP_ENDPOINT"].rpartition(":")[2])}]


def test_bridges_scale_by_their_cpu_and_workers_by_the_work_that_waits_and_its_age() -> None:
    resources = {named(each): each["spec"] for each in render("production") if "spec" in each}
    scaler = resources["HorizontalPodAutoscaler/tenure-bridge"]
    assert scaler["scaleTargetRef"]["name"] == "tenure-bridge"
    assert [metric["resource"]["name"] for metric in scaler["metrics"]] == ["cpu"]
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]
    scaled = resources["ScaledObject/tenure-worker"]
    assert scaled["scaleTargetRef"] == {"name": "tenure-worker"}
    queries = [trigger["metadata"]["query"] for trigger in scaled["triggers"]]
    assert queries == ['max(tenure_store_tasks{state="ready"})', "max(tenure_store_oldest_ready_seconds)"]


def test_clients_find_each_store_by_itself_and_new_ones_within_minutes() -> None:
    resources = render("production")
    (service,) = [each for each in resources if named(each) == "Service/tenure-store"]
    assert service["spec"]["clusterIP"] == "None"
    for name, _, spec in pods(resources):
        variables = {one["name"]: one.get("value", "") for one in spec["containers"][0].get("env", ())}
        for address in (variables[key] for key in ("TENURE_BRIDGE_STORE", "STORE") if key in variables):
            assert address == "dns:///tenure-store:7233", f"{name}: gRPC would take one address of them"
        if name == "Deployment/tenure-store":
            assert 60 <= int(variables["TENURE_STORE_MAX_CONNECTION_AGE_SECONDS"]) <= 600


def test_a_pod_that_goes_serves_on_while_it_leaves_the_endpoints() -> None:
    """There is no shell for a preStop to sleep in: the processes pause by themselves."""
    for name, _, spec in pods(render("production")):
        variables = {one["name"]: one.get("value", "") for one in spec["containers"][0].get("env", ())}
        pauses = [float(value) for key, value in variables.items() if key.endswith("_DRAIN_PAUSE_SECONDS")]
        assert len(pauses) == (1 if re.search(r"Deployment/tenure-(store|bridge)", name) else 0), name
        assert all(pause >= 2 * spec["containers"][0]["readinessProbe"]["periodSeconds"] for pause in pauses), name


def test_who_asks_postgres_knows_it_by_its_authority_and_cannot_read_the_key() -> None:
    asking = {"Deployment/tenure-store", "Job/tenure-migrate", "CronJob/tenure-epoch-keep", "CronJob/tenure-epoch-bump"}
    for name, _, spec in pods(render("production")):
        mounted = {one["name"]: one["mountPath"] for one in spec["containers"][0].get("volumeMounts", ())}
        secrets = {one["name"]: one["secret"] for one in spec.get("volumes", ()) if "secret" in one}
        assert ("postgres-ca" in mounted) == (name in asking), name
        if name in asking:
            assert mounted["postgres-ca"] == "/etc/tenure/postgres"
            assert secrets["postgres-ca"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], name


def test_what_an_operator_runs_waits_for_him() -> None:
    for resource in render("production"):
        if resource["kind"] == "CronJob":
            assert resource["spec"]["suspend"] is True, named(resource)


def test_every_alarm_has_its_entry_in_the_runbook() -> None:
    (rules,) = [each for each in render("production") if each["kind"] == "PrometheusRule"]
    told = (K8S / "README.md").read_text()
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            assert f"### {rule['alert']}\n" in told, rule["alert"]
            assert rule["annotations"]["runbook"] == f"k8s/README.md#{rule['alert'].lower()}"
