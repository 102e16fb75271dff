"""Each alarm rings when it should and is silent when all is well, by Prometheus' own tool; what alarms and graphs look at is
there, and has no labels of tenants or tasks."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.conftest import K8S

MONITORING = K8S / "components" / "monitoring"
RULES = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
HOURS = 5
WELL = {
    'up{job="tenure-store"}': "1x{n}",
    'up{job="tenure-bridge"}': "1x{n}",
    'tenure_store_calls_total{method="GetTask",outcome="OK"}': "0+600x{n}",
    'tenure_store_calls_total{method="GetTask",outcome="STORAGE_UNAVAILABLE"}': "0+1x{n}",
    'tenure_store_pool_wait_seconds_bucket{le="0.0005"}': "0+600x{n}",
    'tenure_store_pool_wait_seconds_bucket{le="+Inf"}': "0+600x{n}",
    "tenure_store_listen_connected": "1x{n}",
    "tenure_store_other_timeline": "0x{n}",
    "tenure_store_statement_retries_total": "0+1x{n}",
    "tenure_store_oldest_ready_seconds": "4x{n}",
    "tenure_store_oldest_snapshot_seconds": "2x{n}",
    'tenure_worker_tasks_total{outcome="completed"}': "0+600x{n}",
    'tenure_worker_tasks_total{outcome="lease_lost"}': "0+1x{n}",
    "tenure_worker_heartbeat_failures_total": "0x{n}",
    'tenure_bridge_call_seconds_bucket{method="tasks/get",le="0.1"}': "0+600x{n}",
    'tenure_bridge_call_seconds_bucket{method="tasks/get",le="+Inf"}': "0+600x{n}",
    "tenure_store_removable_age_seconds": "60x{n}",
    'tenure_store_cleanup_total{event="removed"}': "0+60x{n}",
    'tenure_store_cleanup_total{event="lease_lost"}': "0x{n}",
    "tenure_store_archive_failures_total": "0x{n}",
    "tenure_store_purges_waiting": "0x{n}",
    "tenure_store_moves_broken_off": "0x{n}",
    "tenure_store_frozen_seconds": "0+6x50 0x{n}",
    'tenure_bridge_cell_reached{cell="default"}': "1x{n}",
    'tenure_bridge_cell_reached{cell="east"}': "1x{n}",
}
"""A day on which all is well, a sample a minute."""
ILL: dict[str, dict[str, str | None]] = {
    "TenureStoreDown": {'up{job="tenure-store"}': "0x{n}"},
    "TenureBridgeDown": {'up{job="tenure-bridge"}': None},
    "TenureStoreFailing": {'tenure_store_calls_total{method="GetTask",outcome="STORAGE_UNAVAILABLE"}': "0+30x{n}"},
    "TenureStorePoolBusy": {
        'tenure_store_pool_wait_seconds_bucket{le="0.0005"}': "0x{n}",
        'tenure_store_pool_wait_seconds_bucket{le="5.0"}': "0+600x{n}",
    },
    "TenureStoreDeaf": {"tenure_store_listen_connected": "0x{n}"},
    "TenureOtherTimeline": {"tenure_store_other_timeline": "1x{n}"},
    "TenureStatementsContend": {"tenure_store_statement_retries_total": "0+120x{n}"},
    "TenureQueueOld": {"tenure_store_oldest_ready_seconds": "400x{n}"},
    "TenureSnapshotOld": {"tenure_store_oldest_snapshot_seconds": "1200x{n}"},
    "TenureWorkersLoseLeases": {'tenure_worker_tasks_total{outcome="lease_lost"}': "0+60x{n}"},
    "TenureHeartbeatsFail": {"tenure_worker_heartbeat_failures_total": "0+30x{n}"},
    "TenureBridgeSlow": {
        'tenure_bridge_call_seconds_bucket{method="tasks/get",le="0.1"}': "0x{n}",
        'tenure_bridge_call_seconds_bucket{method="tasks/get",le="5.0"}': "0+600x{n}",
    },
    "TenureRemovalsLate": {"tenure_store_removable_age_seconds": "7200x{n}"},
    "TenureCleanupLosesLeases": {'tenure_store_cleanup_total{event="lease_lost"}': "0+6x{n}"},
    "TenureArchiveFails": {"tenure_store_archive_failures_total": "0+1x{n}"},
    "TenurePurgesWait": {"tenure_store_purges_waiting": "1x{n}"},
    "TenureMoveBrokenOff": {"tenure_store_moves_broken_off": "1x{n}"},
    "TenureTenantFrozen": {"tenure_store_frozen_seconds": "0+60x{n}"},
    "TenureCellAway": {'tenure_bridge_cell_reached{cell="east"}': "0x{n}"},
}
"""What is otherwise on the day on which each rings; a series that is None is not there."""


def promtool(*arguments: str | Path) -> None:
    """Runs Prometheus' tool."""
    tool = shutil.which("promtool")
    assert tool is not None, "promtool is not there; run `make k8s-tools` as root, or install Prometheus"
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def day(changes: dict[str, str | None]) -> list[dict[str, str]]:
    """A day's series."""
    series = {**WELL, **changes}
    return [{"series": name, "values": values.format(n=HOURS * 60)} for name, values in series.items() if values is not None]


def rings(alert: str) -> list[dict[str, Any]]:
    """The one that rings, as it is told."""
    rule = ALERTS[alert]
    by = {"cell": "east"} if "by (cell)" in rule["expr"] else {}
    return [{"exp_labels": rule["labels"] | by, "exp_annotations": rule["annotations"]}]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The rules as Prometheus reads them, without the operator's envelope."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(RULES))
    return path


def test_every_alarm_has_a_day_on_which_it_rings() -> None:
    assert ILL.keys() == ALERTS.keys()


def test_the_rules_are_rules_of_prometheus(rules: Path) -> None:
    promtool("check", "rules", rules)


@pytest.mark.parametrize("alert", [None, *ALERTS])
def test_the_alarm_that_should_rings_and_no_other(rules: Path, tmp_path: Path, alert: str | None) -> None:
    test = {
        "interval": "1m",
        "input_series": day({} if alert is None else ILL[alert]),
        "alert_rule_test": [
            {"eval_time": f"{HOURS}h", "alertname": name, "exp_alerts": rings(name) if name == alert else []} for name in ALERTS
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", path)


def test_every_graph_asks_what_prometheus_can_answer(tmp_path: Path) -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 30
    rules = [
        {"record": f"graph:{number}", "expr": query.replace("$__rate_interval", "1m")} for number, query in enumerate(asked)
    ]
    path = tmp_path / "graphs.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "graphs", "rules": rules}]}))
    promtool("check", "rules", path)


def test_what_alarms_and_graphs_look_at_is_exported_and_names_no_tenant_and_no_task() -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [rule["expr"] for rule in ALERTS.values()]
    root = K8S.parent
    sources = "".join(path.read_text() for part in ("store_service", "mcp_bridge") for path in (root / part).rglob("*.py"))
    exported = set(re.findall(r'"(tenure_[a-z_]+)"', sources)) | {
        f"tenure_{process}_{what}" for process in ("store", "bridge") for what in ("calls", "call_seconds")
    }
    named = {
        re.sub(r"_(total|bucket|sum|count)$", "", name) for query in queries for name in re.findall(r"tenure_[a-z_]+", query)
    }
    assert named - exported == set()
    assert not re.search(r"tenant|task_id|worker_id", " ".join(queries))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
