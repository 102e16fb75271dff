"""`mcp_bridge.client` at a bridge that checks tokens."""

import asyncio

import pytest

from mcp_bridge.client import Policy, ProtocolFailure, TaskClient, TaskHandle
from mcp_bridge.client.command import main
from tests.bridge.fake_store import FakeTaskStore
from tests.security.conftest import Users

QUICK = Policy(least_poll_ms=5, default_poll_ms=5, most_poll_ms=5, request_seconds=5)


async def test_a_wait_goes_on_with_the_token_of_the_moment(users: Users, fake: FakeTaskStore) -> None:
    given: list[str] = []

    async def current() -> str:
        given.append(users.authority.token())
        return given[-1]

    async with TaskClient(users.user().url, token=current, policy=QUICK) as client:
        handle = await client.call_tool_outcome("report")
        assert isinstance(handle, TaskHandle)
        waiting = asyncio.create_task(client.wait_task(handle))
        async with asyncio.timeout(60):
            while len(given) < 5:
                await asyncio.sleep(0.005)  # the pause between two looks, as the policy has it
        await fake.complete(handle.task_id, b'{"content":[{"type":"text","text":"done"}]}')
        assert (await waiting).text == "done"
    assert len(set(given)) == len(given)


async def test_who_has_no_token_or_too_few_scopes_is_told_what_it_takes(
    users: Users, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = users.user()
    for token, status in ((None, 401), (users.authority.token(expires_in=-60), 401), (client.token, 403)):
        async with TaskClient(client.url, token=token, policy=QUICK) as caller:
            with pytest.raises(ProtocolFailure) as raised:
                await caller.call_tool("publish")
        assert raised.value.status == status
        assert raised.value.challenge is not None
        assert 'scope="' in raised.value.challenge
        assert "resource_metadata=" in raised.value.challenge
    assert client.token is not None
    monkeypatch.setenv("TENURE_TOKEN", client.token)
    assert await asyncio.to_thread(main, ["call", "publish", "--url", client.url]) == 4
    assert capsys.readouterr().err.endswith("; its scopes: reports:write publish\n")
    monkeypatch.delenv("TENURE_TOKEN")
    assert await asyncio.to_thread(main, ["tools", "--url", client.url]) == 4
    assert "name a bearer token by TENURE_TOKEN or --token-file" in capsys.readouterr().err
