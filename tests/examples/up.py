"""`make up`: Postgres, the store, the bridge and a worker, until you stop them. What was done is kept for the next time."""

import json
import os
import shlex
import signal
import sys
import threading
from pathlib import Path

from mcp_bridge.client.transport import write_request
from store_service.embedded import EmbeddedPostgresError
from tests.pair import ROOT, Pair, PairError

EXAMPLE = Path(__file__).parent / "durable_report"
WORKER = "tests.examples.durable_report.report"


def main() -> int:
    """Starts all, tells how to use it, and waits for Ctrl-C. Reads PORT, ROUTES and FOLDER."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    routes = Path(os.environ.get("ROUTES", EXAMPLE / "routes.yaml"))
    folder = Path(os.environ.get("FOLDER", ROOT / ".tenure" / "up"))
    try:
        with Pair(folder, routes=routes, mcp_port=int(os.environ.get("PORT", "8080"))) as pair:
            pair.start_worker("worker-a", WORKER)
            print(_how_to_use(pair, folder), flush=True)
            stop.wait()
            print("stopping", flush=True)
    except (PairError, EmbeddedPostgresError) as error:
        print(f"make up failed: {error}", file=sys.stderr)
        return 1
    return 0


def _how_to_use(pair: Pair, folder: Path) -> str:
    params = {"name": "durable_report", "arguments": {"group_by": "island", "seconds_per_step": 0.5}}
    headers, body = write_request(
        "tools/call", params, request_id=1, capabilities={}, client_info={"name": "curl", "version": "1"}
    )
    headers["Accept"] = "application/json"  # one JSON to read, where a client would get a stream of events
    curl = " ".join(["curl -s", pair.url, *(f"-H {shlex.quote(f'{key}: {value}')}" for key, value in headers.items())])
    config = {"mcpServers": {"tenure": {"type": "http", "url": pair.url}}}
    return f"""
Tenure is up.

MCP        {pair.url}
store      {pair.store_address} (gRPC; workers connect here)
logs       {folder}

Call the tool:

  {curl} -d {shlex.quote(json.dumps(body))}

or by this repository's own client, which waits for the task:

  .venv/bin/tenure call durable_report --arg group_by=island --url {pair.url}

For your client's configuration:

  {json.dumps(config)}

Stop with Ctrl-C. Tasks are kept and go on at the next `make up`; remove the folder to forget them."""


if __name__ == "__main__":
    sys.exit(main())
