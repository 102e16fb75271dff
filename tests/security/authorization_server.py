"""A small authorization server that really answers: registration, codes with PKCE, tokens, keys.

The protocol is that of the official Python SDK; its policy is to let in everybody as the user that the test names, with
whatever scopes are asked for.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import uvicorn
from joserfc import jwt
from joserfc.jwk import ECKey
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

SCOPES = ["mcp", "publish"]
CODE_SECONDS = 60
TOKEN_SECONDS = 300


class Codes(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Who registered, and which codes are out."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.key = ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256"}, auto_kid=True)
        self.user = "ann"
        self.claims: dict[str, Any] = {"tenant": "acme"}
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.asked: list[AuthorizationParams] = []
        self._codes: dict[str, AuthorizationCode] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info.model_copy(update={"scope": " ".join(SCOPES)})

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        assert client.client_id is not None
        self.asked.append(params)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(32),
            scopes=params.scopes or [],
            expires_at=time.time() + CODE_SECONDS,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=self.user,
        )
        self._codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state, iss=self.issuer)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]  # it is good once
        scope = " ".join(authorization_code.scopes)
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": authorization_code.subject,
            "aud": authorization_code.resource,
            "client_id": client.client_id,
            "scope": scope,
            "iat": now,
            "exp": now + TOKEN_SECONDS,
            "jti": str(uuid4()),
            **self.claims,
        }
        token = jwt.encode({"alg": "ES256", "kid": self.key.kid, "typ": "at+jwt"}, claims, self.key)
        return OAuthToken(access_token=token, expires_in=TOKEN_SECONDS, scope=scope)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return None

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return None

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        raise TokenError("unsupported_grant_type")

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        return None


class _Server(uvicorn.Server):
    """Leaves the signals of the test's process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def authorization_server(port: int) -> AsyncIterator[Codes]:
    """An authorization server on loopback. Its keys are at `/jwks`."""
    issuer = f"http://127.0.0.1:{port}/"
    codes = Codes(issuer)

    async def jwks(_: Request) -> JSONResponse:
        return JSONResponse({"keys": [codes.key.as_dict(private=False)]})

    registration = ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES, default_scopes=["mcp"])
    routes = create_auth_routes(codes, AnyHttpUrl(issuer), client_registration_options=registration)
    app = Starlette(routes=[*routes, Route("/jwks", jwks)])
    server = _Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.01)
    yield codes
    server.should_exit = True
    await serving
