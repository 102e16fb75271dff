"""Callers that show a token of their service account instead of a certificate."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from store_service import watched_file
from store_service.client import StoreError, TaskStore, Tls
from store_service.dev_certs import make_authority
from tests.security.store.conftest import guarding
from tests.store.builders import new_task

ISSUER = "https://kubernetes.default.svc"
SUBJECT = "system:serviceaccount:tenure:bridge"
KEY = ECKey.generate_key("P-256", {"kid": "first"})


def publish(folder: Path, *keys: ECKey | RSAKey) -> None:
    (folder / "jwks.json").write_text(json.dumps({"keys": [key.as_dict(private=False) for key in keys]}))


def sign(*, key: Any = KEY, algorithm: str = "ES256", **changes: Any) -> str:
    claims = {"iss": ISSUER, "sub": SUBJECT, "aud": ["tenure-store"], "exp": int(time.time()) + 600, **changes}
    header = {"alg": algorithm, **({"kid": key.kid} if key.kid else {})}
    return jwt.encode(header, {k: v for k, v in claims.items() if v is not None}, key, algorithms=[algorithm])


@pytest.fixture
async def address(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A store that asks for tokens."""
    monkeypatch.setattr(watched_file, "_LOOK_SECONDS", 0.0)
    make_authority(tmp_path).issue(tmp_path, "store", [x509.DNSName("localhost")])
    (tmp_path / "policy.yaml").write_text(
        f"version: 1\ncallers:\n  - {{identity: '{SUBJECT}', role: bridge, tenants: ['*']}}\n"
    )
    publish(tmp_path, KEY)
    async with guarding(dsn, tmp_path, token_keys=str(tmp_path / "jwks.json"), token_issuer=ISSUER) as store:
        yield f"localhost:{store.port}"


def connect(address: str, folder: Path, token: str) -> TaskStore:
    (folder / "token").write_text(f"{token}\n")
    return TaskStore.connect(address, tls=Tls(ca=folder / "ca.crt", token=folder / "token"))


async def test_a_token_says_who_calls_and_is_read_anew_when_it_changes(address: str, tmp_path: Path) -> None:
    async with connect(address, tmp_path, sign()) as store:
        await store.create_task(new_task())
        second = RSAKey.generate_key(2048, {"kid": "second"})
        publish(tmp_path, second)
        with pytest.raises(StoreError, match="does not know who calls"):
            await store.create_task(new_task())
        (tmp_path / "token").write_text(sign(key=second, algorithm="RS256"))
        await store.create_task(new_task())


@pytest.mark.parametrize(
    "token",
    [
        "",
        "nothing of the kind",
        sign(exp=int(time.time()) - 60),
        sign(exp=None),
        sign(iss="https://elsewhere"),
        sign(aud="somebody-else"),
        sign(aud=None),
        sign(sub="system:serviceaccount:tenure:other"),
        sign(nbf=int(time.time()) + 600),
        sign(key=ECKey.generate_key("P-256", {"kid": "first"})),
        sign(key=OctKey.import_key(json.dumps(KEY.as_dict(private=False))), algorithm="HS256"),
    ],
    ids=[
        "empty",
        "garbage",
        "expired",
        "endless",
        "issuer",
        "audience",
        "no audience",
        "subject",
        "early",
        "forged",
        "confused",
    ],
)
@pytest.mark.row("G1")
async def test_any_other_token_is_nobodys(token: str, address: str, tmp_path: Path) -> None:
    async with connect(address, tmp_path, token) as store:
        with pytest.raises(StoreError) as raised:
            await store.create_task(new_task(), timeout_seconds=5)
    assert raised.value.reason == "UNAUTHENTICATED"
    assert not raised.value.is_transient
