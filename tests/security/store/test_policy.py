"""What is wrong with a policy or with the settings around it is said before the store serves."""

import re
from pathlib import Path

import pytest

from store_service.config import read_config
from store_service.rpc.policy import PolicyError, read_policy
from store_service.settings import ConfigError

DSN = {"TENURE_STORE_DSN": "postgresql://localhost/tenure"}
TWO_WORKERS = """
version: 1
callers:
  - {identity: a, role: worker, worker: mail, tenants: ["*"]}
  - {identity: b, role: worker, worker: mail-eu, tenants: ["*"]}
"""
BRIDGE = "{identity: a, role: bridge, tenants: ['*']}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expected `object`"),
        ("version: 2\ncallers: []", "version must be 1"),
        ("version: 1\ncallers: [{identity: a, role: king, tenants: ['*']}]", "Invalid enum value 'king'"),
        ("version: 1\ncallers: [{identity: a, role: bridge}]", "missing required field `tenants`"),
        ("version: 1\ncallers: [{identity: a, role: bridge, tenants: []}]", "callers[0].tenants: names nothing"),
        ("version: 1\ncallers: [{identity: a, role: bridge, tenants: ['*', acme]}]", "'*' stands alone"),
        ("version: 1\ncallers: [{identity: '', role: bridge, tenants: ['*']}]", "callers[0].identity: is empty"),
        (f"version: 1\ncallers: [{BRIDGE}, {BRIDGE}]", "callers[1].identity: a stands twice"),
        ("version: 1\ncallers: [{identity: a, role: bridge, tenants: ['*'], color: red}]", "unknown field `color`"),
        ("version: 1\ncallers: [{identity: a, role: worker, tenants: ['*']}]", "a worker must have one"),
        ("version: 1\ncallers: [{identity: a, role: bridge, worker: a, tenants: ['*']}]", "and nobody else"),
        ("version: 1\ncallers: [{identity: a, role: bridge, workflows: [b], tenants: ['*']}]", "are for workers"),
        ("version: 1\ncallers: [{identity: a, role: bridge, tenants: ['*'], most_calls: 0}]", "most_calls: must be 1"),
        (TWO_WORKERS, "could take each other's ids"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=re.escape(said)):
        read_policy(path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"HOST": "0.0.0.0"}, "TENURE_STORE_HOST is 0.0.0.0"),
        ({"POLICY": "p"}, "TENURE_STORE_POLICY is set without TENURE_STORE_TLS_CERTIFICATE"),
        ({"TLS_CERTIFICATE": "c"}, "TENURE_STORE_TLS_KEY is missing"),
        ({"TLS_CERTIFICATE": "c", "TLS_KEY": "k"}, "TENURE_STORE_POLICY is missing"),
        ({"TLS_CERTIFICATE": "c", "TLS_KEY": "k", "POLICY": "p"}, "set one of TENURE_STORE_TLS_CLIENT_CA"),
        (
            {"TLS_CERTIFICATE": "c", "TLS_KEY": "k", "POLICY": "p", "TLS_CLIENT_CA": "a", "TOKEN_KEYS": "j"},
            "set one of TENURE_STORE_TLS_CLIENT_CA",
        ),
        ({"TLS_CERTIFICATE": "c", "TLS_KEY": "k", "POLICY": "p", "TOKEN_KEYS": "j"}, "TENURE_STORE_TOKEN_ISSUER is missing"),
    ],
)
def test_identities_encryption_and_policy_come_together(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_config(DSN | {f"TENURE_STORE_{name}": value for name, value in settings.items()})
    whole = {"HOST": "0.0.0.0", "TLS_CERTIFICATE": "c", "TLS_KEY": "k", "POLICY": "p", "TLS_CLIENT_CA": "a"}
    assert read_config(DSN | {f"TENURE_STORE_{name}": value for name, value in whole.items()}).policy == "p"
