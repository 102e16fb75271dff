"""Puts a run into the README: its table, its picture, its figures as JSON.

python -m tests.benchmarks.publish [RUN.json ...]     the newest run when none is named; of several, the later wins
"""

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import machine, plot
from tests.benchmarks.figures import Figure, cpu_markdown, markdown
from tests.pair import ROOT

FOLDER: Final = Path(__file__).parent
README: Final = FOLDER / "README.md"
_BEGIN: Final = "<!-- the last run: make bench-publish -->\n"
_END: Final = "<!-- the end of the last run -->\n"


def main() -> None:
    """Writes README.md, last_run.svg and last_run.json."""
    runs = [Path(each) for each in sys.argv[1:]] or [max((ROOT / ".tenure" / "bench").glob("2*.json"))]
    kept = _together([json.loads(run.read_text()) for run in runs])
    run = ROOT / ".tenure" / "bench" / "published.json"
    run.write_text(json.dumps(kept))
    print(plot.draw(run))
    picture = run.with_suffix(".svg").read_text()
    (FOLDER / "last_run.svg").write_text(re.sub(r">\s+<", "><", picture))
    (FOLDER / "last_run.json").write_text(json.dumps(_rounded(kept), separators=(",", ":")) + "\n")
    figures = [Figure.from_json(one) for one in kept["figures"]]
    aims = [one for one in figures if one.target is not None]
    met = sum(one.verdict == "met" for one in aims)
    told = (
        f"{_wrapped('; '.join(kept['told']))}.\n\n{_shared(kept['machine'])}{met} of {len(aims)} are met.\n\n"
        f"![The last run](last_run.svg)\n\n{markdown(figures)}\n\n{cpu_markdown(figures)}\n"
    )
    text = README.read_text()
    before, after = text[: text.index(_BEGIN) + len(_BEGIN)], text[text.index(_END) :]
    README.write_text(f"{before}\n{told}\n{after}")


def _together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs of one machine as if they were one."""
    names = {one["id"] for run in runs for one in run["figures"]}
    last = {name: next(run for run in reversed(runs) if any(one["id"] == name for one in run["figures"])) for name in names}
    return {
        "machine": runs[-1]["machine"]
        | {name: max(run["machine"][name] for run in runs) for name in ("load_before", "load_after")},
        "told": [machine.sentence(run["machine"]) for run in runs],
        "figures": [
            one for name in sorted(names, key=lambda name: int(name[1:])) for one in last[name]["figures"] if one["id"] == name
        ],
        "curves": next((run["curves"] for run in reversed(runs) if run["curves"]), []),
    }


def _shared(described: dict[str, float]) -> str:
    """A warning, where others used the machine too."""
    if described["load_before"] <= described["cores"]:
        return ""
    warning = (
        f"**The machine was shared**: {described['load_before']:g} others wanted its {described['cores']} cores "
        "when the run began. The rates are a fraction of those of a quiet machine, and the ratios waver with what others did: "
        "these figures show that the benchmarks run, and little of how fast anything is. The CPU of each process says more."
    )
    return f"{_wrapped(warning)}\n\n"


def _wrapped(prose: str) -> str:
    """In lines as long as the page's others."""
    return textwrap.fill(prose, 127, break_on_hyphens=False)


def _rounded(value: object) -> object:
    """Four digits are more than the rounds agree in."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list():
            return [_rounded(one) for one in value]
    return value


if __name__ == "__main__":
    main()
