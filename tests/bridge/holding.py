"""Calls that are held until their work has ended."""

import asyncio
from typing import Any

from tests.bridge.client import Answer, Client
from tests.bridge.fake_store import FakeTaskStore

DONE = b'{"content":[{"type":"text","text":"done"}]}'


async def hold(client: Client, fake: FakeTaskStore, tool: str, **others: Any) -> tuple[asyncio.Task[Answer], str]:
    """Calls a tool that is held. Returns the call under way, and its task's id."""
    calling = asyncio.create_task(client.call(tool, **others))
    async with asyncio.timeout(60):
        await fake.watching.wait()
    return calling, list(fake.tasks)[-1]
