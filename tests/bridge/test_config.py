"""Settings, and the command line that needs them."""

import base64
from pathlib import Path

import pytest

from mcp_bridge.__main__ import main
from mcp_bridge.config import Config, read_config
from store_service.settings import ConfigError
from tests.bridge.conftest import ROUTES


def test_only_the_route_file_has_no_default() -> None:
    config = read_config({"TENURE_BRIDGE_ROUTES": "r.yaml", "HOME": "/"})
    assert config == Config(routes="r.yaml")
    assert (config.host, config.port, config.admin_port, config.store) == ("127.0.0.1", 8080, 8081, "127.0.0.1:7233")


def test_every_setting_is_read() -> None:
    environment = {
        "TENURE_BRIDGE_ROUTES": "r",
        "TENURE_BRIDGE_HOST": "::1",
        "TENURE_BRIDGE_PORT": "1",
        "TENURE_BRIDGE_STRICT_HEADERS": "true",
        "TENURE_BRIDGE_ALLOWED_ORIGINS": "https://a.example, https://b.example:8443",
        "TENURE_BRIDGE_DRAIN_SECONDS": "0.5",
        "TENURE_LOG_LEVEL": "debug",
    }
    assert read_config(environment) == Config(
        routes="r",
        host="::1",
        port=1,
        strict_headers=True,
        allowed_origins=("https://a.example", "https://b.example:8443"),
        drain_seconds=0.5,
        log_level="debug",
    )


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TENURE_BRIDGE_ROUTES", ""),
        ("TENURE_BRIDGE_PORT", "http"),
        ("TENURE_BRIDGE_PORT", "70000"),
        ("TENURE_BRIDGE_ADMIN_PORT", "-1"),
        ("TENURE_BRIDGE_STRICT_HEADERS", "maybe"),
        ("TENURE_BRIDGE_HOST", "0.0.0.0"),
        ("TENURE_BRIDGE_HOST", "bridge.example"),
        ("TENURE_BRIDGE_HOST", "::"),
        ("TENURE_BRIDGE_DRAIN_SECONDS", "nan"),
        ("TENURE_BRIDGE_STORE", " "),
        ("TENURE_BRIDGE_STORE_RETRY_SECONDS", "11"),
        ("TENURE_BRIDGE_TYPO", "1"),
        ("TENURE_BRIDGE_ALLOWED_ORIGINS", "a.example"),
        ("TENURE_BRIDGE_ALLOWED_ORIGINS", "https://a.example/"),
        ("TENURE_LOG_LEVEL", "loud"),
        ("TENURE_LOG_FORMAT", "xml"),
        ("TENURE_BRIDGE_DEV_TENANT", ""),
    ],
)
def test_a_wrong_setting_is_named(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        read_config({"TENURE_BRIDGE_ROUTES": "r", variable: text})


@pytest.mark.must("H-04", "H-05")
def test_development_mode_off_loopback_says_why_and_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"development mode.*bind to 127\.0\.0\.1"):
        read_config({"TENURE_BRIDGE_ROUTES": "r", "TENURE_BRIDGE_HOST": "0.0.0.0"})


OPEN = {
    "TENURE_BRIDGE_ROUTES": "r",
    "TENURE_BRIDGE_HOST": "0.0.0.0",
    "TENURE_BRIDGE_ISSUERS": "i",
    "TENURE_BRIDGE_PUBLIC_URL": "https://mcp.example",
    "TENURE_BRIDGE_TRUSTED_PROXIES": "10.0.0.0/8",
    "TENURE_BRIDGE_STATE_KEYS": base64.b64encode(bytes(32)).decode(),
}


@pytest.mark.must("H-05")
@pytest.mark.row("H28")
def test_whoever_can_reach_the_bridge_is_asked_for_a_token_over_tls() -> None:
    assert read_config(OPEN).issuers == "i"
    assert read_config({**OPEN, "TENURE_BRIDGE_PUBLIC_URL": "https://mcp.example:8443/ai/x-y"}).public_url
    for variable, text in (
        ("TENURE_BRIDGE_ISSUERS", ""),
        ("TENURE_BRIDGE_PUBLIC_URL", ""),
        ("TENURE_BRIDGE_PUBLIC_URL", "http://mcp.example"),
        ("TENURE_BRIDGE_PUBLIC_URL", "http://127.0.0.1"),
        ("TENURE_BRIDGE_PUBLIC_URL", "https://mcp.example/"),
        ("TENURE_BRIDGE_PUBLIC_URL", "https://MCP.example"),
        ("TENURE_BRIDGE_PUBLIC_URL", "https://mcp.example?x"),
        ("TENURE_BRIDGE_PUBLIC_URL", "https://a@mcp.example"),
        ("TENURE_BRIDGE_TRUSTED_PROXIES", ""),
        ("TENURE_BRIDGE_TRUSTED_PROXIES", "proxy.example"),
        ("TENURE_BRIDGE_STATE_KEYS", ""),
        ("TENURE_BRIDGE_CLOCK_LEEWAY_SECONDS", "61"),
    ):
        with pytest.raises(ConfigError, match="TENURE_BRIDGE"):
            read_config({**OPEN, variable: text})


def test_on_loopback_tokens_may_be_tried_without_tls() -> None:
    trial = {**OPEN, "TENURE_BRIDGE_HOST": "127.0.0.1", "TENURE_BRIDGE_TRUSTED_PROXIES": ""}
    assert read_config({**trial, "TENURE_BRIDGE_PUBLIC_URL": "http://127.0.0.1:8080"}).public_url
    with pytest.raises(ConfigError, match="tokens must not travel in the clear"):
        read_config({**trial, "TENURE_BRIDGE_PUBLIC_URL": "http://mcp.example"})
    with pytest.raises(ConfigError, match="PUBLIC_URL is for a bridge that checks tokens"):
        read_config({"TENURE_BRIDGE_ROUTES": "r", "TENURE_BRIDGE_PUBLIC_URL": "http://127.0.0.1:8080"})


def test_a_good_route_file_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(ROUTES)
    assert main(["check-config", str(file)]) == 0
    assert "11 tools of 1 tenants" in capsys.readouterr().out


def test_a_bad_route_file_fails_the_check_with_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text("version: 2\ntenants:\n  dev:\n    tools: [{}]\n")
    assert main(["check-config", str(file)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert f"{file}:1: version: must be 1" in lines
    assert f"{file}:4: tools[0].workflow: is missing" in lines


def test_a_route_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "/nowhere/routes.yaml"]) == 1
    assert "/nowhere/routes.yaml" in capsys.readouterr().err
