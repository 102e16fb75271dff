"""Access tokens: JSON Web Tokens, believed only if everything about them is right.

Source: contract, section 7; RFC 9068; security checklist A6 to A10 and A13 to A16. A token is looked at and forgotten:
it is not kept, not logged, and given to nobody. Of one that was believed a digest is remembered, and by which key.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, NoReturn

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.util import urlsafe_b64decode

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.issuers import Issuer
from mcp_bridge.access.keys import Keys, PublicKey
from mcp_bridge.wire.strict import Unreadable, parse

TOKEN_BYTES: Final = 8 * 1024
TEXT_BYTES: Final = 512
MOST_NAMES: Final = 500
"""How many scopes, or groups, a token may have."""
_TYPES: Final = ("", "jwt", "at+jwt", "application/at+jwt")
_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ID_DIGITS: Final = 16
MOST_BELIEVED: Final = 10_000
"""Tokens that are remembered; the least used ones are forgotten."""


class Fault(StrEnum):
    """Why a token is not believed: for figures and the log. Its bearer is told less."""

    MALFORMED = "malformed"
    ALGORITHM = "algorithm"
    ISSUER = "issuer"
    KEY = "key"
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET = "not_yet"
    AUDIENCE = "audience"
    CLAIMS = "claims"


class NotBelieved(Exception):  # noqa: N818 (it says what a token is)
    """The token lets nobody in."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class _Believed:
    """A token that was believed, and what that hangs on besides the time."""

    caller: Caller
    expires_at: float
    begins_at: float
    keys: Keys
    kid: str | None
    key: PublicKey


class Tokens:
    """Reads tokens of the issuers that are believed."""

    def __init__(
        self, issuers: Mapping[str, tuple[Issuer, Keys]], *, leeway_seconds: float, most_believed: int = MOST_BELIEVED
    ) -> None:
        self._issuers = issuers
        self._leeway_seconds = leeway_seconds
        self._most_believed = most_believed
        self._believed: OrderedDict[tuple[bytes, str], _Believed] = OrderedDict()

    async def read(self, token: str, *, audience: str, now: float) -> Caller:
        """Whom the token stands for at the resource `audience`, whether its tenant is served or not; `now` in seconds of the
        epoch.

        A token that has ended is refused at once; the leeway is for those that begin a little in the future, by the clock
        of their issuer. Raises NotBelieved, or KeysUnavailable when that cannot be told.

        The signature of one that was believed at this resource is not computed again while its issuer's keys are those that
        were read then: what was read anew, or taken back, is.
        """
        if len(token) > TOKEN_BYTES:
            raise NotBelieved(Fault.MALFORMED)
        name = sha256(token.encode()).digest(), audience
        believed = self._believed.get(name)
        if believed is not None and self._holds(believed, now):
            self._believed.move_to_end(name)
            return believed.caller
        self._believed.pop(name, None)
        believed = self._believed[name] = await self._believe(token, audience, now)
        if len(self._believed) > self._most_believed:
            self._believed.popitem(last=False)
        return believed.caller

    def _holds(self, believed: _Believed, now: float) -> bool:
        """Whether nothing has happened that could make the token one that is not believed."""
        is_its_time = now < believed.expires_at and believed.begins_at <= now + self._leeway_seconds
        return is_its_time and believed.keys.has(believed.kid, believed.key)

    async def _believe(self, token: str, audience: str, now: float) -> _Believed:
        """What a token says, once everything about it was looked at. Raises NotBelieved, KeysUnavailable."""
        header, claims = _unverified(token)
        issuer, keys = self._issuers.get(_text(claims, "iss") or "", (None, None))
        if issuer is None or keys is None:
            raise NotBelieved(Fault.ISSUER)
        key = await _verify(token, header, issuer, keys)
        begins_at = self._check_times(claims, now)
        if not _is_for(claims.get("aud"), audience):
            raise NotBelieved(Fault.AUDIENCE)
        caller = Caller(
            issuer=issuer.issuer,
            subject=_text(claims, "sub") or _refuse(Fault.CLAIMS),
            tenant=_tenant(claims, issuer),
            scopes=_names(claims.get(issuer.scopes_claim)),
            groups=_names(claims.get(issuer.groups_claim)),
            expires_at=float(claims["exp"]),
            token_id=_token_id(issuer, claims, token),
        )
        return _Believed(
            caller=caller, expires_at=float(claims["exp"]), begins_at=begins_at, keys=keys, kid=header.get("kid"), key=key
        )

    def _check_times(self, claims: Mapping[str, Any], now: float) -> float:
        """From when on the token is good."""
        expires_at = _seconds(claims, "exp")
        if expires_at is None:
            raise NotBelieved(Fault.CLAIMS)
        if expires_at <= now:
            raise NotBelieved(Fault.EXPIRED)
        begins_at = max(_seconds(claims, name) or 0.0 for name in ("nbf", "iat"))
        if begins_at > now + self._leeway_seconds:
            raise NotBelieved(Fault.NOT_YET)
        return begins_at


