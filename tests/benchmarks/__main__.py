"""`make bench`: how fast Tenure is, against its peers and the limit of the machine, in the same run.

python -m tests.benchmarks [--quick] [--profile] [P1 P3 ...]
"""

import argparse
import contextlib
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import uvloop

from tests.benchmarks import (
    against_echo,
    against_fastmcp,
    claims,
    curve,
    doubled,
    figures,
    held,
    machine,
    open_streams,
    plot,
    starts,
    steady,
    workers,
)
from tests.benchmarks.alone import NotAloneError, alone
from tests.benchmarks.figures import Curve, Figure, Measured
from tests.benchmarks.plan import FULL, QUICK, Plan
from tests.benchmarks.profile import Profile
from tests.benchmarks.world import World, open_world
from tests.pair import ROOT

Benchmark = Callable[[World, Plan], Awaitable[Sequence[Measured]]]

FOLDER: Final = ROOT / ".tenure" / "bench"
BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "P1": against_echo.p1,
    "P2": against_fastmcp.p2,
    "P3": against_echo.p3,
    "P4": against_fastmcp.p4,
    "P5": workers.p5,
    "P6": workers.p6,
    "P7": starts.p7,
    "P8": held.p8,
    "P9": claims.p9,
    "P10": open_streams.p10,
    "P11": against_echo.p11,
    "P12": doubled.p12,
    "P13": steady.p13,
    "curve": curve.curve,
}


def main() -> int:
    """Runs what is asked for; prints a table, keeps a JSON file and draws it. Returns 1 when a benchmark broke, or when another
    run is under way here."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter rounds, and fewer")
    parser.add_argument("--rounds", type=int, help="how many")
    parser.add_argument("--seconds", type=float, help="how long each part of a round is")
    parser.add_argument("--profile", action="store_true", help="flame graphs of each process; the figures suffer")
    parser.add_argument("names", nargs="*", metavar="P", help=f"which of {', '.join(BENCHMARKS)}; all when absent")
    options = parser.parse_args()
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    try:
        with alone(FOLDER):
            return _measure(options)
    except NotAloneError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


class _Run:
    """What came of the benchmarks so far, and how long each took."""

    def __init__(self, plan: Plan, *, profiled: bool) -> None:
        self._plan = plan
        self._profiled = profiled
        self._shares = plan.is_quick and not profiled
        self.measured: list[Measured] = []
        self.broken: list[str] = []
        self.seconds: dict[str, dict[str, float]] = {"pairs": {"all": 0.0}}

    def take(self, left: list[str]) -> None:
        """Takes the first one out of those that are left and runs it in a pair of its own; where rounds are short, all of them
        in one, as long as none breaks."""
        name = left.pop(0)
        try:
            with self._pair(name) as world:
                self._run(name, world)
                while self._shares and left:
                    name = left.pop(0)
                    self._run(name, world)
        except KeyboardInterrupt:
            self.broken.append(f"{name} and all after it, as it was interrupted")
            left.clear()
        except Exception:
            traceback.print_exc()
            self.broken.append(name)

    @contextlib.contextmanager
    def _pair(self, name: str) -> Iterator[World]:
        began = time.monotonic()
        with open_world(Profile(FOLDER / "profile" / name) if self._profiled else None) as world:
            began -= time.monotonic()
            yield world
            began += time.monotonic()
        self.seconds["pairs"]["all"] += time.monotonic() - began

    def _run(self, name: str, world: World) -> None:
        plan, began = replace(self._plan, parts={}), time.monotonic()

        async def run() -> Sequence[Measured]:
            return await BENCHMARKS[name](world, plan)

        try:
            self.measured += uvloop.run(run())
        finally:
            world.stop_others()
            self.seconds[name] = {"all": time.monotonic() - began, **plan.parts}


def _measure(options: argparse.Namespace) -> int:
    plan, described, began = QUICK if options.quick else FULL, machine.describe(), time.monotonic()
    plan = replace(plan, rounds=options.rounds or plan.rounds, seconds=options.seconds or plan.seconds)
    run, left = _Run(plan, profiled=options.profile), list(options.names or BENCHMARKS)
    while left:
        run.take(left)
    seconds = time.monotonic() - began
    described |= {"load_after": machine.load(), "seconds": round(seconds), "rounds": plan.rounds, "parts": run.seconds}
    _tell(run.measured, described)
    kept = FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    kept.write_text(json.dumps(_kept(run.measured, described), indent=1))
    print(f"\nkept in {kept.relative_to(ROOT)}")
    print(plot.draw(kept))
    print(f"seconds: {figures.parts(run.seconds)}; all {time.monotonic() - began:.0f}")
    if run.broken:
        print(f"broke: {', '.join(run.broken)}", file=sys.stderr)
    return 1 if run.broken else 0


def _kept(measured: Sequence[Measured], described: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "machine": described,
        "figures": [one.to_json() for one in measured if isinstance(one, Figure)],
        "curves": [one.to_json() for one in measured if isinstance(one, Curve)],
    }


def _tell(measured: Sequence[Measured], described: Mapping[str, Any]) -> None:
    shown = [one for one in measured if isinstance(one, Figure)]
    print(f"{machine.sentence(described)}\n")
    print(figures.table(shown))
    for figure in shown:
        print(f"\n{figure.id} {figure.what} / {figure.against}\n{figures.details(figure)}")
    for one in measured:
        if isinstance(one, Curve):
            print(f"\n{one.what}\n{figures.points(one)}")


if __name__ == "__main__":
    sys.exit(main())
