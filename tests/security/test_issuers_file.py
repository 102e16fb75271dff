"""The issuer file: whose tokens are believed is written without a slip. Security checklist A1, A5, A15, A16."""

from pathlib import Path

import pytest

from mcp_bridge.access.config_files import ConfigFileError
from mcp_bridge.access.issuers import DEVELOPMENT_ISSUER, Issuers, load_issuers

ONE = "{issuer: 'https://as.example', jwks: 'https://as.example/jwks'}"
TWO = "{issuer: 'https://b.example', jwks: keys.json, tenant: beta}"


def issuers_of(folder: Path, *issuers: str, more: str = "", on_loopback: bool = False) -> Issuers:
    file = folder / "issuers.yaml"
    file.write_text(f"version: 1\n{more}issuers:\n" + "".join(f"  - {one}\n" for one in issuers))
    return load_issuers(str(file), on_loopback=on_loopback)


def test_what_is_not_said_is_as_most_have_it(tmp_path: Path) -> None:
    (one,) = issuers_of(tmp_path, ONE).all
    assert (one.tenant, one.tenants, one.ca, one.algorithms) == (None, None, None, ("RS256", "ES256"))
    assert (one.tenant_claim, one.scopes_claim, one.groups_claim) == ("tenant", "scope", "groups")


def test_files_lie_beside_the_issuer_file(tmp_path: Path) -> None:
    (one,) = issuers_of(tmp_path, "{issuer: 'https://b.example', jwks: keys.json}").all
    assert (one.jwks, one.reads_url) == (str(tmp_path / "keys.json"), False)


@pytest.mark.row("A15")
def test_away_from_loopback_nothing_travels_in_the_clear(tmp_path: Path) -> None:
    plain = "{issuer: 'http://127.0.0.1:9', jwks: 'http://127.0.0.1:9/jwks'}"
    assert issuers_of(tmp_path, plain, on_loopback=True).all[0].reads_url
    with pytest.raises(ConfigFileError) as caught:
        issuers_of(tmp_path, plain)
    assert {problem.path[-1] for problem in caught.value.problems} == {"issuer", "jwks"}
    with pytest.raises(ConfigFileError, match="must be an https URL"):
        issuers_of(tmp_path, "{issuer: 'https://as.example', jwks: 'http://as.example/jwks'}", on_loopback=True)


@pytest.mark.row("A16")
@pytest.mark.parametrize(
    ("issuers", "fault"),
    [
        ((ONE, TWO), r"3: issuers\[0\]: must have `tenant` or `tenants`"),
        ((TWO, TWO), r"issuers\[1\].issuer: the issuer is there twice"),
        (("{issuer: 'https://a', jwks: j, tenant: a, tenants: [b]}",), "is said for all callers"),
        (("{issuer: 'https://a', jwks: j, tenant: a b}",), "must be a tenant"),
        (("{issuer: 'https://a', jwks: j, algorithms: [HS256]}",), "must be one of RS256"),
        (("{issuer: 'https://a', jwks: j, algorithms: [none]}",), "must be one of RS256"),
        (("{issuer: 'https://a?b', jwks: j}",), "must be the URL that tokens have"),
        (("{issuer: 'https://u@a', jwks: j}",), "must be an https URL"),
        (("{issuer: 'https://a', jwks: j, ca: c}",), "is for keys that are read over HTTPS"),
        (("{issuer: 'https://a'}",), "jwks: is missing"),
        (("{issuer: 'https://a', jwks: j, typo: 1}",), "typo: is not a key that is known here"),
    ],
    ids=str,
)
def test_every_slip_is_told_with_its_line(tmp_path: Path, issuers: tuple[str, ...], fault: str) -> None:
    with pytest.raises(ConfigFileError, match=fault):
        issuers_of(tmp_path, *issuers)


@pytest.mark.row("A5")
@pytest.mark.parametrize("scope", ["offline_access", "a b", '"', "", "é"])
def test_a_scope_that_no_resource_may_ask_for_is_refused(tmp_path: Path, scope: str) -> None:
    assert issuers_of(tmp_path, ONE, more="scopes: ['mcp']\n").scopes == ("mcp",)
    with pytest.raises(ConfigFileError, match="must be a scope"):
        issuers_of(tmp_path, ONE, more=f"scopes: ['{scope}']\n")


def test_development_tokens_are_believed_on_loopback_only(tmp_path: Path) -> None:
    development = f"{{issuer: '{DEVELOPMENT_ISSUER}', jwks: jwks.json}}"
    assert issuers_of(tmp_path, development, on_loopback=True).all
    with pytest.raises(ConfigFileError, match="development tokens, which are believed on loopback only"):
        issuers_of(tmp_path, development)
