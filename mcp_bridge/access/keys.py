"""The public keys of an issuer: read from HTTPS or from a file, kept, and read again. Source: security checklist A15.

Where they are read from is in the issuer file alone; nothing that a token says makes the bridge read anything else.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.util import urlsafe_b64decode

from mcp_bridge.access.issuers import Issuer
from mcp_bridge.wire.strict import Unreadable, parse

PublicKey = RSAKey | ECKey | OKPKey

FRESH_SECONDS: Final = 300.0
"""How often keys are read again, so that one that its issuer takes back is not believed for longer."""
AGAIN_SECONDS: Final = 10.0
"""How often keys are read at most because a token names one that is not known, or because they could not be read."""
STALE_SECONDS: Final = 3600.0
"""How long keys are believed that cannot be read again."""
READ_SECONDS: Final = 5.0
KEYS_BYTES: Final = 256 * 1024
MOST_KEYS: Final = 100
_RSA_BITS: Final = range(2048, 8192 + 1)
_PUBLIC: Final = frozenset(("kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y"))
_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}

Read = Callable[[], Awaitable[bytes]]


class KeysUnavailable(Exception):  # noqa: N818 (it is no fault of the token)
    """No keys could be read, or not for too long."""


class Keys:
    """The keys of one issuer. `clock` counts seconds and never runs backwards."""

    def __init__(self, issuer: str, read: Read, *, clock: Callable[[], float]) -> None:
        self._issuer = issuer
        self._read = read
        self._clock = clock
        self._keys: Mapping[str | None, PublicKey] | None = None
        self._read_at = 0.0
        self._tried_at: float | None = None
        self._reading = asyncio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The key that a token names, if it is one for its algorithm. A token that names none is of the only one there is.

        One that is not known makes the keys be read again, but not more often than every 10 s. Raises KeysUnavailable.
        """
        if self._keys is None or self._age() > STALE_SECONDS or self._named(kid) is None:
            await self.refresh()
        if self._keys is None or self._age() > STALE_SECONDS:
            raise KeysUnavailable
        key = self._named(kid)
        return key if key is not None and _is_for(key, algorithm) else None

    def has(self, kid: str | None, key: PublicKey) -> bool:
        """Whether a key that was found under this name is still the one that would be found."""
        return self._named(kid) is key and self._age() <= STALE_SECONDS

    async def refresh(self) -> None:
        """Reads the keys again, unless that was tried less than 10 s ago. Those that are known stay if it fails."""
        async with self._reading:  # whoever waited here finds what the one before has read
            if self._tried_at is not None and self._clock() - self._tried_at < AGAIN_SECONDS:
                return
            self._tried_at = self._clock()
            try:
                async with asyncio.timeout(READ_SECONDS):
                    self._keys = read_keys(await self._read())
                self._read_at = self._clock()
            except (OSError, TimeoutError, aiohttp.ClientError, ValueError) as error:
                structlog.get_logger().warning("keys_not_read", issuer=self._issuer, error=f"{type(error).__name__}: {error}")

    async def keep_fresh(self) -> None:
        """Reads the keys now, and again from time to time. It never ends."""
        while True:
            await self.refresh()
            is_good = self._keys is not None and self._age() < AGAIN_SECONDS
            await asyncio.sleep(FRESH_SECONDS if is_good else AGAIN_SECONDS)

    def _named(self, kid: str | None) -> PublicKey | None:
        keys = self._keys or {}
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(kid) if kid is not None else None

    def _age(self) -> float:
        return self._clock() - self._read_at


def read_keys(data: bytes) -> dict[str | None, PublicKey]:
    """The keys of a JWK set that verify signatures, by their id. Others are left out.

    Raises ValueError for what is no set, or has no such key.
    """
    try:
        document = parse(data)
    except Unreadable as error:
        raise ValueError(f"the JWK set is {error.reason}") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > MOST_KEYS:
        raise ValueError(f"not a JWK set of at most {MOST_KEYS} keys")
    found: dict[str | None, PublicKey] = {}
    for one in listed:
        if isinstance(one, dict) and one.get("kty") in ("RSA", "EC", "OKP") and one.get("use", "sig") == "sig":
            key = _import(one)
            if key is not None and key.kid not in found:
                found[key.kid] = key
    if not found:
        raise ValueError("the JWK set has no key that verifies signatures")
    return found


def reader(issuer: Issuer) -> Read:
    """Reads what the issuer file names."""
    if not issuer.reads_url:
        return lambda: asyncio.to_thread(_read_file, issuer.jwks)
    trust = trust_for(issuer.jwks, issuer)
    return lambda: fetch(issuer.jwks, trust)


def trust_for(url: str, issuer: Issuer) -> ssl.SSLContext | bool:
    """By which certificates an issuer's server is known at a URL."""
    return ssl.create_default_context(cafile=issuer.ca) if url.startswith("https://") else False


async def fetch(url: str, trust: ssl.SSLContext | bool) -> bytes:
    """What is at a URL of an issuer. Raises OSError, TimeoutError, ClientError; ValueError for what is refused or too large."""
    timeout = aiohttp.ClientTimeout(total=READ_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
        session.get(url, ssl=trust, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as response,
    ):
        if response.status != 200:
            raise ValueError(f"the server answered {response.status}")
        data = b""
        async for chunk in response.content.iter_any():
            data = _bounded(data + chunk)
        return data


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return _bounded(file.read(KEYS_BYTES + 1))


def _bounded(data: bytes) -> bytes:
    if len(data) > KEYS_BYTES:
        raise ValueError(f"what is read is larger than {KEYS_BYTES} bytes")
    return data


def _import(data: dict[str, Any]) -> PublicKey | None:
    """The key, without its private part if there should be one; None for one that is malformed or too weak."""
    with contextlib.suppress(JoseError, ValueError, TypeError, KeyError, AttributeError):
        if data["kty"] == "RSA" and int.from_bytes(urlsafe_b64decode(data["n"].encode())).bit_length() not in _RSA_BITS:
            return None
        key = JWKRegistry.import_key({name: value for name, value in data.items() if name in _PUBLIC})
        if isinstance(key, RSAKey | ECKey | OKPKey):
            return key
    return None


def _is_for(key: PublicKey, algorithm: str) -> bool:
    if isinstance(key, OKPKey) and key.curve_name != "Ed25519":
        return False
    return key.key_type == _KEY_TYPES[algorithm[:2]] and key.alg in (None, algorithm)
