"""A client for durable tools: `TaskClient`. The README beside this file has examples."""

from mcp_bridge.client.answers import Handler, Handlers
from mcp_bridge.client.client import TaskClient
from mcp_bridge.client.errors import (
    ClientError,
    DeadlineExceeded,
    HandleExpired,
    InputNeeded,
    InvalidResult,
    ProtocolFailure,
    TaskCancelled,
    TaskFailed,
    ToolError,
    ToolRefused,
    TransportError,
)
from mcp_bridge.client.messages import (
    Discovery,
    InputRequest,
    Progress,
    TaskFault,
    TaskHandle,
    TaskSnapshot,
    Tool,
    ToolResult,
)
from mcp_bridge.client.policy import Policy

__all__ = [
    "ClientError",
    "DeadlineExceeded",
    "Discovery",
    "HandleExpired",
    "Handler",
    "Handlers",
    "InputNeeded",
    "InputRequest",
    "InvalidResult",
    "Policy",
    "Progress",
    "ProtocolFailure",
    "TaskCancelled",
    "TaskClient",
    "TaskFailed",
    "TaskFault",
    "TaskHandle",
    "TaskSnapshot",
    "Tool",
    "ToolError",
    "ToolRefused",
    "ToolResult",
    "TransportError",
]
