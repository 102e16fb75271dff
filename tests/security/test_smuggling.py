"""Requests that two readers of HTTP could read differently, and paths that lead elsewhere, are refused, and end there.

Security checklist A3, A9, H3, H19, H20, H28.
"""

import asyncio

import pytest

from tests.security.conftest import Users

HEAD = "POST /mcp HTTP/1.1"
NOT_HTTP = {
    "length and chunks": (HEAD, "Content-Length: 5", "Transfer-Encoding: chunked"),
    "a coding that is none": (HEAD, "Transfer-Encoding: xchunked"),
    "chunks that are not last": (HEAD, "Transfer-Encoding: chunked, identity"),
    "two lengths": (HEAD, "Content-Length: 5", "Content-Length: 6"),
    "a length with a sign": (HEAD, "Content-Length: +5"),
    "a length with a line in it": (HEAD, "Content-Length: 1_0"),
    "a space before the colon": (HEAD, "Content-Length : 0"),
    "a folded header": (HEAD, "X: a\r\n b", "Content-Length: 0"),
    "a header with NUL": (HEAD, "X: a\0b", "Content-Length: 0"),
    "a header of 3,000 lines": (HEAD, *["a: b"] * 3_000),
    "another protocol": ("PRI * HTTP/2.0",),
    "a port that is none": ("POST http://127.0.0.1:99999999/mcp HTTP/1.1",),
    "an address that is none": ("POST http://[::1/mcp HTTP/1.1",),
    "bytes in the path": ("POST /t/\xff\xfe/mcp HTTP/1.1",),
}
ELSEWHERE = {
    "/t/beta/../acme/mcp": 404, "/t/%61cme/mcp": 404, "/t/acme%2Fmcp": 404, "//mcp": 404, "/mcp;x=1": 404, "/t/../mcp": 404,
    "http://evil/mcp": 403, "http://evil/t/acme/mcp": 403, "/mcp?access_token={token}": 401,
}  # fmt: skip
FORWARDED = "X-Forwarded-Host: evil\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 127.0.0.1\r\nForwarded: host=evil"


async def answer_to(users: Users, *lines: str, body: bytes = b"") -> bytes:
    """All that comes back until the bridge hangs up, as it must once no more is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", users.bridge.port)
    start, *fields = lines
    head = "\r\n".join((start, f"Host: 127.0.0.1:{users.bridge.port}", *fields, "", ""))
    writer.write(head.encode("latin-1") + body)
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        finally:
            writer.close()


@pytest.mark.row("H20")
@pytest.mark.parametrize("lines", NOT_HTTP.values(), ids=NOT_HTTP.keys())
async def test_what_is_not_quite_http_is_refused_whole(users: Users, lines: tuple[str, ...]) -> None:
    within = f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{users.bridge.port}\r\n\r\n".encode()
    answer = await answer_to(users, *lines, body=b"0\r\n\r\n" + within)
    assert answer.split(b" ", 2)[1] == b"400"
    assert answer.count(b"jsonrpc") == 1, "the rest is no request"


@pytest.mark.row("A3", "A9", "H3", "H28")
@pytest.mark.parametrize(("target", "status"), ELSEWHERE.items(), ids=str)
async def test_no_spelling_of_a_path_leads_past_its_place(users: Users, target: str, status: int) -> None:
    token = users.authority.token()
    fields = [FORWARDED, "Content-Length: 0", "Connection: close"]
    if "{token}" not in target:
        fields.append(f"Authorization: Bearer {token}")
    answer = await answer_to(users, f"POST {target.format(token=token)} HTTP/1.1", *fields)
    assert int(answer.split(b" ", 2)[1]) == status
    assert token.encode() not in answer
