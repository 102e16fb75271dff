"""What the READMEs have a reader type is there to be typed."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import grpc_tools
import pytest
import yaml

from tests.readmes.blocks import ROOT, commands

COMMANDS = sorted(set(commands()))
SCRIPTS = {"tenure": "mcp_bridge.client.command", "tenure-store": "store_service", "tenure-bridge": "mcp_bridge"}
VALUES = re.compile(r"[A-Z]{2,}|-.*|\d+|.*[=/.].*|acme|case 17|not this year")
"""Words of a command that name no command."""


def test_the_commands_are_found() -> None:
    programs = {command.split()[0] for _, command in COMMANDS}
    assert {"make", "pip", "kubectl", "protoc", "tenure", "tenure-store", "tenure-bridge", "python", "export"} <= programs


def test_make_knows_every_target_and_every_variable() -> None:
    asked = {tuple(shlex.split(command)[1:]) for _, command in COMMANDS if command.startswith("make ")}
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    sources = [ROOT / "Makefile", *(ROOT / "tests").rglob("*.py")]
    known = "".join(path.read_text() for path in sources if ".venv" not in path.parts)
    assert len(asked) > 20
    for words in asked:
        (target, *_) = words
        assert target in targets, words
        for variable in (word.partition("=")[0] for word in words[1:]):
            assert re.search(rf"\b{variable}\b", known), words


def programs_named() -> list[tuple[str, ...]]:
    """The commands of our scripts, each without its values: `tenure-store purge prepare`."""
    named = set()
    for _, command in COMMANDS:
        program, *words = shlex.split(command.replace("…", ""))
        if program in SCRIPTS:
            path = [program]
            for word in words:
                if VALUES.fullmatch(word):
                    break
                path.append(word)
            named.add(tuple(path))
    return sorted(named)


@pytest.mark.parametrize("path", programs_named(), ids=" ".join)
def test_every_command_of_ours_is_one(path: tuple[str, ...]) -> None:
    program, *words = path
    done = subprocess.run(
        [sys.executable, "-m", SCRIPTS[program], *words, "--help"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not words or f" {words[0]}" in done.stdout


def test_every_module_that_is_run_is_there() -> None:
    modules = {shlex.split(command)[2] for _, command in COMMANDS if command.startswith("python -m ")}
    assert modules >= {"store_service", "mcp_bridge", "tests.robustness"}
    for name in modules:
        path = ROOT / Path(*name.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name
        source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__main__.py"
        assert '__name__ == "__main__"' in source.read_text(), name


def test_what_is_installed_is_an_extra() -> None:
    asked = [extra for _, command in COMMANDS for extra in re.findall(r"pip install '.*\[([a-z,]+)\]'", command)]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one for names in asked for one in names.split(",")} <= extras.keys()
    assert asked


def test_what_kubectl_is_told_to_apply_and_to_reach_is_there() -> None:
    asked = [shlex.split(command) for _, command in COMMANDS if command.startswith("kubectl ")]
    applied = [words[words.index("-k") + 1] for words in asked if "apply" in words and "-k" in words]
    assert {(ROOT / folder / "kustomization.yaml").exists() for folder in applied} == {True}
    assert {(ROOT / words[words.index("-f") + 1]).exists() for words in asked if "-f" in words} == {True}
    (forward,) = [words for words in asked if "port-forward" in words]
    overlay = yaml.safe_load((ROOT / "k8s" / "overlays" / "dev" / "kustomization.yaml").read_text())
    assert forward[forward.index("-n") + 1] == overlay["namespace"]
    (kind, _, name), port = forward[-2].partition("/"), int(forward[-1])
    resources = [one for path in (ROOT / "k8s" / "base").glob("*.yaml") for one in yaml.safe_load_all(path.read_text()) if one]
    there = {(one["kind"].lower(), one["metadata"]["name"]) for one in resources if "metadata" in one}
    named = {found for words in asked for found in re.findall(r"\b(job|cronjob|deploy(?:ment)?)/([\w-]+)", " ".join(words))}
    assert {("deployment" if kind == "deploy" else kind, which) for kind, which in named} <= there
    (deployment,) = [one for one in resources if one["kind"] == "Deployment" and one["metadata"]["name"] == name]
    assert kind == "deploy"
    ports = [one["containerPort"] for one in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]]
    assert port in ports


def test_protoc_writes_stubs_as_it_is_told(tmp_path: Path) -> None:
    (command,) = [command for _, command in COMMANDS if command.startswith("protoc ")]
    (tmp_path / "stubs").mkdir()
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    (tmp_path / "googleapis").symlink_to(Path(sys.modules["google.rpc"].__path__[0]).parents[1])
    include = Path(grpc_tools.__path__[0]) / "_proto"
    program = shlex.join([sys.executable, "-m", "grpc_tools.protoc", "-I", str(include)])
    subprocess.run(command.replace("protoc", program, 1), shell=True, cwd=tmp_path, check=True, timeout=120)
    assert {path.name for path in (tmp_path / "stubs").rglob("*.py")} >= {"tasks_pb2.py", "leases_pb2_grpc.py"}
