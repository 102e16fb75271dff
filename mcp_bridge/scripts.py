"""`tenure-bridge` and `tenure`: each starts its command, or tells what must be installed for it."""

from store_service.scripts import start


def bridge() -> int:
    """The script `tenure-bridge`."""
    return start("tenure-bridge", module="mcp_bridge.__main__", extra="bridge")


def client() -> int:
    """The script `tenure`."""
    return start("tenure", module="mcp_bridge.client.command", extra="client")
