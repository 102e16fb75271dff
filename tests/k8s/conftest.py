"""The overlays as a cluster would see them. Run by `make k8s-check`, in an environment of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

K8S = Path(__file__).parents[2] / "k8s"
KUBECTL = Path(sys.prefix) / "bin" / "kubectl"
TRACED = "production with traces"
OVERLAYS = [*sorted(path.name for path in (K8S / "overlays").iterdir()), TRACED]

Resource = Mapping[str, Any]


@cache
def render(overlay: str) -> tuple[Resource, ...]:
    """Every resource of an overlay."""
    if overlay != TRACED:
        return _render(K8S / "overlays" / overlay)
    with tempfile.TemporaryDirectory() as folder:
        parts = {"resources": "overlays/production", "components": "components/traces"}
        paths = {kind: [os.path.relpath(K8S / part, Path(folder).resolve())] for kind, part in parts.items()}
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(paths))
        return _render(Path(folder))


def _render(folder: Path) -> tuple[Resource, ...]:
    command: list[str | Path] = [KUBECTL, "kustomize", folder]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(yaml.safe_load_all(rendered))


def named(resource: Resource) -> str:
    """Its kind and name."""
    return f"{resource['kind']}/{resource['metadata']['name']}"


def templates(resources: tuple[Resource, ...]) -> Iterator[tuple[str, Any]]:
    """Name and pod template of whatever runs pods."""
    for resource in resources:
        spec = resource.get("spec", {})
        if template := spec.get("jobTemplate", {}).get("spec", spec).get("template"):
            yield named(resource), template


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    """Each overlay."""
    name: str = request.param
    return name


@pytest.fixture
def resources(overlay: str) -> tuple[Resource, ...]:
    """The resources of each overlay."""
    return render(overlay)
