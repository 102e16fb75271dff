"""`tenure-store` for operators: task | retention | tombstones | holds | archive | purge. Exit codes: `EPILOG`."""

import argparse
import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc

from store_service.archive.errors import ArchiveError
from store_service.client.errors import StoreError
from store_service.operator import archive, holds, purges, retention, tasks, tombstones
from store_service.operator.connection import Connection, tls_of
from store_service.operator.display import Display
from store_service.operator.leases import Busy
from store_service.settings import ConfigError

DONE: Final = 0
USAGE: Final = 2
REFUSED: Final = 4
NOT_FOUND: Final = 5
NOT_REACHED: Final = 7
ARCHIVE_FAILED: Final = 8
INTERRUPTED: Final = 130
EPILOG: Final = (
    "exit codes: 0 done, 1 something is missing or was changed, 2 usage, 4 refused, 5 no such thing, 7 the store was not "
    "reached, 8 the archive failed"
)
COMMANDS: Final = frozenset({"task", "retention", "tombstones", "holds", "archive", "purge"})
Action = Callable[[Connection, argparse.Namespace, Display], Awaitable[int]]


def add_commands(commands: Any, environment: Mapping[str, str]) -> None:
    """Adds the commands of operators to those of `tenure-store`."""
    usual: dict[str, Any] = {"parents": [_connected(environment)], "allow_abbrev": False, "epilog": EPILOG}
    for name, text, module in (
        ("task", "why a task is where it is", tasks),
        ("retention", "remove what is over, and see what is left to remove", retention),
        ("tombstones", "what became of tasks that were removed", tombstones),
        ("holds", "keep a task, or its tombstone", holds),
        ("archive", "keep tombstones outside of the database, and prove them", archive),
        ("purge", "forget tombstones for good, by two persons", purges),
    ):
        actions = commands.add_parser(name, help=text).add_subparsers(dest="action", required=True)
        module.add_actions(actions, usual)


def main(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Does what was asked for. Returns the exit code."""
    display = Display(as_json=options.output == "json" or (options.output is None and not sys.stdout.isatty()))
    options.environment = environment
    try:
        return asyncio.run(_run(options, display))
    except (ConfigError, ValueError, OSError) as error:
        display.trouble(str(error))
        return USAGE
    except ArchiveError as error:
        display.trouble(f"archive: {error.fault}: {error}")
        return ARCHIVE_FAILED
    except Busy as error:
        display.trouble(str(error))
        return REFUSED
    except StoreError as error:
        display.trouble(_told(error))
        if error.code is grpc.StatusCode.NOT_FOUND:
            return NOT_FOUND
        return NOT_REACHED if error.is_transient else REFUSED
    except KeyboardInterrupt:
        display.trouble("interrupted; what is done is done, and the command may be repeated")
        return INTERRUPTED


async def _run(options: argparse.Namespace, display: Display) -> int:
    tls = tls_of(
        ca=options.ca, certificate=options.certificate, key=options.key, token=options.token_file,
        server_name=options.server_name,
    )  # fmt: skip
    action: Action = options.run
    principal = "" if tls is not None else options.principal or getpass.getuser()
    async with Connection(options.store, tls, principal) as connection:
        try:
            return await action(connection, options, display)
        finally:
            display.settle()


def _connected(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """What every command takes."""
    shared = argparse.ArgumentParser(add_help=False)
    for flag, name, default, text in (
        ("--store", "STORE", "127.0.0.1:7233", "the store's address"),
        ("--ca", "CA", "", "authorities that the store's certificate is checked against; encrypts"),
        ("--certificate", "CERTIFICATE", "", "the file of your certificate"),
        ("--key", "KEY", "", "the file of its key"),
        ("--token-file", "TOKEN", "", "instead of them, the file of a token"),
        ("--server-name", "SERVER_NAME", "", "the name in the store's certificate, where it is not the address"),
    ):
        variable = f"TENURE_OPERATOR_{name}"
        shared.add_argument(flag, default=environment.get(variable, default), help=f"{text} ({variable})", metavar=name)
    shared.add_argument(
        "--principal", help="who you are, where the store does not know it; your login's name, if it is not given"
    )
    shared.add_argument("--output", choices=("text", "json"), help="default: text on a terminal, json elsewhere")
    return shared


def _told(error: StoreError) -> str:
    if error.reason:
        return f"{error.reason}: {error.message}"
    return f"the store was not reached: {error.message}"
