"""The proxy breaks a connection in just the way that it is told to."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.pair import free_ports
from tests.robustness.proxy import Mode, Proxy

PATIENCE_SECONDS = 20


@dataclass
class Echo:
    """A server that answers each line with itself, and keeps what it heard."""

    heard: list[bytes] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.heard.append(line)
                self.news.set()
                writer.write(line)
        except ConnectionError:
            pass
        finally:
            writer.close()


@dataclass
class Way:
    """A proxy before an echo."""

    proxy: Proxy
    echo: Echo

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.proxy.listen)


@pytest.fixture
async def way() -> AsyncIterator[Way]:
    listen, upstream = free_ports(2)
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", upstream)
    proxy = await Proxy("test", listen=listen, upstream=upstream).start()
    yield Way(proxy, echo)
    await proxy.stop()
    server.close()


async def said(way: Way, mode: Mode) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection over which a line went to and fro before the way became so, and another one was sent after."""
    reader, writer = await way.connect()
    writer.write(b"before\n")
    assert await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS) == b"before\n"
    way.echo.news.clear()
    way.proxy.set(mode)
    writer.write(b"after\n")
    return reader, writer


@pytest.mark.parametrize("mode", [Mode.PASS, Mode.DELAY, Mode.THROTTLE])
async def test_what_passes_late_or_slowly_passes_whole_and_in_order(way: Way, mode: Mode) -> None:
    reader, writer = await said(way, mode)
    writer.write(b"more\n" * 100)
    lines = [await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS) for _ in range(101)]
    assert lines == [b"after\n"] + [b"more\n"] * 100
    writer.close()


async def test_a_cut_resets_what_is_open_and_what_is_tried(way: Way) -> None:
    reader, _ = await said(way, Mode.REFUSE)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
    reader, _ = await way.connect()
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
    assert way.echo.heard == [b"before\n"]


@pytest.mark.parametrize("mode", [Mode.BLACKHOLE, Mode.NO_REQUESTS])
async def test_what_is_held_back_on_its_way_arrives_when_the_way_is_whole(way: Way, mode: Mode) -> None:
    reader, writer = await said(way, mode)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readline(), 0.2)
    assert way.echo.heard == [b"before\n"]
    way.proxy.set(Mode.PASS)
    assert await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS) == b"after\n"
    writer.close()


async def test_one_way_the_request_is_heard_and_no_reply_comes(way: Way) -> None:
    reader, writer = await said(way, Mode.NO_REPLIES)
    await asyncio.wait_for(way.echo.news.wait(), PATIENCE_SECONDS)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readline(), 0.2)
    assert way.echo.heard == [b"before\n", b"after\n"]
    writer.close()


async def test_a_dropped_reply_is_one_to_a_request_that_was_heard(way: Way) -> None:
    reader, _ = await said(way, Mode.DROP_REPLY)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
    assert way.echo.heard == [b"before\n", b"after\n"]
