"""Tokens whose signature was right once: for how long that is good, and for what. Security checklist A6, A7, A13, A14, A15."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey

from mcp_bridge.access.issuers import load_issuers
from mcp_bridge.access.keys import AGAIN_SECONDS, STALE_SECONDS, Keys, KeysUnavailable
from mcp_bridge.access.tokens import Fault, NotBelieved, Tokens
from tests.security.authority import AUDIENCE, PUBLIC_URL, Authority

OTHER = f"{PUBLIC_URL}/t/acme/mcp"


class Issuer:
    """One issuer as a bridge sees it: its keys, which it may change, and the clock by which they are read again."""

    def __init__(self, authority: Authority, *, most_believed: int = 100) -> None:
        (issuer,) = load_issuers(str(authority.issuers), on_loopback=True).all
        self.monotonic = 0.0
        self.published: list[ECKey] = [authority.key]
        self.trouble: Exception | None = None
        self.keys = Keys(issuer.issuer, self._read, clock=lambda: self.monotonic)
        self.tokens = Tokens({issuer.issuer: (issuer, self.keys)}, leeway_seconds=5, most_believed=most_believed)

    async def _read(self) -> bytes:
        if self.trouble is not None:
            raise self.trouble
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.published]}).encode()

    async def publish(self, *keys: ECKey) -> None:
        """These are the keys now, and the bridge has read them."""
        self.published = list(keys)
        self.monotonic += AGAIN_SECONDS
        await self.keys.refresh()

    async def fault(self, token: str, *, audience: str = AUDIENCE, now: float | None = None) -> Fault | None:
        """Why a token is not believed; None if it is."""
        try:
            await self.tokens.read(token, audience=audience, now=time.time() if now is None else now)
        except NotBelieved as refusal:
            return refusal.fault
        return None


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def issuer(authority: Authority) -> Issuer:
    return Issuer(authority)


@pytest.fixture
def signatures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The signatures that were computed."""
    seen: list[str] = []
    compute = jws.validate_compact

    def note(signed: Any, *arguments: Any, **options: Any) -> bool:
        seen.append(str(signed.headers()["kid"]))
        return compute(signed, *arguments, **options)

    monkeypatch.setattr(jws, "validate_compact", note)
    return seen


@pytest.mark.row("A6", "A14")
async def test_the_signature_of_a_token_is_computed_once_for_each_reading_of_the_keys(
    issuer: Issuer, authority: Authority, signatures: list[str]
) -> None:
    token = authority.token()
    assert [await issuer.fault(token) for _ in range(10)] == [None] * 10
    assert len(signatures) == 1
    await issuer.publish(authority.key)
    assert [await issuer.fault(token) for _ in range(10)] == [None] * 10
    assert len(signatures) == 2


@pytest.mark.row("A13", "A14")
async def test_a_token_that_was_believed_ends_to_the_second(issuer: Issuer, authority: Authority) -> None:
    now = int(time.time())
    token = authority.token(iat=now, exp=now + 60)
    assert await issuer.fault(token, now=now + 59.9) is None
    assert await issuer.fault(token, now=now + 60) is Fault.EXPIRED
    assert await issuer.fault(token, now=now - 6) is Fault.NOT_YET  # the clock was set back


@pytest.mark.row("A13", "A15")
async def test_a_token_that_was_believed_is_not_when_its_key_is_taken_back(issuer: Issuer, authority: Authority) -> None:
    token = authority.token()
    assert await issuer.fault(token) is None
    await issuer.publish(authority.new_key("second"))
    assert await issuer.fault(token) is Fault.KEY
    await issuer.publish(authority.new_key("first"))  # another key by the same name
    assert await issuer.fault(token) is Fault.SIGNATURE


@pytest.mark.row("A15")
async def test_a_token_that_was_believed_is_not_once_its_keys_are_too_old(issuer: Issuer, authority: Authority) -> None:
    token = authority.token()
    assert await issuer.fault(token) is None
    issuer.trouble = OSError("no route")
    issuer.monotonic += STALE_SECONDS + 1
    with pytest.raises(KeysUnavailable):
        await issuer.fault(token)


@pytest.mark.row("A7")
async def test_a_token_that_is_believed_at_one_place_is_looked_at_anew_at_another(issuer: Issuer, authority: Authority) -> None:
    here, both = authority.token(), authority.token(aud=[AUDIENCE, OTHER])
    assert await issuer.fault(here) is None
    assert await issuer.fault(here, audience=OTHER) is Fault.AUDIENCE
    assert [await issuer.fault(both, audience=audience) for audience in (AUDIENCE, OTHER)] == [None, None]


@pytest.mark.row("A6")
async def test_what_is_like_a_token_that_was_believed_is_not_it(issuer: Issuer, authority: Authority) -> None:
    token, other = authority.token(), authority.token(sub="eve")
    assert await issuer.fault(token) is None
    head, claims, signature = token.split(".")
    assert await issuer.fault(f"{head}.{other.split('.')[1]}.{signature}") is Fault.SIGNATURE
    assert await issuer.fault(f"{head}.{claims}.{other.split('.')[2]}") is Fault.SIGNATURE
    assert await issuer.fault(f"{head}.{claims}.") is Fault.SIGNATURE


@pytest.mark.row("A14")
async def test_few_tokens_are_remembered_and_none_is_kept(authority: Authority) -> None:
    issuer = Issuer(authority, most_believed=3)
    tokens = [authority.token() for _ in range(10)]
    for token in tokens:
        assert await issuer.fault(token) is None
    remembered = issuer.tokens._believed
    assert len(remembered) == 3
    assert not any(part in repr(remembered) for token in tokens for part in token.split("."))
