"""Many subscriptions at once: memory stays flat, descriptors come back, and those who read are served.

With SUBSCRIPTIONS=all (`make subscriptions`): 100 principals with 20 streams each. By default: a few. Cases 64 and 65.
"""

import os
import resource
from pathlib import Path
from typing import Final

import pytest

from tests.system.subscriptions import Crowd, Figures, Plan, authorized_pair

MIB: Final = 1024 * 1024
MOST_IDLE_BYTES: Final = 40_000
SCRAPES: Final = 2
"""Connections on which figures may be read at the time."""
FULL: Final = Plan(principals=100, readers=16)
SMALL: Final = Plan(principals=6, readers=4)
ALL: Final = os.environ.get("SUBSCRIPTIONS") == "all"


@pytest.fixture
def many_descriptors() -> None:
    """As many as the test's own streams need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))


@pytest.mark.usefixtures("many_descriptors")
async def test_many_subscriptions_cost_little_and_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = FULL if ALL else SMALL
    with authorized_pair(tmp_path) as pair:
        figures = await Crowd(pair, tmp_path, plan).run()
    with capsys.disabled():
        print(told(plan, figures))
    early, late = [value for moment, value in figures.resident_bytes.items() if moment.startswith("round")]
    assert late - early < 16 * MIB, "it grows as tasks change"
    assert figures.resident_bytes["idle again"] - figures.resident_bytes["after"] < 16 * MIB, "what was used is used again"
    assert figures.descriptors["idle"] >= plan.streams
    assert figures.descriptors["after"] <= figures.descriptors["before"] + SCRAPES
    assert figures.coalesced > 0 or not figures.slow_snapshots, "those who do not read are told less, or given up"
    assert all(count < figures.changes for count in figures.slow_snapshots)
    if ALL:
        assert figures.idle_bytes(plan.streams) <= MOST_IDLE_BYTES


def told(plan: Plan, figures: Figures) -> str:
    """The figures, for people."""
    moments = ", ".join(f"{moment} {value / MIB:.1f}" for moment, value in figures.resident_bytes.items())
    return (
        f"\n{plan.streams} subscriptions of {plan.principals} principals, {figures.changes} changes of each task: "
        f"{figures.idle_bytes(plan.streams) / 1000:.1f} KB for an idle one\nresident MiB: {moments}\n"
        f"descriptors: {figures.descriptors}\n{figures.coalesced} snapshots were skipped for slow readers, "
        f"of whom {len(figures.slow_snapshots)} came back in time"
    )
