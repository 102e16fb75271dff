"""`make bench`: how fast Tenure is, against its peers and the limit of the machine, in the same run.

python -m tests.benchmarks [--quick] [P1 P3 ...]
"""

import argparse
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import uvloop

from tests.benchmarks import against_echo, figures, held, machine, workers
from tests.benchmarks.figures import Figure
from tests.benchmarks.plan import FULL, QUICK, Plan
from tests.benchmarks.profile import Profile
from tests.benchmarks.world import World, open_world
from tests.pair import ROOT

Benchmark = Callable[[World, Plan], Awaitable[list[Figure]]]

BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "P1": against_echo.p1,
    "P3": against_echo.p3,
    "P5": workers.p5,
    "P8": held.p8,
    "P11": against_echo.p11,
}


def main() -> int:
    """Runs what is asked for; prints a table and keeps a JSON file."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter rounds, and fewer")
    parser.add_argument("--profile", action="store_true", help="stacks of each process; the figures suffer")
    parser.add_argument("names", nargs="*", metavar="P", help=f"which of {', '.join(BENCHMARKS)}; all when absent")
    options = parser.parse_args()
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    plan, described = QUICK if options.quick else FULL, machine.describe()
    measured: list[Figure] = []
    for name in options.names or BENCHMARKS:
        profile = Profile(ROOT / ".tenure" / "bench" / "profile" / name) if options.profile else None
        with open_world(profile) as world:
            measured += uvloop.run(_run(BENCHMARKS[name], world, plan))
    print(
        f"{described['cpu']}, {described['cores']} cores, Python {described['python']}, load {described['load_before']:.1f}\n"
    )
    print(figures.table(measured))
    for figure in measured:
        print(f"\n{figure.id} {figure.what}\n{figures.details(figure)}")
    folder = ROOT / ".tenure" / "bench"
    kept = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    kept.write_text(json.dumps({"machine": described, "figures": [one.to_json() for one in measured]}, indent=1))
    print(f"\nkept in {kept.relative_to(ROOT)}")
    return 0


async def _run(benchmark: Benchmark, world: World, plan: Plan) -> list[Figure]:
    return await benchmark(world, plan)


if __name__ == "__main__":
    sys.exit(main())
