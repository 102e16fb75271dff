"""The overlays as a cluster would see them. Run by `make k8s-check`, in an environment of its own."""

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

K8S = Path(__file__).parents[2] / "k8s"
KUBECTL = Path(sys.prefix) / "bin" / "kubectl"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())

Resource = Mapping[str, Any]


@cache
def render(overlay: str) -> tuple[Resource, ...]:
    """Every resource of an overlay."""
    command: list[str | Path] = [KUBECTL, "kustomize", K8S / "overlays" / overlay]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(yaml.safe_load_all(rendered))


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    """Each overlay."""
    name: str = request.param
    return name


@pytest.fixture
def resources(overlay: str) -> tuple[Resource, ...]:
    """The resources of each overlay."""
    return render(overlay)
