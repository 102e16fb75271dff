"""Which tokens let somebody in. Security checklist A6, A7, A9, A10, A13, A16."""

import base64
import json
import time
from typing import Any

import pytest
from joserfc.jwk import OctKey, RSAKey

from tests.bridge.client import Answer, Client, headers_for, meta
from tests.security.authority import AUDIENCE, PUBLIC_URL, Authority
from tests.security.conftest import Users

DISCOVER = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta()}}


async def ask(client: Client, **headers: Any) -> Answer:
    return await client.ask("server/discover", **headers)


def error_of(answer: Answer) -> str:
    """The error of the challenge, which there must be unless all went well; empty where it names none."""
    if answer.status == 200:
        return "none"
    _, _, rest = answer.headers["WWW-Authenticate"].partition('error="')
    return str(rest.partition('"')[0])


@pytest.mark.row("A6", "A7")
async def test_a_token_that_is_right_lets_in(users: Users) -> None:
    assert (await ask(users.user())).status == 200
    assert (await ask(users.user(scope=None, jti=None, iat=None, nbf=None))).status == 200
    assert (await ask(users.user(), Authorization=f"bearer {users.authority.token()}")).status == 200
    for kind in ("JWT", "jwt", "application/at+jwt", None):
        assert (await ask(users.bearing(users.authority.token(header={"typ": kind})))).status == 200


@pytest.mark.row("A6", "A10")
@pytest.mark.parametrize(
    "claims",
    [
        {"expires_in": -1},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": True},
        {"exp": -1},
        {"exp": 10**300},
        {"nbf": 9_999_999_999},
        {"nbf": "later"},
        {"iat": 9_999_999_999},
        {"iss": None},
        {"iss": "https://as.example/"},
        {"iss": "https://AS.example"},
        {"iss": "https://other.example"},
        {"iss": ["https://as.example"]},
        {"sub": None},
        {"sub": ""},
        {"sub": 5},
        {"sub": "a\0b"},
        {"sub": "x" * 513},
        {"tenant": None},
        {"tenant": "a/b"},
        {"tenant": ["acme"]},
        {"scope": " ".join(str(n) for n in range(600))},
    ],
    ids=str,
)
async def test_a_token_with_one_claim_that_is_wrong_lets_nobody_in(users: Users, claims: dict[str, Any]) -> None:
    answer = await ask(users.bearing(users.authority.token(**claims)))
    assert (answer.status, error_of(answer)) == (401, "invalid_token")


@pytest.mark.row("A7")
@pytest.mark.parametrize(
    ("audience", "status"),
    [
        (AUDIENCE, 200),
        ([AUDIENCE], 200),
        (["https://other.example", AUDIENCE], 200),
        ("HTTPS://MCP.Example/mcp", 200),
        (None, 401),
        ([], 401),
        ("", 401),
        (AUDIENCE + "/", 401),
        (PUBLIC_URL, 401),
        (PUBLIC_URL + "/", 401),
        (PUBLIC_URL + "/MCP", 401),
        (AUDIENCE + "?x", 401),
        (PUBLIC_URL + ":443/mcp", 401),
        (f"{PUBLIC_URL}/t/acme/mcp", 401),
        (f"{PUBLIC_URL}/t/beta/mcp", 401),
        (AUDIENCE.replace("https", "http"), 401),
        ("https://mcp.example.evil/mcp", 401),
        ({AUDIENCE: 1}, 401),
        ([[AUDIENCE]], 401),
        (5, 401),
    ],
    ids=str,
)
async def test_a_token_is_for_this_resource_alone(users: Users, audience: Any, status: int) -> None:
    answer = await ask(users.bearing(users.authority.token(aud=audience)))
    assert (answer.status, error_of(answer)) == (status, "none" if status == 200 else "invalid_token")


@pytest.mark.row("A6")
@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "ES384"},
        {"alg": "RS512"},
        {"alg": 5},
        {"alg": None},
        {"kid": "other"},
        {"kid": 5},
        {"kid": ""},
        {"typ": "logout+jwt"},
        {"typ": 5},
        {"crit": ["exp"]},
        {"b64": True},
        {"b64": False, "crit": ["b64"]},
    ],
    ids=str,
)
async def test_a_header_that_is_not_as_it_should_be_lets_nobody_in(users: Users, header: dict[str, Any]) -> None:
    good = users.authority.token().split(".")
    members = {"alg": "ES256", "kid": "first", "typ": "at+jwt", **header}
    text = json.dumps({name: value for name, value in members.items() if value is not None})
    forged = ".".join([base64.urlsafe_b64encode(text.encode()).decode().rstrip("="), *good[1:]])
    answer = await ask(users.bearing(forged))
    assert (answer.status, error_of(answer)) == (401, "invalid_token")


