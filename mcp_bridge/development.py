"""Tokens for trials on one machine: `tenure-bridge dev-token`. They are believed by bridges on loopback only."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

from joserfc import jwt
from joserfc.jwk import ECKey

from mcp_bridge.access.hosts import is_loopback
from mcp_bridge.access.issuers import DEVELOPMENT_ISSUER

ALGORITHM: Final = "ES256"
ISSUERS: Final = f"""\
# Written by `tenure-bridge dev-token`, for trials on this machine.
version: 1
issuers:
  - {{issuer: "{DEVELOPMENT_ISSUER}", jwks: jwks.json, algorithms: [{ALGORITHM}]}}
"""


class NotForTrials(Exception):  # noqa: N818 (it is a refusal)
    """What was asked for is no trial on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Whom a trial token stands for, and where."""

    tenant: str
    subject: str
    scopes: Sequence[str]
    groups: Sequence[str]
    audience: str
    minutes: int


def issue_token(folder: Path, trial: Trial) -> str:
    """A signed token. The folder gets what a bridge needs to believe it: `issuers.yaml`, `jwks.json`; and the private key,
    readable by its owner only. Raises NotForTrials for an audience that is not on this machine."""
    if not is_loopback(urlsplit(trial.audience).hostname or ""):
        raise NotForTrials(f"{trial.audience} is not on this machine; trial tokens are for loopback only")
    key = _key(folder)
    now = int(time.time())
    claims = {
        "iss": DEVELOPMENT_ISSUER,
        "sub": trial.subject,
        "aud": trial.audience,
        "tenant": trial.tenant,
        "scope": " ".join(trial.scopes),
        "groups": list(trial.groups),
        "iat": now,
        "exp": now + trial.minutes * 60,
        "jti": str(uuid4()),
    }
    return jwt.encode({"alg": ALGORITHM, "kid": key.kid, "typ": "at+jwt"}, claims, key, algorithms=[ALGORITHM])


def _key(folder: Path) -> ECKey:
    """The folder's key, made at the first time, with the files that go with it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "key.json"
    if not file.exists():
        key = ECKey.generate_key("P-256", {"use": "sig", "alg": ALGORITHM}, auto_kid=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as secret:  # noqa: PTH123 (its mode)
            json.dump(key.as_dict(private=True), secret)
        (folder / "jwks.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
        (folder / "issuers.yaml").write_text(ISSUERS)
    return ECKey.import_key(json.loads(file.read_text()))
