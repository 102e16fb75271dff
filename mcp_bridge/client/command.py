"""`tenure`: tools | call | task get, why, watch, answer, cancel. Exit codes are in `EXIT_CODES` and in the README."""

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from mcp_bridge.client.answers import capabilities_of
from mcp_bridge.client.client import TaskClient
from mcp_bridge.client.display import Display, read_value
from mcp_bridge.client.errors import (
    ClientError,
    DeadlineExceeded,
    HandleExpired,
    InputNeeded,
    InvalidResult,
    ProtocolFailure,
    TaskCancelled,
    TaskFailed,
    ToolRefused,
    TransportError,
)
from mcp_bridge.client.messages import TaskHandle
from mcp_bridge.client.transport import Token

DEFAULT_URL: Final = "http://127.0.0.1:8080/mcp"
DONE: Final = 0
WENT_WRONG: Final = 1
USAGE: Final = 2
EXIT_CODES: Final = MappingProxyType(
    {
        TaskFailed: WENT_WRONG,
        TaskCancelled: WENT_WRONG,
        InputNeeded: 3,
        ProtocolFailure: 4,
        ToolRefused: 4,
        InvalidResult: 4,
        HandleExpired: 5,
        DeadlineExceeded: 6,
        TransportError: 7,
    }
)
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141


class _UsageError(ValueError):
    """The command line says something that cannot be done."""


