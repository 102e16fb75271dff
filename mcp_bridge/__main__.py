"""`tenure-bridge`, or `python -m mcp_bridge`: serve | stdio | doctor | check-config | dev-token."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path

from mcp_bridge.access.config_files import ConfigFileError
from mcp_bridge.access.issuers import load_issuers
from mcp_bridge.access.routes_file import load_routes
from mcp_bridge.app import Bridge, StdioBridge
from mcp_bridge.config import Config, check_development, read_config
from mcp_bridge.development import NotForTrials, Trial, issue_token
from mcp_bridge.doctor import examine
from mcp_bridge.lines import Lines, own_pipes
from store_service.settings import ConfigError
from store_service.telemetry import TracesNotInstalled, configure_logs, settle_garbage
from store_service.telemetry.findings import add_output, tell_findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tenure-bridge", description="MCP over the task store. Settings are read from TENURE_BRIDGE_*."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve MCP until SIGTERM; TENURE_BRIDGE_ROUTES is required")
    commands.add_parser("stdio", help="serve the host that starts it, over standard input and output")
    doctor = commands.add_parser(
        "doctor", help="say what is wrong with the settings, the store and the issuers, and what to do"
    )
    add_output(doctor)
    check = commands.add_parser("check-config", help="check a route file and tell everything that is wrong with it")
    check.add_argument("file", help="the route file")
    check.add_argument("--issuers", metavar="FILE", help="check an issuer file too, as a bridge on loopback would")
    _add_dev_token(commands.add_parser("dev-token", help="make a token for trials on this machine"))
    options = parser.parse_args(arguments)
    try:
        if options.command == "check-config":
            return _check(options.file, options.issuers)
        if options.command == "dev-token":
            check_development(os.environ)
            return _issue(options)
        config = read_config(os.environ)
        configure_logs(
            level=config.log_level, format="json" if config.log_format == "json" else "console", traces=config.traces
        )
        if options.command == "doctor":
            return _run(tell_findings(examine(config), options.output))
        return _run(_serve_host(config) if options.command == "stdio" else _serve(config))
    except ConfigFileError as error:
        print(error, file=sys.stderr)
    except (ConfigError, NotForTrials, TracesNotInstalled, OSError) as error:
        print(f"tenure-bridge: {error}", file=sys.stderr)
    return 1


def _check(file: str, issuers: str | None) -> int:
    routes = load_routes(file)
    tools = sum(len(tenant) for tenant in routes.tenants.values())
    if issuers is not None:
        load_issuers(issuers, on_loopback=True)
    cells = f" in {len(routes.used_cells())} cells" if routes.cells else ""
    print(f"{file}: {tools} tools of {len(routes.tenants)} tenants{cells}, all well")
    return 0


def _add_dev_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", default="dev", help="default: dev")
    parser.add_argument("--subject", default="dev", help="whom it stands for; default: dev")
    parser.add_argument("--scope", action="append", default=[], help="a scope, or several with spaces between")
    parser.add_argument("--group", action="append", default=[], help="a group that the subject is in")
    parser.add_argument("--audience", default="http://127.0.0.1:8080/mcp", help="default: %(default)s")
    parser.add_argument("--minutes", type=int, default=60, help="how long it is good; default: 60")
    parser.add_argument("--folder", type=Path, default=Path(".tenure/issuer"), help="where its key is; default: %(default)s")


def _issue(options: argparse.Namespace) -> int:
    trial = Trial(
        tenant=options.tenant,
        subject=options.subject,
        scopes=" ".join(options.scope).split(),
        groups=options.group,
        audience=options.audience,
        minutes=options.minutes,
    )
    print(issue_token(options.folder, trial))
    print(f"believed with TENURE_BRIDGE_ISSUERS={options.folder / 'issuers.yaml'}", file=sys.stderr)
    return 0


def _run(work: Coroutine[object, object, int]) -> int:
    try:
        import uvloop  # noqa: PLC0415 (not there on Windows)
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


async def _serve(config: Config) -> int:
    stop, loop = _stop_signal(), asyncio.get_running_loop()
    bridge = Bridge(config)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        loop.add_signal_handler(signal.SIGHUP, bridge.reload_routes)
    await bridge.start()
    settle_garbage()
    await stop.wait()
    await bridge.stop()
    return 0


async def _serve_host(config: Config) -> int:
    source, sink = own_pipes()
    await StdioBridge(config).serve(Lines(source, sink), _stop_signal())
    return 0


def _stop_signal() -> asyncio.Event:
    """Set once the process is asked to end."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


if __name__ == "__main__":
    sys.exit(main())
