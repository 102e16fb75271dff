"""`tenure-bridge dev-token`: tokens for trials on one machine, and for nothing else. Security checklist A15, S1."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_bridge.__main__ import main
from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from tests.bridge.client import client_of
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import started
from tests.security.authority import AUDIENCE

TRIAL = "http://127.0.0.1:8080"


def issue(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> str:
    assert main(["dev-token", "--folder", str(folder), *more]) == 0
    return capsys.readouterr().out.strip()


async def test_a_trial_token_lets_in_at_a_bridge_that_is_set_up_for_it(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "issuer"
    token = issue(capsys, folder, "--tenant", "acme", "--subject", "eve", "--scope", "reports:write payroll", "--group", "hr")
    later = issue(capsys, folder, "--tenant", "beta")
    assert stat.S_IMODE((folder / "key.json").stat().st_mode) == 0o600
    assert '"d"' not in (folder / "jwks.json").read_text()
    settings = replace(config, issuers=str(folder / "issuers.yaml"), public_url=TRIAL)
    running = Bridge(settings, connect=lambda _: FakeTaskStore())
    async with started(running), client_of(running) as client:
        for client.token, count in ((token, 4), (later, 1)):
            assert len((await client.ask("tools/list")).result["tools"]) == count


@pytest.mark.row("A15")
@pytest.mark.parametrize("audience", [AUDIENCE, "https://127.0.0.1.evil.example/mcp", "x", ""])
def test_no_trial_token_is_for_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], audience: str) -> None:
    assert main(["dev-token", "--folder", str(tmp_path), "--audience", audience]) == 1
    captured = capsys.readouterr()
    assert "loopback only" in captured.err
    assert not captured.out


@pytest.mark.row("A15")
@pytest.mark.parametrize(
    ("variable", "text"), [("TENURE_BRIDGE_HOST", "0.0.0.0"), ("TENURE_BRIDGE_PUBLIC_URL", "https://mcp.example")]
)
def test_no_trial_token_is_made_where_a_bridge_is_reached_by_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    assert main(["dev-token", "--folder", str(tmp_path)]) == 1
    assert variable in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_issuer_file_of_a_trial_passes_the_check(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issue(capsys, tmp_path)
    assert main(["check-config", config.routes, "--issuers", str(tmp_path / "issuers.yaml")]) == 0
    (tmp_path / "issuers.yaml").write_text("version: 1\nissuers: []\n")
    assert main(["check-config", config.routes, "--issuers", str(tmp_path / "issuers.yaml")]) == 1
    assert "must be a list of 1 to 100 issuers" in capsys.readouterr().err
