"""Where a client gets its tokens, and what it is told when it has none that is good. Checklist A1 to A5, A10, A11, A16."""

import re
from dataclasses import replace
from typing import Any

import pytest

from mcp_bridge.access.places import Place
from mcp_bridge.access.resource import Resource
from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from tests.bridge.client import Answer, client_of, headers_for
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import started
from tests.security.authority import PUBLIC_URL, Authority
from tests.security.conftest import Users

WELL_KNOWN = "/.well-known/oauth-protected-resource"
PARAMETER = re.compile(r'([a-z_]+)="([\x20-\x21\x23-\x5b\x5d-\x7e]*)"')


def challenge_of(answer: Answer) -> dict[str, str]:
    """The one challenge of an answer, read as RFC 9110 writes it, every value quoted."""
    (field,) = answer.headers.getall("WWW-Authenticate")
    scheme, _, rest = field.partition(" ")
    assert scheme == "Bearer"
    parameters = rest.split(", ")
    found = [PARAMETER.fullmatch(one) for one in parameters]
    assert all(found), field
    pairs = [one.groups() for one in found if one]
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)  # type: ignore[arg-type]


async def metadata(users: Users, path: str, verb: str = "GET") -> Answer:
    client = users.bearing(None)
    return await client.send(b"", {}, verb=verb, url=f"http://127.0.0.1:{client.port}{path}")


@pytest.mark.row("A1", "A3")
@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (WELL_KNOWN, "/mcp"),
        (WELL_KNOWN + "/mcp", "/mcp"),
        (WELL_KNOWN + "/t/acme/mcp", "/t/acme/mcp"),
        (WELL_KNOWN + "/t/nobody/mcp", "/t/nobody/mcp"),
    ],
)
async def test_the_metadata_names_the_resource_and_its_issuers(users: Users, path: str, resource: str) -> None:
    answer = await metadata(users, path)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json == {
        "resource": PUBLIC_URL + resource,
        "authorization_servers": ["https://as.example"],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["mcp"],
    }
    assert (await metadata(users, path, "HEAD")).status == 200
    refused = await metadata(users, path, "POST")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.row("A3")
@pytest.mark.parametrize(
    "path",
    [WELL_KNOWN + "/", WELL_KNOWN + "/mcp/", WELL_KNOWN + "/t/acme/mcp/", WELL_KNOWN + "/t//mcp", WELL_KNOWN + "/t/./mcp",
     "/mcp" + WELL_KNOWN, "/t/a/mcp/", WELL_KNOWN + "/t/a", WELL_KNOWN + "mcp", "/.well-known/oauth-authorization-server"],
)  # fmt: skip
async def test_each_place_is_described_at_one_path(users: Users, path: str) -> None:
    assert (await metadata(users, path)).status == 404


@pytest.mark.must("B-17")
@pytest.mark.row("A2", "A4", "A10")
@pytest.mark.parametrize(
    ("path", "well_known"), [("/mcp", "/mcp"), ("/t/acme/mcp", "/t/acme/mcp"), ("/t/nobody/mcp", "/t/nobody/mcp")]
)
async def test_who_has_no_token_is_told_where_to_get_one_to_the_byte(users: Users, path: str, well_known: str) -> None:
    answer = await users.bearing(None, path=path).ask("tools/list")
    assert answer.status == 401
    assert answer.headers.getall("WWW-Authenticate") == [
        f'Bearer resource_metadata="https://mcp.example{WELL_KNOWN}{well_known}", scope="mcp"'
    ]
    told = challenge_of(answer)["resource_metadata"].removeprefix(PUBLIC_URL)
    assert (await metadata(users, told)).json["resource"] == PUBLIC_URL + path


@pytest.mark.row("A2", "A10")
async def test_a_bad_token_is_told_apart_from_none(users: Users) -> None:
    described = f'resource_metadata="https://mcp.example{WELL_KNOWN}/mcp", scope="mcp"'
    expired, wrong = (users.user(expires_in=-1), users.user(iss="https://other.example"))
    assert (await expired.ask("tools/list")).headers["WWW-Authenticate"] == (
        f'Bearer error="invalid_token", error_description="The access token has expired", {described}'
    )
    assert (await wrong.ask("tools/list")).headers["WWW-Authenticate"] == (
        f'Bearer error="invalid_token", error_description="The access token is not valid for this resource", {described}'
    )


@pytest.mark.row("A3", "A16", "T5")
async def test_tenants_that_are_not_there_cannot_be_told_from_others(users: Users) -> None:
    """Without a token, with one of another tenant, and with one of a tenant that nobody knows."""

    async def asked(path: str, token: str | None) -> tuple[Any, ...]:
        answer = await users.bearing(token, path=path).ask("tools/list")
        fields = sorted((name, value.replace(path, "PATH")) for name, value in answer.headers.items() if name != "Date")
        return answer.status, fields, answer.body

    here, there = "/t/beta/mcp", "/t/nobody/mcp"
    assert await asked(here, None) == await asked(there, None)
    answers = [await asked(path, users.authority.token(aud=PUBLIC_URL + path, tenant="acme")) for path in (here, there)]
    answers.append(await asked(there, users.authority.token(aud=PUBLIC_URL + there, tenant="nobody")))
    answers.append(await asked("/mcp", users.authority.token(tenant="nobody")))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 403
    assert b"40300" in answers[0][2]


