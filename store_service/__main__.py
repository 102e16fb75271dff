"""`tenure-store`, or `python -m store_service`: serve | migrate | doctor | epoch | tenant | dev-certs; operators'."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from store_service.archive.errors import ArchiveError
from store_service.config import Config, MoveConfig, read_config, read_move
from store_service.db.migrate import SchemaError, bump_epoch, keep_epoch, migrate
from store_service.db.moves import open_move
from store_service.dev_certs import make_dev_certs
from store_service.doctor import examine
from store_service.model.moves import MoveError
from store_service.model.refusals import Refusal
from store_service.operations.moves import keep_tenant, move_tenant
from store_service.operator import command as operator
from store_service.rpc.policy import PolicyError
from store_service.server import Store
from store_service.settings import ConfigError
from store_service.telemetry import TracesNotInstalled, configure_logs, keep_memory, settle_garbage
from store_service.telemetry.findings import add_output, tell_findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tenure-store",
        description="The task store, and its operators' commands. The store's settings are read from TENURE_STORE_*.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve the API until SIGTERM")
    commands.add_parser("migrate", help="bring the database's schema to this version; safe to repeat and to run side by side")
    doctor = commands.add_parser("doctor", help="say what is wrong with the settings and the database, and what to do")
    add_output(doctor)
    epoch = commands.add_parser("epoch", help="after a restore or a failover")
    epoch.add_argument("action", choices=["bump", "keep"], help="bump: make every lease worthless; keep: nothing was lost")
    _add_tenant(commands.add_parser("tenant", help="move a tenant to another cell, see Past one Postgres in the README"))
    certs = commands.add_parser("dev-certs", help="make certificates and a policy for trials, see the README")
    certs.add_argument("folder", type=Path)
    certs.add_argument("--host", action="append", default=[], metavar="NAME", help="a name of the store besides localhost")
    operator.add_commands(commands, os.environ)
    options = parser.parse_args(arguments)
    if options.command in operator.COMMANDS:
        return operator.main(options, os.environ)
    try:
        if options.command == "dev-certs":
            return _make_dev_certs(options.folder, options.host)
        if options.command == "tenant":
            return _run(_move_tenant(read_move(os.environ), options))
        config = read_config(os.environ)
        configure_logs(
            level=config.log_level, format="json" if config.log_format == "json" else "console", traces=config.traces
        )
        match options.command:
            case "serve":
                return _run(_serve(config))
            case "migrate":
                return _run(_migrate(config))
            case "doctor":
                return _run(tell_findings(examine(config), options.output))
            case _:
                return _run(_bump_epoch(config) if options.action == "bump" else _keep_epoch(config))
    except (
        *(ArchiveError, ConfigError, MoveError, PolicyError, SchemaError, TracesNotInstalled, Refusal),
        *(OSError, ValueError),
    ) as error:
        print(f"tenure-store: {error}", file=sys.stderr)
        return 1


def _add_tenant(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    move = actions.add_parser(
        "move",
        help="move it from the database TENURE_MOVE_FROM_DSN to TENURE_MOVE_TO_DSN, or go on where a move was broken off",
    )
    move.add_argument(
        "--drain-seconds", type=float, default=30.0, help="how long work that is leased may go on before it is taken away (30)"
    )
    stay = actions.add_parser("stay", help="take back a move that has not come to its end")
    for each in (move, stay):
        each.add_argument("tenant_id", metavar="TENANT")


def _run(work: "asyncio._CoroutineLike[int]") -> int:
    try:
        import uvloop  # noqa: PLC0415 (not on every platform)
    except ImportError:
        return asyncio.run(work)  # type: ignore[arg-type]
    return uvloop.run(work)  # type: ignore[arg-type]


def _make_dev_certs(folder: Path, hosts: Sequence[str]) -> int:
    make_dev_certs(folder, hosts=hosts)
    for name, file in (
        ("TLS_CERTIFICATE", "store.crt"),
        ("TLS_KEY", "store.key"),
        ("TLS_CLIENT_CA", "ca.crt"),
        ("POLICY", "policy.yaml"),
    ):
        print(f"export TENURE_STORE_{name}={folder.resolve() / file}")
    return 0


async def _serve(config: Config) -> int:
    keep_memory()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    store = Store(config)
    starting, stopping = asyncio.create_task(store.start_when_possible()), asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # whatever it waits for
        starting.cancel()
        await asyncio.wait((starting,))
        return 0
    await starting
    settle_garbage()
    await stopping
    await store.stop()
    return 0


async def _migrate(config: Config) -> int:
    applied = await migrate(config.dsn)
    for migration in applied:
        print(f"applied {migration.number:04} {migration.phase} {migration.name}")
    print("the schema is current")
    return 0


async def _move_tenant(config: MoveConfig, options: argparse.Namespace) -> int:
    def tell(text: str) -> None:
        print(f"{options.tenant_id}: {text}", flush=True)

    async with open_move(config.from_dsn, config.to_dsn, options.tenant_id) as (source, target):
        if options.action == "move":
            await move_tenant(source, target, drain_seconds=options.drain_seconds, tell=tell)
        else:
            await keep_tenant(source, target, tell=tell)
    return 0


async def _bump_epoch(config: Config) -> int:
    print(f"the epoch is now {await bump_epoch(config.dsn)}; no lease granted before is worth anything")
    return 0


async def _keep_epoch(config: Config) -> int:
    print(f"the epoch is still {await keep_epoch(config.dsn)}; stores serve on this timeline")
    return 0


if __name__ == "__main__":
    sys.exit(main())
