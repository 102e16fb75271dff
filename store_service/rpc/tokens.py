"""Callers that show a token, as Kubernetes projects one into each pod for its service account."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from store_service.model.refusals import Reason, Refusal
from store_service.rpc.guard import Context
from store_service.rpc.policy import Caller

ALGORITHMS: Final = ("RS256", "ES256")
"""What Kubernetes signs with."""

_LEEWAY_SECONDS: Final = 30
_KNOWN_TOKENS: Final = 1_000
_TOKEN_BYTES: Final = 8_192


class TokenAuthentication:
    """The caller is the subject of its token: signed by one of the keys, for this audience, by this issuer, not expired.

    The keys are those of a JWKS file, and are never fetched from where a token says. A token is checked once and remembered,
    by its hash, until it ends or the keys change.
    """

    def __init__(
        self, keys: Callable[[], KeySet], policy: Callable[[], Mapping[str, Caller]], *, issuer: str, audience: str
    ) -> None:
        self._keys = keys
        self._policy = policy
        self._claims = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
        )
        self._known: OrderedDict[bytes, tuple[str, float, KeySet]] = OrderedDict()

    async def identify(self, context: Context) -> Caller:
        """See Authentication."""
        given = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        if len(given) != 1 or not isinstance(given[0], str) or len(given[0]) > _TOKEN_BYTES:
            raise Refusal(Reason.UNAUTHENTICATED)
        scheme, _, token = given[0].partition(" ")
        caller = self._policy().get(self._subject(token.strip())) if scheme.lower() == "bearer" else None
        if caller is None:
            raise Refusal(Reason.UNAUTHENTICATED)
        return caller

    def _subject(self, token: str) -> str:
        digest, keys = hashlib.sha256(token.encode()).digest(), self._keys()
        if (known := self._known.get(digest)) is not None:
            subject, until, checked_with = known
            if time.time() < until and checked_with is keys:
                return subject
            del self._known[digest]
        try:
            claims = jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims
            self._claims.validate(claims)
        except (JoseError, ValueError, TypeError, KeyError):
            raise Refusal(Reason.UNAUTHENTICATED) from None
        subject = str(claims["sub"])
        self._known[digest] = subject, float(claims["exp"]) + _LEEWAY_SECONDS, keys
        if len(self._known) > _KNOWN_TOKENS:
            self._known.popitem(last=False)
        return subject


def read_keys(path: Path) -> KeySet:
    """A JWKS file, as `kubectl get --raw /openid/v1/jwks` prints it. Raises ValueError, JoseError or OSError."""
    keys = KeySet.import_key_set(msgspec.json.decode(path.read_bytes()))
    if not keys.keys:
        raise ValueError("has no keys")
    if any(key.is_private or key.key_type not in ("RSA", "EC") for key in keys.keys):
        raise ValueError("must have public keys of RSA or EC alone")
    return keys
