"""The graphs of k8s/ look at what the services really export."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from store_service.client import Context, Worker
from tests.conftest import bridge_on, serving, started
from tests.pair import ROOT, metrics_at
from tests.telemetry.conftest import ROUTES

MONITORING = ROOT / "k8s" / "components" / "monitoring"


def exported(*ports: int) -> dict[str, str]:
    """Each sample's family, and of families without samples all the names that theirs could have."""
    kinds: dict[str, str] = {}
    for port in ports:
        for family in text_string_to_metric_families(metrics_at(port)):
            kinds[family.name] = family.type
    return kinds


def samples(kinds: dict[str, str]) -> set[str]:
    """The names under which samples are scraped."""
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {f"{name}{end}" for name, kind in kinds.items() for end in ends.get(kind, ("",))}


def queries() -> list[str]:
    """What graphs and alarms ask Prometheus."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    return [*asked, *(rule["expr"] for group in rules for rule in group["rules"])]


async def test_every_series_that_graphs_and_alarms_look_at_is_exported_by_a_running_service(dsn: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (tmp_path / "routes.yaml").write_text(ROUTES)
    async with (
        serving(dsn, cleanup=True, archive=str(archive)) as store,
        started(bridge_on(tmp_path / "routes.yaml", store=store.address)) as bridge,
    ):
        worker = Worker(store.address, admin_port=0)

        @worker.workflow("two")
        async def two(_: Context, args: dict[str, Any]) -> dict[str, Any]:
            return args

        async with worker:
            assert worker.admin_port is not None
            kinds = exported(store.admin_port, bridge.admin_port, worker.admin_port)
    asked = {name for query in queries() for name in re.findall(r"\btenure_[a-z_]+", query)}
    assert len(asked) > 25
    assert asked - samples(kinds) == set()
