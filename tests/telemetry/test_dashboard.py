"""The graphs of k8s/ look at what the services really export."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from store_service.client import Context, Worker
from tests.conftest import bridge_on, serving, started
from tests.pair import ROOT, metrics_at
from tests.telemetry.conftest import ROUTES

MONITORING = ROOT / "k8s" / "components" / "monitoring"


def exported(*ports: int) -> dict[str, str]:
    """The kind of each family, but for those that tell since when another one counts."""
    families = [family for port in ports for family in text_string_to_metric_families(metrics_at(port))]
    return {family.name: family.type for family in families if not family.name.endswith("_created")}


def samples(kinds: dict[str, str]) -> set[str]:
    """The names under which samples are scraped."""
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {f"{name}{end}" for name, kind in kinds.items() for end in ends.get(kind, ("",))}


def graphs() -> list[str]:
    """What graphs ask Prometheus."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def alarms() -> dict[str, str]:
    """What each alarm asks it."""
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    return {rule["alert"]: rule["expr"] for group in rules for rule in group["rules"]}


@pytest.fixture
async def kinds(dsn: str, tmp_path: Path) -> dict[str, str]:
    """What a store, a bridge and a worker export, with everything on that is measured."""
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
            return exported(store.admin_port, bridge.admin_port, worker.admin_port)


def test_every_series_that_graphs_and_alarms_look_at_is_exported_by_a_running_service(kinds: dict[str, str]) -> None:
    asked = {name for query in [*graphs(), *alarms().values()] for name in re.findall(r"\btenure_[a-z_]+", query)}
    assert len(asked) > 25
    assert asked - samples(kinds) == set()


def test_what_the_contract_has_counted_is_exported_and_what_is_exported_stands_in_its_table(kinds: dict[str, str]) -> None:
    table = yaml.safe_load((ROOT / "tests" / "telemetry" / "figures.yaml").read_text())
    named = [name for names in table.values() for name in names]
    assert sorted(named) == sorted(name for name in kinds if name.startswith("tenure_"))