class _Registry(jws.JWSRegistry):
    """The algorithms of one issuer and no others. What a header has besides is not looked at."""

    max_header_length = 2048

    def __init__(self, algorithms: tuple[str, ...]) -> None:
        super().__init__(algorithms=algorithms, strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


async def _verify(token: str, header: Mapping[str, Any], issuer: Issuer, keys: Keys) -> PublicKey:
    """The key by which the issuer has signed the token. Raises NotBelieved unless it has."""
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
    if algorithm not in issuer.algorithms:
        raise NotBelieved(Fault.ALGORITHM)
    is_plain = isinstance(kind, str) and kind.lower() in _TYPES and not {"crit", "b64"} & header.keys()
    if not is_plain or not isinstance(kid, str | None):
        raise NotBelieved(Fault.MALFORMED)
    key = await keys.find(kid, algorithm)
    if key is None:
        raise NotBelieved(Fault.KEY)
    registry = _Registry(issuer.algorithms)
    try:
        signed = jws.extract_compact(token.encode(), registry=registry)
        is_right = jws.validate_compact(signed, key, registry=registry)
    except (JoseError, ValueError, TypeError):
        is_right = False
    if not is_right:
        raise NotBelieved(Fault.SIGNATURE)
    return key


def _unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims as they are written, whoever wrote them."""
    parts = token.split(".")
    if len(parts) != 3:
        raise NotBelieved(Fault.MALFORMED)
    try:
        header, claims = (parse(urlsafe_b64decode(part.encode())) for part in parts[:2])
    except (Unreadable, ValueError):
        raise NotBelieved(Fault.MALFORMED) from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise NotBelieved(Fault.MALFORMED)
    return header, claims


def _is_for(audience: object, resource: str) -> bool:
    """Whether the token is for this resource: to the letter, but for the case of scheme and host."""
    given = audience if isinstance(audience, list) else [audience]
    return any(isinstance(one, str) and _canonical(one) == resource for one in given)


def _canonical(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return scheme.lower() + separator + authority.lower() + slash + path


def _tenant(claims: Mapping[str, Any], issuer: Issuer) -> str:
    tenant = issuer.tenant or _text(claims, issuer.tenant_claim)
    if tenant is None or not _TENANT.fullmatch(tenant):
        raise NotBelieved(Fault.CLAIMS)
    if issuer.tenants is not None and tenant not in issuer.tenants:
        raise NotBelieved(Fault.ISSUER)
    return tenant


def _names(value: object) -> frozenset[str]:
    """Scopes or groups: a list of texts, or one text with spaces between."""
    names = value.split(" ") if isinstance(value, str) else value if isinstance(value, list) else []
    if len(names) > MOST_NAMES:
        raise NotBelieved(Fault.CLAIMS)
    return frozenset(name for name in names if isinstance(name, str) and name)


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    is_text = isinstance(value, str) and value.strip() and "\0" not in value and len(value.encode()) <= TEXT_BYTES
    return value if is_text else None


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise NotBelieved(Fault.CLAIMS)
    return float(value)


def _token_id(issuer: Issuer, claims: Mapping[str, Any], token: str) -> str:
    digest = sha256(f"{issuer.issuer}\n{_text(claims, 'jti') or token}".encode())
    return digest.hexdigest()[:_ID_DIGITS]


def _refuse(fault: Fault) -> NoReturn:
    raise NotBelieved(fault)
