"""What `tenure` shows: results and snapshots, as text or as JSON; how the work goes, and questions, on a terminal."""

import asyncio
import os
import sys
import time
import unicodedata
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TextIO

import msgspec

from mcp_bridge.client.messages import InputRequest, Progress, TaskHandle, TaskSnapshot, Tool, ToolResult

_CLEAR_LINE = "\r\033[K"
_TICK_SECONDS = 1.0
_COLUMNS = 80


class Display:
    """Prints what was asked for to standard output, and how it goes to standard error, there only on a terminal."""

    def __init__(self, *, as_json: bool, server: str = "", out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._as_json = as_json
        self._server = server
        """Who asks, for a person to know."""
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._is_live = self._err.isatty()
        self._status = ""
        self._is_drawn = False
        self._since = time.monotonic()

    def result(self, result: ToolResult) -> None:
        """A tool's result: its texts, or all of it as one line of JSON."""
        if self._as_json:
            self._json(result)
        else:
            self._line(result.text or _pretty(result))

    def handle(self, handle: TaskHandle) -> None:
        """A task's handle: its id, or all of it as JSON."""
        self._json(handle) if self._as_json else self._line(handle.task_id)

    def snapshot(self, snapshot: TaskSnapshot) -> None:
        """A task as it is: a line of JSON each, or its status, questions and outcome."""
        if self._as_json:
            self._json(snapshot)
            return
        self._line(
            f"{snapshot.task_id}  {snapshot.status}" + (f": {snapshot.status_message}" if snapshot.status_message else "")
        )
        for key, request in snapshot.input_requests.items():
            self._line(f"  {key}  {request.method}: {request.params.get('message', '')}")
            if page := _page(request):
                self._line(f"  {page}")
            self._line(f"  answer by: tenure task answer {snapshot.task_id} {key}{'' if page else ' --content JSON'}")
        if snapshot.error is not None:
            self._line(f"  error {snapshot.error.code}: {snapshot.error.message}")
        if snapshot.result is not None:
            self._line(snapshot.result.text or _pretty(snapshot.result))

    def why(self, text: str) -> None:
        """Why a task is where it is: the sentence, or a line of JSON."""
        if self._as_json:
            self._json({"why": text})
        else:
            self._line(text)

    def tools(self, tools: list[Tool]) -> None:
        """Tools: one line each, or one array of JSON."""
        if self._as_json:
            self._json(tools)
            return
        width = max((len(tool.name) for tool in tools), default=0)
        for tool in tools:
            self._line(f"{tool.name:{width}}  {tool.description or tool.title or ''}".rstrip())

    def progress(self, progress: Progress) -> None:
        """How far a call has come, on one line that is written over."""
        share = f"{progress.progress:g}" if progress.progress is not None else ""
        if share and progress.total:
            share += f"/{progress.total:g}"
        self._live(" ".join(part for part in (share, progress.message or "") if part))

    def change(self, snapshot: TaskSnapshot) -> None:
        """How far a task has come, on one line that is written over."""
        self._live(": ".join(part for part in (snapshot.status, snapshot.status_message or "") if part))

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Shows how the work goes, and for how long, on one line that is written over each second."""
        self._since = time.monotonic()
        ticking = asyncio.create_task(self._tick()) if self._is_live else None
        try:
            yield
        finally:
            if ticking is not None:
                ticking.cancel()
            self.settle()

    def settle(self) -> None:
        """Ends the line that is written over."""
        self._status = ""
        if self._is_drawn:
            self._is_drawn = False
            self._err.write(_CLEAR_LINE)
            self._err.flush()

    def trouble(self, message: str) -> None:
        """What went wrong, to standard error."""
        self.settle()
        self._err.write(f"tenure: {_safe(message)}\n")

    async def ask(self, key: str, request: InputRequest) -> Mapping[str, Any]:
        """Asks the person at the terminal what `elicitation/create` asks, and whether that shall be sent, which is never taken
        for granted. An empty line takes what the form proposes, or leaves a property out; the end of input declines."""
        self.settle()
        page = _page(request)
        while True:
            self._err.write(f"{_safe(self._server)} asks: {_safe(str(request.params.get('message', key)))}\n")
            if page:
                self._err.write(f"{_safe(page)}\n")
            content = {} if page else await self._fill_in(_mapping(request.params.get("requestedSchema")))
            choice = None if content is None else await self._read_line("  send it? (yes/change/decline/cancel): ")
            match choice and choice.strip().lower():
                case "yes" | "y":
                    return {"action": "accept"} if page else {"action": "accept", "content": content}
                case "cancel":
                    return {"action": "cancel"}
                case None | "decline" | "no" | "n":
                    return {"action": "decline"}

    async def _fill_in(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """The values of a form, property by property; None at the end of input."""
        content: dict[str, Any] = {}
        for name, described in _mapping(schema.get("properties")).items():
            wanted = _mapping(described)
            proposed = f" [{_written(wanted['default'])}]" if "default" in wanted else ""
            text = await self._read_line(f"  {name} ({'/'.join(_choices(wanted)) or wanted.get('type', '')}){proposed}: ")
            if text is None:
                return None
            if text:
                content[name] = read_value(text, wanted)
            elif "default" in wanted:
                content[name] = wanted["default"]
        return content

    async def _read_line(self, prompt: str) -> str | None:
        """What a person types; None at the end of input."""
        self._err.write(_safe(prompt).replace("\n", " "))
        self._err.flush()
        line = await asyncio.to_thread(sys.stdin.readline)
        return line.rstrip("\n") if line else None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._live(self._status)

    def _live(self, text: str) -> None:
        self._status = text
        if self._is_live and text:
            line = f"{time.monotonic() - self._since:.0f} s  {_safe(text).replace(chr(10), ' ').expandtabs(1)}"
            self._is_drawn = True
            self._err.write(_CLEAR_LINE + _cut(line, _columns(self._err) - 1))
            self._err.flush()

    def _json(self, value: object) -> None:
        self._write(msgspec.json.encode(value).decode())

    def _line(self, text: str) -> None:
        self._write(_safe(text) if self._out.isatty() else text)

    def _write(self, text: str) -> None:
        status = self._status
        self.settle()
        self._out.write(text + "\n")
        self._out.flush()
        self._status = status  # the next tick shows it again, below


def read_value(text: str, schema: Mapping[str, Any] | None) -> Any:
    """A value of the command line: text where the schema asks for text, otherwise JSON if it is JSON, otherwise text."""
    if schema is not None and schema.get("type") == "string":
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _page(request: InputRequest) -> str:
    """What is said of a page that shall be opened; nothing where a form is asked for."""
    return f"open this yourself if you trust it: {request.params.get('url')}" if request.params.get("mode") == "url" else ""


def _mapping(value: object) -> Mapping[str, Any]:
    """What a stranger says is an object; of anything else, nothing."""
    return value if isinstance(value, dict) else {}


def _choices(wanted: Mapping[str, Any]) -> list[str]:
    """The values that a property of a form may have, if it names them."""
    for chosen in (wanted, _mapping(wanted.get("items"))):
        for keyword in ("enum", "oneOf", "anyOf"):
            if isinstance(values := chosen.get(keyword), list):
                return [_written(_mapping(value).get("const", value)) for value in values]
    return []


def _written(value: object) -> str:
    """A value as it is typed."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _columns(terminal: TextIO) -> int:
    try:
        return os.get_terminal_size(terminal.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def _cut(text: str, columns: int) -> str:
    """As much of a text as fits: a line that is longer could not be written over."""
    for end, mark in enumerate(text):
        columns -= 2 if unicodedata.east_asian_width(mark) in "WF" else 1
        if columns < 0:
            return text[:end]
    return text


def _safe(text: str) -> str:
    """Text of a stranger without what would steer the terminal."""
    return "".join(mark if mark.isprintable() or mark in "\n\t" else "\N{REPLACEMENT CHARACTER}" for mark in text)
