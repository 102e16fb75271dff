"""The secrets of production, as k8s/README.md makes them, are those that the overlay asks for."""

import os
import re
import subprocess
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.readmes.blocks import ROOT, blocks

K8S: Final = ROOT / "k8s"
KUBECTL: Final = """#!/bin/sh
{ for word; do echo "$word"; done; echo; } >> calls
"""


def made(folder: Path) -> dict[str, dict[str, str]]:
    """By name what each has, by a kubectl that only writes down how it is called."""
    (block,) = [one.text for one in blocks() if one.file == "k8s/README.md" and "secret generic" in one.text]
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
    subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=folder, env=environment, check=True, timeout=60)
    found = {}
    for call in (folder / "calls").read_text().strip().split("\n\n"):
        words = call.splitlines()
        if "secret" in words:
            literals = (word.removeprefix("--from-literal=") for word in words if word.startswith("--from-literal="))
            found[words[words.index("generic") + 1]] = dict(literal.split("=", 1) for literal in literals)
    return found


def asked() -> dict[str, set[str]]:
    """By name the keys that production asks for."""
    overlay = yaml.safe_load((K8S / "overlays" / "production" / "kustomization.yaml").read_text())
    folders = [K8S / "overlays" / "production" / each for each in (*overlay["components"], "../../base")]
    text = "".join(path.read_text() for folder in folders for path in folder.glob("*.yaml"))
    found: dict[str, set[str]] = {}
    for name, key in re.findall(r"secretKeyRef: \{name: ([\w-]+), key: ([\w-]+)\}", text):
        found.setdefault(name, set()).add(key)
    for name in re.findall(r"(?:secret|passwordSecret): \{name: ([\w-]+)\}", text):
        found[name] = {"username", "password"}
    return found


def test_the_secrets_that_are_made_are_those_that_are_asked_for(tmp_path: Path) -> None:
    assert {name: set(values) for name, values in made(tmp_path).items()} == asked()


def test_both_logins_are_those_of_the_cluster_and_know_it_by_its_authority(tmp_path: Path) -> None:
    cluster = yaml.safe_load((K8S / "components" / "postgres-cnpg" / "cluster.yaml").read_text())
    begin, (role,) = cluster["spec"]["bootstrap"]["initdb"], cluster["spec"]["managed"]["roles"]
    secrets = made(tmp_path)
    for key, user, secret in (
        ("dsn", role["name"], role["passwordSecret"]["name"]),
        ("owner-dsn", begin["owner"], begin["secret"]["name"]),
    ):
        address = urlsplit(secrets["tenure-store-database"][key])
        assert (address.username, address.password) == (user, secrets[secret]["password"])
        assert secrets[secret]["username"] == user
        assert (address.hostname, address.path) == (f"{cluster['metadata']['name']}-rw", f"/{begin['database']}")
        assert parse_qs(address.query) == {"sslmode": ["verify-full"], "sslrootcert": ["/etc/tenure/postgres/ca.crt"]}
