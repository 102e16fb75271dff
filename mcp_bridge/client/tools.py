"""The tools that a server lists: which may be called, what their calls repeat in headers, what they may answer."""

from dataclasses import dataclass, field
from typing import Self

from jsonschema_rs import Draft202012Validator, ReferencingError, RegexOptions
from msgspec import UNSET

from mcp_bridge.client.errors import InvalidResult, ToolRefused
from mcp_bridge.client.headers import follow
from mcp_bridge.client.messages import Tool, ToolResult
from mcp_bridge.wire.mirrored import Mirrored

_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool, read."""

    tool: Tool
    mirrored: Mirrored
    validator: Draft202012Validator | None
    """Checks structured content; None where there is no output schema that can be used without fetching anything."""

    @classmethod
    def read(cls, tool: Tool) -> Self:
        """Reads a tool's schemas. Nothing they refer to is ever fetched. Raises ValueError for a bad `x-mcp-header`."""
        return cls(tool, follow(tool.input_schema), _compile(tool.output_schema))

    def check(self, result: ToolResult) -> None:
        """Raises InvalidResult unless the result keeps to the output schema. What is an error need not."""
        if self.validator is None or result.is_error:
            return
        content = result.structured_content
        if content is UNSET:
            raise InvalidResult(self.tool.name, "there is no structuredContent")
        fault = next(iter(self.validator.iter_errors(content)), None)
        if fault is not None:
            path = "/".join(str(step) for step in fault.instance_path)
            raise InvalidResult(self.tool.name, f"at /{path}: {fault.message[:_REASON_CHARACTERS]}")


@dataclass(frozen=True, slots=True)
class Tools:
    """All tools of one listing."""

    listed: dict[str, ListedTool] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Tools that are not called, each with the reason."""

    @classmethod
    def read(cls, tools: list[Tool]) -> Self:
        """Reads a listing. A tool that breaks a rule is set apart, the others stay usable."""
        read = cls()
        for tool in tools:
            try:
                read.listed[tool.name] = ListedTool.read(tool)
            except ValueError as error:
                read.refused[tool.name] = str(error)
        return read

    def find(self, name: str) -> ListedTool | None:
        """The tool of that name; None where the server does not list it. Raises ToolRefused."""
        if name in self.refused:
            raise ToolRefused(name, self.refused[name])
        return self.listed.get(name)


def _compile(schema: dict[str, object] | None) -> Draft202012Validator | None:
    if schema is None:
        return None
    try:
        return Draft202012Validator(schema, pattern_options=RegexOptions(), offline=True)
    except (ValueError, ReferencingError):
        return None