class _Interrupted(Exception):  # noqa: N818 (it says what happened)
    """Somebody stopped the command while it waited for a task."""

    def __init__(self, handle: TaskHandle) -> None:
        super().__init__(f"interrupted; task {handle.task_id} goes on; come back by `tenure task watch {handle.task_id}`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name. Returns the exit code."""
    options = _parser().parse_args(arguments)
    as_json = options.output == "json" or (options.output is None and not sys.stdout.isatty())
    display = Display(as_json=as_json, server=options.url)
    try:
        return asyncio.run(_run(options, display))
    except (_UsageError, ValueError) as error:
        display.trouble(str(error))
        return USAGE
    except ClientError as error:
        display.trouble(_told(error))
        return EXIT_CODES[type(error)]
    except _Interrupted as interrupted:
        display.trouble(str(interrupted))
        return INTERRUPTED
    except KeyboardInterrupt:
        display.trouble("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has left: let nothing more be written at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED


async def _run(options: argparse.Namespace, display: Display) -> int:
    answers = {"elicitation/create": display.ask}
    is_interactive = sys.stdin.isatty() and sys.stderr.isatty()
    async with TaskClient(
        options.url,
        token=_token(options),
        capabilities=capabilities_of(answers),  # elsewhere a task's questions wait for `tenure task answer`
        handlers=answers if is_interactive else {},
    ) as client:
        match options.command, getattr(options, "action", None):
            case "tools", _:
                display.tools(await client.list_tools())
                return DONE
            case "call", _:
                return await _call(client, options, display)
            case "task", "watch":
                return await _watch(client, options, display)
            case "task", "get":
                display.snapshot(await client.get_task(_handle(options)))
                return DONE
            case "task", "why":
                display.why(await client.explain_task(_handle(options)))
                return DONE
            case "task", "answer":
                await client.update_task(_handle(options), {options.key: _response(options)})
                return DONE
            case _:
                await client.cancel_task(_handle(options))
                return DONE


async def _call(client: TaskClient, options: argparse.Namespace, display: Display) -> int:
    arguments = await _arguments(client, options)
    deadline = _deadline(options)
    async with display.waiting():
        outcome = await client.call_tool_outcome(
            options.tool, arguments, idempotency_key=options.key, progress=display.progress, deadline=deadline
        )
        if isinstance(outcome, TaskHandle):
            if options.task:
                display.handle(outcome)
                return DONE
            with _interruptible(outcome):
                outcome = await client.wait_task(outcome, deadline=deadline, on_change=display.change)
    display.result(outcome)
    return WENT_WRONG if outcome.is_error else DONE


async def _watch(client: TaskClient, options: argparse.Namespace, display: Display) -> int:
    """Every change as it comes; ends as the task does."""
    handle = _handle(options)
    with _interruptible(handle):
        async with display.waiting():
            async for snapshot in client.listen_tasks([handle]):
                display.snapshot(snapshot)
                if snapshot.is_terminal:
                    is_well = snapshot.status == "completed" and snapshot.result is not None and not snapshot.result.is_error
                    return DONE if is_well else WENT_WRONG
                display.change(snapshot)
    return DONE


@contextmanager
def _interruptible(handle: TaskHandle) -> Iterator[None]:
    """Tells how to come back to the task that was waited for when somebody stops the command."""
    try:
        yield
    except asyncio.CancelledError:
        raise _Interrupted(handle) from None


async def _arguments(client: TaskClient, options: argparse.Namespace) -> dict[str, Any]:
    """The tool's arguments: those of `--json-args`, then each `--arg`, read by the type that the tool lists for it."""
    try:
        arguments = msgspec.json.decode(options.json_args, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise _UsageError(f"--json-args: {error}") from None
    if options.arg:
        schemas = {tool.name: tool.input_schema for tool in await client.list_tools()}
        properties = schemas.get(options.tool, {}).get("properties", {})
        for text in options.arg:
            name, equals, value = text.partition("=")
            if not equals:
                raise _UsageError(f"--arg {text}: write name=value")
            arguments[name] = read_value(value, properties.get(name))
    return arguments


def _response(options: argparse.Namespace) -> dict[str, Any]:
    """What `task answer` answers with."""
    if options.action_of_answer != "accept" or options.content is None:
        return {"action": options.action_of_answer}
    try:
        return {"action": "accept", "content": msgspec.json.decode(options.content, type=dict[str, Any])}
    except msgspec.DecodeError as error:
        raise _UsageError(f"--content: {error}") from None


def _handle(options: argparse.Namespace) -> TaskHandle:
    return TaskHandle(options.id, options.url)


def _token(options: argparse.Namespace) -> Token | None:
    """The bearer token; one in a file is read before each request, as it may be renewed there."""
    if options.token_file is None:
        return os.environ.get("TENURE_TOKEN") or None

    async def read() -> str:
        try:
            return (await asyncio.to_thread(Path(options.token_file).read_text)).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _UsageError(f"--token-file {options.token_file}: {error}") from None

    return read


def _deadline(options: argparse.Namespace) -> timedelta | None:
    return None if options.deadline is None else timedelta(seconds=options.deadline)


def _told(error: ClientError) -> str:
    """What went wrong, and what to do next."""
    handle = getattr(error, "handle", None)
    match error:
        case InputNeeded() if handle is not None:
            keys = " ".join(error.requests)
            return f"task {handle.task_id} asks something: see `tenure task get`, answer by `tenure task answer`; open: {keys}"
        case DeadlineExceeded() if handle is not None:
            return f"{error}; come back by `tenure task watch {handle.task_id}`"
        case ProtocolFailure(status=401) | TransportError(status=401):
            return f"{error}; name a bearer token by TENURE_TOKEN or --token-file{_scopes(error.challenge)}"
        case ProtocolFailure(status=403, challenge=str(challenge)):
            return f"{error}{_scopes(challenge)}"
        case _:
            return str(error)


def _scopes(challenge: str | None) -> str:
    """The scopes that a server asks for."""
    found = re.search(r'scope="([^"]+)"', challenge or "")
    return f"; its scopes: {found[1]}" if found else ""


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    usual: dict[str, Any] = {"parents": [shared], "allow_abbrev": False}
    shared.add_argument("--url", default=os.environ.get("TENURE_URL", DEFAULT_URL), help="the MCP endpoint (TENURE_URL)")
    shared.add_argument("--token-file", metavar="FILE", help="has a bearer token; TENURE_TOKEN is one itself")
    shared.add_argument("--output", choices=("text", "json"), help="default: text on a terminal, json elsewhere")
    parser = argparse.ArgumentParser(
        prog="tenure",
        description="Calls durable tools over MCP.",
        epilog="exit codes: 0 done, 1 the tool or its task went wrong, 2 usage, 3 an answer is needed, 4 refused, "
        "5 no such task, 6 deadline, 7 not reached",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tools", **usual, help="list the tools")
    call = commands.add_parser("call", **usual, help="call a tool and wait for its result")
    call.add_argument("tool", metavar="TOOL")
    call.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument; may be repeated")
    call.add_argument("--json-args", default="{}", metavar="JSON", help="arguments as a JSON object")
    call.add_argument("--key", help="an idempotency key: the same call under the same key is done once")
    call.add_argument("--deadline", type=float, metavar="SECONDS", help="how long to wait; a task goes on after it")
    how = call.add_mutually_exclusive_group()
    how.add_argument("--task", action="store_true", help="if it becomes a task, print its handle and leave")
    how.add_argument("--wait", action="store_true", help="wait for the result (the default)")
    task = commands.add_parser("task", help="look at a task, watch, answer or cancel it")
    actions = task.add_subparsers(dest="action", required=True)
    for name, text in (
        ("get", "the task now"),
        ("why", "why it is where it is"),
        ("watch", "every change until it ends"),
        ("cancel", "ask for its end"),
    ):
        actions.add_parser(name, **usual, help=text).add_argument("id", metavar="ID")
    reply = actions.add_parser("answer", **usual, help="answer a question of the task")
    reply.add_argument("id", metavar="ID")
    reply.add_argument("key", metavar="KEY", help="the key of the question")
    reply.add_argument("--content", metavar="JSON", help="the form's content, a JSON object; a page to open has none")
    for name in ("decline", "cancel"):
        reply.add_argument(f"--{name}", dest="action_of_answer", action="store_const", const=name, default="accept")
    return parser


if __name__ == "__main__":
    sys.exit(main())
