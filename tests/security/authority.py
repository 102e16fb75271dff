"""An authorization server as far as a bridge sees it: keys, a JWK set, and whatever tokens a test wants."""

import base64
import json
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

ISSUER = "https://as.example"
PUBLIC_URL = "https://mcp.example"
AUDIENCE = f"{PUBLIC_URL}/mcp"
STATE_KEY = base64.b64encode(b"k" * 32).decode()
ALGORITHMS = ["RS256", "RS384", "PS256", "ES256", "ES384", "HS256", "none"]


class Authority:
    """Keys and tokens of one issuer. Its JWK set and its issuer file lie in `folder`."""

    def __init__(self, folder: Path, issuer: str = ISSUER) -> None:
        self.issuer = issuer
        self.jwks = folder / "jwks.json"
        self.issuers = folder / "issuers.yaml"
        self.key = self.new_key("first")
        self.publish(self.key)
        self.issuers.write_text(f"version: 1\nscopes: [mcp]\nissuers:\n  - {{issuer: '{issuer}', jwks: jwks.json}}\n")

    @property
    def settings(self) -> dict[str, Any]:
        """What a bridge is told, so that it asks for this authority's tokens."""
        return {"issuers": str(self.issuers), "public_url": PUBLIC_URL, "state_keys": (STATE_KEY,)}

    @staticmethod
    def new_key(kid: str) -> ECKey:
        """A key of the kind that most tests use."""
        return ECKey.generate_key("P-256", {"kid": kid, "use": "sig", "alg": "ES256"})

    def publish(self, *keys: ECKey | RSAKey) -> None:
        """Makes these the keys that there are."""
        self.jwks.write_text(json.dumps({"keys": [key.as_dict(private=False) for key in keys]}))

    def token(self, *, key: Any = None, header: dict[str, Any] | None = None, expires_in: float = 300, **claims: Any) -> str:
        """A token as it should be, with other claims and header members where given; one that is None is left out."""
        now = time.time()
        defaults = {
            "iss": self.issuer,
            "sub": "ann",
            "aud": AUDIENCE,
            "tenant": "acme",
            "scope": "reports:write",
            "iat": int(now),
            "exp": int(now + expires_in),
            "jti": str(uuid4()),
        }
        return self.sign({**defaults, **claims}, key=key, header=header)

    def sign(self, claims: dict[str, Any] | bytes, *, key: Any = None, header: dict[str, Any] | None = None) -> str:
        """Signs claims, or any bytes, whatever they say."""
        key = key or self.key
        members: dict[str, Any] = {"alg": "ES256", "kid": getattr(key, "kid", None), "typ": "at+jwt", **(header or {})}
        members = {name: value for name, value in members.items() if value is not None}
        body = claims if isinstance(claims, bytes) else json.dumps({k: v for k, v in claims.items() if v is not None}).encode()
        registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        return jws.serialize_compact(members, body, key, registry=registry)
