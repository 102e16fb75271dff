"""What Tenure stands on when it runs: its licences, and its list (SBOM).

python -m tests.security.supply_chain            # the licence of each package, and whether it may be one
python -m tests.security.supply_chain sbom       # dist/tenure.cdx.json, CycloneDX 1.5
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SBOM: Final = ROOT / "dist" / "tenure.cdx.json"
ALLOWED: Final = frozenset({"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MIT-0", "PSF-2.0"})
"""By SPDX. Each lets Tenure be used, changed and sold with it; to add one is a decision, not a repair."""
_NAMES: Final = {"Apache 2.0": "Apache-2.0", "3-Clause BSD License": "BSD-3-Clause", "MIT License": "MIT"}
"""How packages without a licence expression write theirs."""
_READ: Final = {"python-dateutil": "Apache-2.0 AND BSD-3-Clause"}
"""What the LICENSE file says of packages that say too little of themselves."""


def read_packages() -> dict[str, Any]:
    """All that `tenure[store,bridge,client,archive]` installs, from the lock file, as CycloneDX. Raises RuntimeError."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "export", "--frozen", "--quiet", "--no-default-groups", "--all-extras", "--format", "cyclonedx1.5"]
    command += ["--preview-features", "sbom-export"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"uv export ended with {done.returncode}: {done.stderr}")
    sbom: dict[str, Any] = json.loads(done.stdout)
    return sbom


def licence_of(name: str) -> str:
    """What an installed package says of its licence, as SPDX where it is known; empty for one that says nothing."""
    if name in _READ:
        return _READ[name]
    told = metadata.metadata(name).json
    text = str(told.get("license_expression") or told.get("license") or "").strip()
    return _NAMES.get(text, text)


def is_allowed(licence: str) -> bool:
    """Whether an SPDX expression without brackets leaves a choice that is allowed."""
    return any(ALLOWED.issuperset(choice.split(" AND ")) for choice in licence.split(" OR "))


def faults(licences: Mapping[str, str]) -> list[str]:
    """Packages whose licence may not be one."""
    return [f"{name}: {licence or 'no licence is told'}" for name, licence in licences.items() if not is_allowed(licence)]


def write_sbom(sbom: dict[str, Any], licences: Mapping[str, str], path: Path = SBOM) -> None:
    """Writes the list, each package with its licence."""
    for component in sbom["components"]:
        licence = licences[component["name"]]
        is_expression = re.search(" (AND|OR) ", licence)
        component["licenses"] = [{"expression": licence} if is_expression else {"license": {"id": licence}}]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(sbom, indent=1) + "\n")


def main(arguments: Iterable[str]) -> int:
    """The command."""
    sbom = read_packages()
    licences = {one["name"]: licence_of(one["name"]) for one in sbom["components"]}
    if wrong := faults(licences):
        sys.stderr.write("".join(f"not allowed: {fault}\n" for fault in wrong))
        return 1
    if "sbom" in arguments:
        write_sbom(sbom, licences)
        sys.stdout.write(f"{len(licences)} packages in {SBOM.relative_to(ROOT)}\n")
    else:
        sys.stdout.write(f"the licences of {len(licences)} packages are allowed: {', '.join(sorted(set(licences.values())))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
