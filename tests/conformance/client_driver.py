"""What the official suite runs as the client: `python client_driver.py URL`, with the scenario in the environment."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from mcp_bridge.client import InputRequest, TaskClient, ToolRefused

INVALID_TOOLS = (
    "invalid_empty_header",
    "invalid_object_header",
    "invalid_array_header",
    "invalid_null_header",
    "invalid_duplicate_same_case",
    "invalid_duplicate_diff_case",
    "invalid_space_in_name",
    "invalid_colon_in_name",
    "invalid_non_ascii_name",
    "invalid_control_char_name",
)


async def confirm(_key: str, _request: InputRequest) -> Mapping[str, Any]:
    """Says yes."""
    return {"action": "accept", "content": {"confirmed": True}}


async def no_roots(_key: str, _request: InputRequest) -> Mapping[str, Any]:
    """Has none."""
    return {"roots": []}


async def no_model(_key: str, _request: InputRequest) -> Mapping[str, Any]:
    """Says nothing of worth."""
    return {"role": "assistant", "content": {"type": "text", "text": ""}, "model": "none"}


async def tools_call(client: TaskClient) -> None:
    await client.discover()
    result = await client.call_tool("add_numbers", {"a": 5, "b": 3})
    assert "8" in result.text, result


async def list_tools(client: TaskClient) -> None:
    await client.discover()
    await client.list_tools()


async def standard_headers(client: TaskClient) -> None:
    for tool in await client.list_tools():
        await client.call_tool(tool.name)


async def custom_headers(client: TaskClient) -> None:
    context = msgspec.json.decode(os.environ["MCP_CONFORMANCE_CONTEXT"])
    for call in context["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


async def invalid_tools(client: TaskClient) -> None:
    """Tries every tool, as an agent would that was told of them elsewhere."""
    assert [tool.name for tool in await client.list_tools()] == ["valid_tool"]
    await client.call_tool("valid_tool", {"region": "eu"})
    for name in INVALID_TOOLS:
        try:
            await client.call_tool(name)
        except ToolRefused:
            continue
        raise AssertionError(f"{name} was called")


async def echo_schema(client: TaskClient) -> None:
    """Sends a schema back as it was listed."""
    schemas = {tool.name: tool.input_schema for tool in await client.list_tools()}
    await client.call_tool("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})


async def request_state(client: TaskClient) -> None:
    async def one(name: str) -> None:
        await client.call_tool(name)

    await asyncio.gather(one("test_mrtr_echo_state"), one("test_mrtr_no_state"), one("test_mrtr_unrelated"))
    await one("test_mrtr_no_result_type")


SCENARIOS: Mapping[str, Callable[[TaskClient], Awaitable[None]]] = MappingProxyType(
    {
        "tools_call": tools_call,
        "request-metadata": list_tools,
        "http-standard-headers": standard_headers,
        "http-custom-headers": custom_headers,
        "http-invalid-tool-headers": invalid_tools,
        "json-schema-ref-no-deref": list_tools,
        "json-schema-2020-12-preservation": echo_schema,
        "sep-2322-client-request-state": request_state,
    }
)


async def main(url: str) -> None:
    """Runs the scenario that the environment names."""
    handlers = {"elicitation/create": confirm, "roots/list": no_roots, "sampling/createMessage": no_model}
    async with TaskClient(url, handlers=handlers) as client:
        await SCENARIOS[os.environ["MCP_CONFORMANCE_SCENARIO"]](client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
