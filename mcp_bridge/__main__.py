"""`tenure-bridge`, or `python -m mcp_bridge`: serve | check-config."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Sequence

from mcp_bridge.access.routes_file import RouteFileError, load_routes
from mcp_bridge.app import Bridge
from mcp_bridge.config import Config, ConfigError, read_config
from store_service.telemetry import configure_logs


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tenure-bridge", description="MCP over the task store. Settings are read from TENURE_BRIDGE_*."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve MCP until SIGTERM; TENURE_BRIDGE_ROUTES is required")
    check = commands.add_parser("check-config", help="check a route file and tell everything that is wrong with it")
    check.add_argument("file", help="the route file")
    options = parser.parse_args(arguments)
    try:
        if options.command == "check-config":
            return _check(options.file)
        config = read_config(os.environ)
        configure_logs(level=config.log_level, format="json" if config.log_format == "json" else "console")
        return _run(_serve(config))
    except RouteFileError as error:
        print(error, file=sys.stderr)
    except (ConfigError, OSError) as error:
        print(f"tenure-bridge: {error}", file=sys.stderr)
    return 1


def _check(file: str) -> int:
    routes = load_routes(file)
    tools = sum(len(tenant) for tenant in routes.tenants.values())
    print(f"{file}: {tools} tools of {len(routes.tenants)} tenants, all well")
    return 0


def _run(work: Coroutine[object, object, int]) -> int:
    try:
        import uvloop  # noqa: PLC0415 (not there on Windows)
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


async def _serve(config: Config) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    bridge = Bridge(config)
    await bridge.start()
    await stop.wait()
    await bridge.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
