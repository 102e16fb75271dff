"""Runs Tenure under faults and judges it: python -m tests.robustness [--seconds 90] [--seed N] [--plan soak]"""

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.pair import ROOT
from tests.robustness.plans import PLANS
from tests.robustness.run import run


def main() -> int:
    """One run. Its folder and its seed are printed first, its report last; it fails if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness")
    parser.add_argument("--plan", choices=PLANS, default="smoke")
    parser.add_argument("--seconds", type=float, help="how long there are faults; the plan's own when left out")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=ROOT / ".tenure" / "robustness")
    parser.add_argument("--pgbouncer", action="store_true", help="with a PgBouncer in the way, which is restarted as well")
    parser.add_argument("--keep", action="store_true", help="keep the database's files too")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if asked.seed is None else asked.seed
    plan = PLANS[asked.plan].behind_pgbouncer() if asked.pgbouncer else PLANS[asked.plan]
    seconds = asked.seconds or plan.seconds
    return asyncio.run(_stoppable(run(plan, seed=seed, seconds=seconds, root=asked.folder, keep=asked.keep)))


async def _stoppable(work: Coroutine[Any, Any, int]) -> int:
    """Ends all that was started when it is asked to end."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(main())
