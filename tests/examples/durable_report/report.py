"""A worker with one workflow: a report on a data set, one durable step for each part of it.

Run it beside a store: `python -m tests.examples.durable_report.report 127.0.0.1:7233`.
"""

import csv
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from store_service.client import Context, ToolError, Worker

DATA = Path(__file__).with_name("penguins.csv")
MEASURES = {
    "bill_length_mm": "bill length (mm)",
    "bill_depth_mm": "bill depth (mm)",
    "flipper_length_mm": "flipper length (mm)",
    "body_mass_g": "body mass (g)",
}
GROUPS = ("species", "island", "sex", "year")

Row = dict[str, str]


async def durable_report(ctx: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    """Describes every measure by group, then how measures go together. A step that is done is never done again."""
    group_by = arguments.get("group_by", "species")
    pace = float(arguments.get("seconds_per_step", 2))
    if group_by not in GROUPS:
        raise ToolError(f"group_by must be one of {', '.join(GROUPS)}")
    steps = len(MEASURES) + 3

    await ctx.progress(0, steps, "reading the data")
    overview = await ctx.step("overview", read_overview, pace)
    parts = {}
    for number, (measure, title) in enumerate(MEASURES.items(), start=1):
        await ctx.progress(number, steps, f"describing {title} by {group_by}")
        parts[measure] = await ctx.step(f"describe {measure}", describe, measure, group_by, pace)
    await ctx.progress(steps - 2, steps, "relating flipper length to body mass")
    relation = await ctx.step("relate", relate, "flipper_length_mm", "body_mass_g", pace)
    await ctx.progress(steps - 1, steps, "writing the report")
    text = await ctx.step("write", write, overview, group_by, parts, relation, pace)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"overview": overview, "group_by": group_by, "measures": parts, "relation": relation},
    }


def read_overview(pace: float) -> dict[str, Any]:
    """How much there is."""
    time.sleep(pace)
    rows = _read()
    complete = sum(all(row[measure] for measure in MEASURES) for row in rows)
    return {"rows": len(rows), "complete": complete, "species": sorted({row["species"] for row in rows})}


def describe(measure: str, group_by: str, pace: float) -> dict[str, dict[str, float]]:
    """Count, mean, standard deviation, least and most of a measure in each group."""
    time.sleep(pace)
    groups: dict[str, list[float]] = defaultdict(list)
    for row in _read():
        if row[measure] and row[group_by]:
            groups[row[group_by]].append(float(row[measure]))
    return {
        name: {
            "n": len(values),
            "mean": round(statistics.fmean(values), 2),
            "sd": round(statistics.stdev(values), 2),
            "min": min(values),
            "max": max(values),
        }
        for name, values in sorted(groups.items())
    }


def relate(one: str, other: str, pace: float) -> dict[str, Any]:
    """The straight line through two measures and how well it fits."""
    time.sleep(pace)
    pairs = [(float(row[one]), float(row[other])) for row in _read() if row[one] and row[other]]
    xs, ys = zip(*pairs, strict=True)
    slope, intercept = statistics.linear_regression(xs, ys)
    return {
        "x": one, "y": other, "n": len(pairs), "slope": round(slope, 3), "intercept": round(intercept, 1),
        "r": round(statistics.correlation(xs, ys), 4),
    }  # fmt: skip


def write(overview: dict[str, Any], group_by: str, parts: dict[str, Any], relation: dict[str, Any], pace: float) -> str:
    """The report as text."""
    time.sleep(pace)
    lines = [f"{overview['rows']} penguins ({', '.join(overview['species'])}), {overview['complete']} measured completely."]
    for measure, groups in parts.items():
        lines += ["", f"{MEASURES[measure]} by {group_by}", f"  {'':<12}{'n':>5}{'mean':>10}{'sd':>9}{'min':>9}{'max':>9}"]
        lines += [
            f"  {name:<12}{one['n']:>5}{one['mean']:>10.2f}{one['sd']:>9.2f}{one['min']:>9.1f}{one['max']:>9.1f}"
            for name, one in groups.items()
        ]
    slope = relation["slope"]
    lines += [
        "",
        f"Each millimetre of flipper goes with {slope:.1f} g of body mass (r = {relation['r']:.2f}, n = {relation['n']}).",
    ]
    return "\n".join(lines)


def _read() -> list[Row]:
    """The rows, with what was not measured as an empty text."""
    with DATA.open(newline="", encoding="utf-8") as file:
        return [{key: "" if value == "NA" else value for key, value in row.items()} for row in csv.DictReader(file)]


def main(store: str, worker_id: str | None = None) -> None:
    """Runs a worker until it is told to stop."""
    worker = Worker(store=store, worker_id=worker_id, lease_seconds=4)
    worker.workflow("durable-report", version=1)(durable_report)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