@pytest.mark.must("K-04", "L-02")
@pytest.mark.row("A16")
async def test_each_tenants_tools_are_its_own_by_path_and_by_token(users: Users) -> None:
    for path in ("/mcp", "/t/beta/mcp"):
        listed = (await users.user(path=path, tenant="beta", scope="").ask("tools/list")).result["tools"]
        assert [tool["name"] for tool in listed] == ["report"]
    for tenant, version in (("acme", 1), ("beta", 2)):
        assert (await users.user(tenant=tenant).call("report", tasks=True)).status == 200
        store = users.bridge._parts.core.cells.of(tenant)  # type: ignore[union-attr]
        assert isinstance(store, FakeTaskStore)
        assert (store.created[-1].tenant_id, store.created[-1].contract.workflow_version) == (tenant, version)


@pytest.mark.must("B-32")
@pytest.mark.row("A16")
async def test_what_a_client_says_of_itself_changes_nothing(users: Users) -> None:
    client = users.user(path="/mcp")
    info = {"io.modelcontextprotocol/clientInfo": {"name": "beta", "version": "admin"}}
    listed = (await client.ask("tools/list", meta_members=info)).result["tools"]
    assert listed == (await client.ask("tools/list")).result["tools"]


@pytest.mark.row("A4", "A11", "A5")
async def test_a_call_that_lacks_scopes_names_them_all_at_once(users: Users) -> None:
    for scope in ("", "reports:write", "reports:read"):
        answer = await users.user(scope=scope).call("publish", tasks=True)
        assert (answer.status, answer.code) == (403, 40300)
        assert challenge_of(answer) == {
            "error": "insufficient_scope",
            "error_description": "The access token has not all the scopes that this takes",
            "resource_metadata": f"{PUBLIC_URL}{WELL_KNOWN}/mcp",
            "scope": "reports:write publish",
        }
        assert answer.json["id"] == 1
        assert "offline_access" not in str(answer.headers)
    assert (await users.user(scope="reports:write publish").call("publish", tasks=True)).status == 200


@pytest.mark.row("A1")
def test_a_prefix_of_a_proxy_stands_after_the_well_known_part() -> None:
    resource = Resource(public_url="https://example.com:8443/ai/tenure", issuers=("https://as",), scopes=())
    assert resource.url(Place("a")) == "https://example.com:8443/ai/tenure/t/a/mcp"
    assert resource.metadata_url(Place("a")) == f"https://example.com:8443{WELL_KNOWN}/ai/tenure/t/a/mcp"
    described = resource.metadata_at(f"{WELL_KNOWN}/ai/tenure/t/a/mcp")
    assert described is not None
    assert b'"resource":"https://example.com:8443/ai/tenure/t/a/mcp"' in described
    assert resource.metadata_at(WELL_KNOWN + "/t/a/mcp") is None


@pytest.mark.row("H2")
async def test_an_origin_is_refused_before_any_token_is_looked_at(users: Users) -> None:
    for client in (users.user(), users.bearing(None), users.bearing("x")):
        answer = await client.ask("tools/list", Origin="https://evil.example")
        assert answer.status == 403
        assert "WWW-Authenticate" not in answer.headers
    refused = await users.bearing(None).send(
        b"", {"Origin": "https://evil.example"}, verb="GET", url=f"http://127.0.0.1:{users.bridge.port}{WELL_KNOWN}"
    )
    assert refused.status == 403


@pytest.mark.row("H28")
async def test_forwarded_headers_count_only_from_a_proxy_that_is_named(config: Config, authority: Authority) -> None:
    async def called(trusted: tuple[str, ...], **headers: Any) -> int:
        running = Bridge(replace(config, trusted_proxies=trusted), connect=lambda _: FakeTaskStore())
        async with started(running), client_of(running) as client:
            client.token = authority.token()
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            return (await client.send(body, headers_for("tools/list", **headers))).status

    proxy, stranger = ("127.0.0.0/8",), ("10.0.0.0/8",)
    over_tls = {"X_Forwarded_Proto": "https", "X_Forwarded_For": "203.0.113.9"}
    assert await called(proxy, **over_tls) == 400  # let in, and only then found to lack its version
    assert await called(proxy, **over_tls, X_Forwarded_Host="mcp.example") == 400
    assert await called(proxy, **over_tls, X_Forwarded_Host="evil.example") == 403
    assert await called(proxy) == 403
    assert await called(proxy, X_Forwarded_Proto="http") == 403
    assert await called(proxy, X_Forwarded_Proto="https, http") == 403
    assert await called(stranger, **over_tls) == 403
    assert await called((), X_Forwarded_Host="evil.example") == 400
