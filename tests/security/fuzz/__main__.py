"""`python -m tests.security.fuzz [--bodies N] [--messages N] [--seed N]`: fails if anything breaks or is left behind."""

import argparse
import asyncio
import secrets
import sys

from store_service.telemetry import configure_logs
from tests.security.fuzz.against_bridge import fuzz_bridge
from tests.security.fuzz.against_store import fuzz_store
from tests.security.fuzz.figures import ErrorLog, Run


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=0, help="how many bodies of HTTP the bridge is sent")
    parser.add_argument("--messages", type=int, default=0, help="how many messages of gRPC the store is sent")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    options = parser.parse_args()
    stderr, log = sys.stderr, ErrorLog()
    sys.stderr = log  # as much of a stream as is used
    configure_logs(level="info")
    faults = 0
    try:
        for what, count, fuzz in (("bodies", options.bodies, fuzz_bridge), ("messages", options.messages, fuzz_store)):
            if count:
                log.errors.clear()
                figures = asyncio.run(fuzz(Run(what, count, options.seed, log)))
                faults += len(figures.faults)
                sys.stdout.write(str(figures))
                sys.stdout.flush()
    finally:
        sys.stderr = stderr
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
