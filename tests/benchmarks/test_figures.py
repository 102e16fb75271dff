"""What the table says of what was measured."""

import json
from pathlib import Path

import pytest

from tests.benchmarks import peer
from tests.benchmarks.figures import Figure, Target, markdown, table


def figure(sense: Target, ours: list[float], theirs: list[float]) -> Figure:
    return Figure("P0", "polls", "an echo", "limit", sense, "/s", ours, theirs)


@pytest.mark.parametrize(
    ("target", "verdict"),
    [(Target("at least", 2.0), "met"), (Target("at least", 2.1), "NOT MET"), (Target("at most", 1.9), "NOT MET")],
)
def test_the_median_of_the_rounds_decides_whether_a_target_is_met(target: Target, verdict: str) -> None:
    assert figure(target, [10.0, 40.0, 90.0], [10.0, 20.0, 10.0]).verdict == verdict


def test_a_figure_that_was_kept_is_told_as_before() -> None:
    one = figure(Target("at most", 40, " KB"), [26.5, 27.0], [])
    assert table([Figure.from_json(json.loads(json.dumps(one.to_json())))]) == table([one])


def test_a_peer_that_cannot_be_installed_is_a_row_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "FOLDER", tmp_path)
    monkeypatch.setattr(peer, "_UV", Path("/bin/false"))
    one = figure(Target("at least", 30), [], [])
    with pytest.raises(peer.MissingPeerError) as refused:
        peer.python_of("procrastinate")
    one.missing = str(refused.value)
    assert "procrastinate could not be installed" in table([one])
    assert markdown([one]).splitlines()[-1].endswith("| at least 30 | not measured |")
    assert one.to_json()["missing"]
