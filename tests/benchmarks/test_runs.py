"""Which benchmarks share a pair, and what a run tells of its seconds."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import __main__ as bench
from tests.benchmarks import plot
from tests.benchmarks.figures import Figure, Measured
from tests.benchmarks.plan import Plan
from tests.benchmarks.profile import Profile


class World:
    """One that has nothing in it."""

    def stop_others(self) -> None:
        """There are none."""


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What ran in each pair: P1, P2 and P3, of which P2 breaks."""
    ran: list[list[str]] = []

    @contextlib.contextmanager
    def open_world(_: Profile | None) -> Iterator[World]:
        ran.append([])
        yield World()

    def benchmark(name: str) -> bench.Benchmark:
        async def measure(_: Any, plan: Plan) -> Sequence[Measured]:
            ran[-1].append(name)
            with plan.part("peer"):
                assert name != "P2", "it broke"
            return [Figure(name, "polls", "an echo", "limit", None, "/s", [1.0], [2.0])]

        return measure

    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(bench, "BENCHMARKS", {name: benchmark(name) for name in ("P1", "P2", "P3")})
    monkeypatch.setattr(bench, "open_world", open_world)
    monkeypatch.setattr(plot, "draw", lambda _: "not drawn")
    return ran


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [["P1"], ["P2"], ["P3"]]),
        (["--quick"], [["P1", "P2"], ["P3"]]),
        (["--quick", "--profile"], [["P1"], ["P2"], ["P3"]]),
    ],
)
def test_short_rounds_share_a_pair_until_one_breaks(
    options: list[str], expected: list[list[str]], pairs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *options])
    assert bench.main() == 1
    assert pairs == expected


def test_a_run_tells_the_seconds_of_each_part(
    pairs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "P1", "P3"])
    assert bench.main() == 0
    assert pairs == [["P1"], ["P3"]]
    (kept,) = tmp_path.glob("*.json")
    seconds = json.loads(kept.read_text())["machine"]["parts"]
    assert seconds.keys() == {"pairs", "P1", "P3"}
    assert seconds["P1"].keys() == {"all", "peer"}
    told = capsys.readouterr().out
    assert re.search(
        r"^seconds: pairs [\d.]+; P1 [\d.]+ \(peer [\d.]+\); P3 [\d.]+ \(peer [\d.]+\); all \d+$", told, re.MULTILINE
    )