@pytest.mark.row("A6")
async def test_only_the_issuers_own_signature_counts(users: Users, authority: Authority) -> None:
    thief = Authority.new_key("first")
    public = json.dumps(authority.key.as_dict(private=False))
    confused = OctKey.import_key(public, {"kid": "first"})
    unsigned = authority.token().rpartition(".")[0] + "."
    header, claims, signature = authority.token().split(".")
    other_claims = authority.token(sub="eve").split(".")[1]
    for token in (
        authority.token(key=thief),
        authority.token(key=confused, header={"alg": "HS256"}),
        unsigned,
        f"{header}.{other_claims}.{signature}",
        f"{header}.{claims}.{signature[:-4]}AAAA",
        f"{header}.{claims}.",
    ):
        answer = await ask(users.bearing(token))
        assert (answer.status, error_of(answer)) == (401, "invalid_token"), token


@pytest.mark.row("A6")
async def test_an_algorithm_goes_with_its_kind_of_key(users: Users, authority: Authority) -> None:
    rsa = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
    authority.publish(authority.key, rsa)
    assert users.bridge._parts is not None
    (keys,) = users.bridge._parts.keys
    keys._tried_at = None
    await keys.refresh()
    assert (await ask(users.bearing(authority.token(key=rsa, header={"alg": "RS256"})))).status == 200
    assert (await ask(users.bearing(authority.token(key=rsa, header={"alg": "PS256"})))).status == 401  # is not pinned
    crossed = authority.token(header={"kid": "rsa"})
    assert (await ask(users.bearing(crossed))).status == 401


@pytest.mark.row("A6", "A10")
@pytest.mark.parametrize(
    "token",
    [
        "abc",
        "a.b",
        "a.b.c.d",
        "....",
        "e30.e30.e30",
        "x" * 7000,
        base64.b64encode(b"[" * 3000).decode().rstrip("=") + ".e30.e30",
    ],
    ids=lambda token: token[:12],
)
async def test_what_is_no_token_lets_nobody_in(users: Users, token: str) -> None:
    answer = await ask(users.bearing(token))
    assert (answer.status, error_of(answer)) == (401, "invalid_token")


@pytest.mark.row("A6")
@pytest.mark.parametrize(
    "claims",
    [
        b"[]",
        b'"x"',
        b"5",
        b"{",
        b"\xff",
        b'{"iss":"https://as.example","iss":"https://as.example"}',
        b'{"exp":NaN}',
        b"[" * 2000,
    ],
)
async def test_claims_that_are_no_claims_let_nobody_in(users: Users, claims: bytes) -> None:
    assert (await ask(users.bearing(users.authority.sign(claims)))).status == 401


@pytest.mark.row("A6", "A10")
@pytest.mark.parametrize("credentials", ["Bearer", "Bearer ", "Bearer a b", "Bearer a,b", "Bearer =", 'Bearer "x"', "bearer é"])
async def test_credentials_that_are_not_written_as_such_are_a_bad_request(users: Users, credentials: str) -> None:
    answer = await ask(users.bearing(None), Authorization=credentials)
    assert (answer.status, error_of(answer)) == (400, "invalid_request")


@pytest.mark.row("A6", "A10")
async def test_two_authorization_headers_are_refused(users: Users) -> None:
    client = users.user()
    fields = [*headers_for("server/discover").items(), *[("Authorization", f"Bearer {client.token}")] * 2]
    async with users.session.post(client.url, json=DISCOVER, headers=fields) as response:
        assert response.status == 400
        assert 'error="invalid_request"' in response.headers["WWW-Authenticate"]


@pytest.mark.row("A9", "A10")
@pytest.mark.parametrize("credentials", [None, "Basic YTpi", "DPoP abc", ""])
async def test_who_brings_no_token_is_asked_for_one_wherever_else_it_is(users: Users, credentials: str | None) -> None:
    client = users.bearing(None)
    client.url += f"?access_token={users.authority.token()}"
    body = {**DISCOVER, "params": {**DISCOVER["params"], "access_token": users.authority.token()}}  # type: ignore[dict-item]
    headers = headers_for("server/discover", Authorization=credentials, Cookie=f"access_token={users.authority.token()}")
    answer = await client.send(body, headers)
    assert (answer.status, error_of(answer)) == (401, "")


@pytest.mark.must("B-13", "B-17", "H-05", "T-40")
@pytest.mark.row("A13")
@pytest.mark.parametrize(
    "method", ["server/discover", "tools/list", "tools/call", "tasks/get", "tasks/cancel", "notifications/x", "no/such"]
)
async def test_every_request_is_asked_for_its_token(users: Users, method: str) -> None:
    assert (await users.bearing(None).ask(method)).status == 401


@pytest.mark.row("A13")
async def test_a_poll_after_the_end_of_the_token_is_refused(users: Users) -> None:
    client = users.user()
    task_id = (await client.call("report", tasks=True)).result["taskId"]
    assert (await client.task("get", task_id)).status == 200
    client.token = users.authority.token(expires_in=-1)
    for action in ("get", "update", "cancel"):
        answer = await client.task(action, task_id)
        assert (answer.status, error_of(answer)) == (401, "invalid_token")
        assert 'error_description="The access token has expired"' in answer.headers["WWW-Authenticate"]


@pytest.mark.row("A6")
async def test_a_token_may_begin_a_little_in_the_future_but_not_more(users: Users) -> None:
    now = int(time.time())
    assert (await ask(users.user(nbf=now + 3, iat=now + 3))).status == 200
    assert (await ask(users.user(nbf=now + 60))).status == 401
