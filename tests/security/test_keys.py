"""The keys of issuers: where they are read, how often, and what makes the bridge read them. Security checklist A14, A15."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from mcp_bridge.access.issuers import Issuer, load_issuers
from mcp_bridge.access.keys import AGAIN_SECONDS, KEYS_BYTES, STALE_SECONDS, Keys, KeysUnavailable, read_keys, reader
from tests.bridge.client import Client
from tests.security.authority import Authority
from tests.security.conftest import Users

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Source:
    """Where keys are read in a test, which counts."""

    def __init__(self, *keys: ECKey) -> None:
        self.keys = keys
        self.reads = 0
        self.trouble: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self) -> bytes:
        self.reads += 1
        await self.gate.wait()
        if self.trouble is not None:
            raise self.trouble
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


FIRST, SECOND = Authority.new_key("first"), Authority.new_key("second")


@pytest.fixture
def source() -> Source:
    return Source(FIRST)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(source: Source, clock: Clock) -> Keys:
    return Keys("https://as.example", source.read, clock=clock)


@pytest.mark.row("A15")
async def test_a_key_that_is_not_known_is_looked_for_but_not_often(keys: Keys, source: Source, clock: Clock) -> None:
    assert await keys.find("first", "ES256") is not None
    for _ in range(100):
        assert await keys.find("second", "ES256") is None
    assert source.reads == 1
    clock.now += AGAIN_SECONDS
    source.keys = (FIRST, SECOND)
    assert await keys.find("second", "ES256") is not None
    assert [await keys.find(f"x{n}", "ES256") for n in range(100)] == [None] * 100
    assert source.reads == 2


@pytest.mark.row("A15")
async def test_many_who_wait_for_keys_share_one_reading(keys: Keys, source: Source) -> None:
    source.gate.clear()
    waiting = [asyncio.create_task(keys.find("first", "ES256")) for _ in range(50)]
    await asyncio.sleep(0)
    source.gate.set()
    assert all(await asyncio.gather(*waiting))
    assert source.reads == 1


@pytest.mark.row("A14", "A15")
async def test_a_key_that_its_issuer_takes_back_is_forgotten_at_the_next_reading(
    keys: Keys, source: Source, clock: Clock
) -> None:
    assert await keys.find("first", "ES256") is not None
    source.keys = (SECOND,)
    clock.now += AGAIN_SECONDS
    await keys.refresh()
    assert await keys.find("first", "ES256") is None


@pytest.mark.row("A15")
async def test_keys_that_cannot_be_read_again_are_believed_for_a_while_only(keys: Keys, source: Source, clock: Clock) -> None:
    assert await keys.find("first", "ES256") is not None
    source.trouble = OSError("no route")
    clock.now += STALE_SECONDS - 1
    await keys.refresh()
    assert await keys.find("first", "ES256") is not None
    clock.now += 2
    with pytest.raises(KeysUnavailable):
        await keys.find("first", "ES256")
    source.trouble = None
    clock.now += AGAIN_SECONDS
    assert await keys.find("first", "ES256") is not None


async def test_a_token_without_a_key_id_is_of_the_only_key(keys: Keys, source: Source, clock: Clock) -> None:
    assert await keys.find(None, "ES256") is not None
    source.keys = (FIRST, SECOND)
    clock.now += AGAIN_SECONDS
    await keys.refresh()
    assert await keys.find(None, "ES256") is None


@pytest.mark.row("A6", "A15")
def test_only_keys_that_verify_and_are_strong_enough_are_read() -> None:
    strong = RSAKey.generate_key(2048, {"kid": "strong"}).as_dict(private=False)
    listed = [
        FIRST.as_dict(private=True),
        OctKey.generate_key(256, {"kid": "secret"}).as_dict(),
        OKPKey.generate_key("Ed25519", {"kid": "ed"}).as_dict(private=False),
        {**SECOND.as_dict(private=False), "use": "enc"},
        {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "new", "kid": "new"},
        "nonsense",
        strong,
        {**strong, "kid": "weak", "n": str(strong["n"])[: 1024 // 6]},
    ]
    found = read_keys(json.dumps({"keys": listed}).encode())
    assert set(found) == {"first", "ed", "strong"}
    assert not any(key.is_private for key in found.values())


@pytest.mark.parametrize("data", [b"", b"[]", b'{"keys":5}', b'{"keys":[]}', b"<html>", b'{"keys":[' + b"{}," * 200 + b"{}]}"])
def test_what_is_no_key_set_is_told(data: bytes) -> None:
    with pytest.raises(ValueError, match="JWK set"):
        read_keys(data)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "keys")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "keys.pem", folder / "keys.key"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    return chain, secret


@asynccontextmanager
async def serving(handler: Handler, trust: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/{name}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


def issuer_at(folder: Path, jwks: str, ca: str = "") -> Issuer:
    file = folder / "issuers.yaml"
    more = f", ca: {ca}" if ca else ""
    file.write_text(f"version: 1\nissuers: [{{issuer: 'https://as.example', jwks: '{jwks}'{more}}}]\n")
    return load_issuers(str(file), on_loopback=True).all[0]


@pytest.mark.row("A15")
async def test_keys_are_read_over_https_from_servers_that_show_who_they_are(tmp_path: Path) -> None:
    chain, secret = certificate(tmp_path)
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(chain, secret)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"keys": [FIRST.as_dict(private=False)]})

    async with serving(answer, trust) as port:
        known = reader(issuer_at(tmp_path, f"https://127.0.0.1:{port}/jwks", ca=chain.name))
        assert set(read_keys(await known())) == {"first"}
        unknown = Keys("i", reader(issuer_at(tmp_path, f"https://127.0.0.1:{port}/jwks")), clock=Clock())
        with pytest.raises(KeysUnavailable):
            await unknown.find("first", "ES256")


@pytest.mark.row("A15")
@pytest.mark.parametrize("name", ["redirects", "large", "fails", "endless"])
async def test_a_server_of_keys_that_misbehaves_gives_none(tmp_path: Path, name: str) -> None:
    followed = []

    async def answer(request: web.Request) -> web.StreamResponse:
        match request.match_info["name"]:
            case "redirects":
                return web.HTTPFound("/elsewhere")
            case "elsewhere":
                followed.append(request)
                return web.json_response({"keys": [FIRST.as_dict(private=False)]})
            case "large":
                return web.Response(body=b" " * (KEYS_BYTES + 1))
            case "endless":
                response = web.StreamResponse()
                await response.prepare(request)
                for _ in range(KEYS_BYTES // 1024 + 2):
                    await response.write(b" " * 1024)
                await response.write_eof()
                return response
        return web.Response(status=500)

    async with serving(answer) as port:
        keys = Keys("i", reader(issuer_at(tmp_path, f"http://127.0.0.1:{port}/{name}")), clock=Clock())
        with pytest.raises(KeysUnavailable):
            await keys.find("first", "ES256")
    assert not followed


@pytest.mark.row("A15")
async def test_nothing_that_a_token_says_makes_the_bridge_read_anything(users: Users, authority: Authority) -> None:
    asked = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response({"keys": [thief.as_dict(private=False)]})

    thief = Authority.new_key("thief")
    async with serving(answer) as port:
        url = f"http://127.0.0.1:{port}/jwks"
        for members in ({"jku": url}, {"x5u": url}, {"jwk": thief.as_dict(private=False)}, {"kid": url}):
            token = authority.token(key=thief, header=members, iss=url if "kid" in members else authority.issuer)
            assert (await users.bearing(token).ask("tools/list")).status == 401
    assert not asked


@pytest.mark.row("A15")
async def test_a_key_that_comes_later_is_believed_without_a_restart(users: Users, authority: Authority) -> None:
    assert users.bridge._parts is not None
    (keys,) = users.bridge._parts.keys

    async def called(key: ECKey) -> int:
        keys._tried_at = None  # 10 s have passed
        client: Client = users.bearing(authority.token(key=key))
        return (await client.ask("tools/list")).status

    assert [await called(authority.key), await called(SECOND)] == [200, 401]
    authority.publish(authority.key, SECOND)
    assert [await called(authority.key), await called(SECOND)] == [200, 200]
    authority.publish(SECOND)
    keys._tried_at = None
    await keys.refresh()
    assert [await called(authority.key), await called(SECOND)] == [401, 200]


@pytest.mark.row("A15")
async def test_without_any_keys_nobody_is_let_in_and_nobody_called_a_liar(users: Users) -> None:
    assert users.bridge._parts is not None
    (keys,) = users.bridge._parts.keys
    await keys.refresh()  # behind the one that the bridge began with
    keys._keys, keys._tried_at = None, keys._clock()
    answer = await users.user().ask("tools/list")
    assert (answer.status, answer.code) == (503, 50300)
    assert "WWW-Authenticate" not in answer.headers
