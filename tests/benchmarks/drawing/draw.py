"""Draws a run of the benchmarks: python draw.py RUN.json, which leaves RUN.svg and RUN.png beside it.

Every dot is a median; the pale stretch behind it reaches from the least to the most of its rounds.
"""

import json
import statistics
import sys
import textwrap
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

INK, FAINT, OURS, THEIRS, BAD = "#1f2430", "#c9ced8", "#1f6feb", "#8a93a3", "#d1495b"
COLOURS = {"bare aiohttp": "#8a93a3", "Tenure: tasks/get": "#1f6feb", "Tenure: tools/call that creates": "#14919b"}
PEER = "#e08e45"
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.edgecolor": FAINT, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titleweight": "bold", "axes.titlesize": 11, "axes.titlelocation": "left", "figure.facecolor": "white",
    "svg.fonttype": "path", "svg.hashsalt": "tenure",
}  # fmt: skip


WIDTH, LEFT, RIGHT, MIDDLE = 14.0, 4.9, 1.7, 2.5  # inches: the picture, its labels, its figures, the labels in the middle
ROW, GAP, CURVE = 0.33, 1.1, 3.6


def main(run: Path) -> None:
    kept = json.loads(run.read_text())
    figures = [one for one in kept["figures"] if not one["missing"]]
    aimed = [one for one in figures if one["target"]]
    rates = [one for one in figures if one["unit"] == "/s" and one["theirs"]]
    times = [one for one in figures if one["unit"] == "ms" and one["theirs"]]
    with mpl.rc_context(STYLE):
        heights = [ROW * len(aimed), max(ROW * len(rates), 0.55 * len(times)), CURVE * len(kept["curves"])]
        height = 0.5 + sum(each + GAP for each in heights if each)
        picture, top = plt.figure(figsize=(WIDTH, height)), height - 0.5
        picture.text(0.15 / WIDTH, 1 - 0.2 / height, _title(kept["machine"]), fontsize=9, color="#596273", va="center")

        def place(left: float, width: float, tall: float) -> Axes:
            return picture.add_axes((left / WIDTH, (top - 0.3 - tall) / height, width / WIDTH, tall / height))

        if aimed:
            targets(place(LEFT, WIDTH - LEFT - RIGHT, heights[0]), aimed)
            top -= heights[0] + GAP
        half = (WIDTH - LEFT + 1.4 - MIDDLE) / 2
        if rates or times:
            pairs(place(LEFT - 1.7, half, heights[1]), rates, "Rates: more is better", "a second, logarithmic")
            pairs(place(WIDTH - half - 0.2, half, heights[1]), times, "Times: less is better", "milliseconds, logarithmic")
            top -= heights[1] + GAP
        for curve in kept["curves"]:
            throughput(place(0.9, WIDTH / 2 - 1.4, CURVE), curve)
            latency(place(WIDTH / 2 + 0.6, WIDTH / 2 - 0.8, CURVE), curve)
        picture.savefig(run.with_suffix(".svg"), metadata={"Date": None})
        picture.savefig(run.with_suffix(".png"), dpi=110)


def targets(axes: Axes, figures: list[dict]) -> None:
    """How far past its target, or short of it, each figure is: 1 is the target, right of it is better."""
    for place, one in enumerate(reversed(figures)):
        past = sorted(_past(value, one["target"]) for value in one["rounds"])
        middle = statistics.median(past)
        colour = OURS if one["verdict"] == "met" else BAD
        axes.plot([past[0], past[-1]], [place, place], color=colour, lw=4, alpha=0.25, solid_capstyle="round")
        axes.plot([1, middle], [place, place], color=colour, lw=1.2)
        axes.plot(middle, place, "o", color=colour, ms=7)
        axes.annotate(
            f"{_short(one['median'])} ({one['target']['text']})", (1.01, place), xycoords=("axes fraction", "data"),
            va="center", fontsize=8.5, color=colour,
        )  # fmt: skip
    axes.set_yticks(range(len(figures)), [_label(one) for one in reversed(figures)])
    axes.set_ylim(-0.7, len(figures) - 0.3)
    axes.axvline(1, color=INK, lw=1)
    axes.set_xscale("log")
    ends = [_past(value, one["target"]) for one in figures for value in one["rounds"]]
    axes.set_xlim(min(0.5, min(ends) / 1.2), max(2, max(ends) * 1.2))
    _plain(axes, (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50))
    axes.set_title("Against the targets: at the line it is met, to the right it is better (median, and all rounds)")
    axes.set_xlabel("times the target, logarithmic; on the right the figure itself")
    axes.grid(axis="x", color=FAINT, lw=0.5)


def pairs(axes: Axes, figures: list[dict], title: str, label: str) -> None:
    """Ours and what it is held against, on one line each."""
    axes.set_title(title)
    if not figures:
        axes.set_axis_off()
        return
    for place, one in enumerate(reversed(figures)):
        middles = [statistics.median(one[side]) for side in ("ours", "theirs")]
        axes.plot(middles, [place, place], color=FAINT, lw=2, zorder=1)
        for values, middle, colour in zip((one["ours"], one["theirs"]), middles, (OURS, _theirs(one)), strict=True):
            axes.plot([min(values), max(values)], [place, place], color=colour, lw=5, alpha=0.25, solid_capstyle="round")
            axes.plot(middle, place, "o", color=colour, ms=7)
            first = middle == min(middles)
            axes.annotate(
                _short(middle), (min(values) if first else max(values), place), xytext=(-7 if first else 7, 0),
                textcoords="offset points", va="center", ha="right" if first else "left", fontsize=8, color=colour,
            )  # fmt: skip
    axes.set_yticks(range(len(figures)), ["\n".join(textwrap.wrap(_label(one), 42)) for one in reversed(figures)], fontsize=8)
    axes.set_ylim(-0.7, len(figures) - 0.3)
    axes.set_xscale("log")
    every = [value for one in figures for value in (*one["ours"], *one["theirs"])]
    axes.set_xlim(min(every) / 3.5, max(every) * 3.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
    axes.grid(axis="x", color=FAINT, lw=0.5)
    axes.set_axisbelow(True)
    if not label.startswith("milli"):
        return
    for name, colour in (("Tenure", OURS), ("a peer", PEER), ("the machine's limit, or Tenure otherwise", THEIRS)):
        axes.plot([], [], "o", color=colour, label=name)
    axes.legend(
        loc="upper right", bbox_to_anchor=(1, 0), borderaxespad=4.3, ncols=3, fontsize=8.5, frameon=False, handletextpad=0.1
    )


def throughput(axes: Axes, curve: dict) -> None:
    for name, points in curve["series"].items():
        axes.plot([one[0] for one in points], [one[1] for one in points], "o-", color=COLOURS.get(name, PEER), label=name, ms=4)
    axes.set_title("Throughput against requests in flight")
    axes.set_ylabel("answers a second, logarithmic")
    axes.set_yscale("log")
    _in_flight(axes, curve)
    axes.set_ylim(top=8 * max(one[1] for points in curve["series"].values() for one in points))
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", ncols=2)


def latency(axes: Axes, curve: dict) -> None:
    for name, points in curve["series"].items():
        flights, colour = [one[0] for one in points], COLOURS.get(name, PEER)
        axes.plot(flights, [one[2] for one in points], "o-", color=colour, label=name, ms=4)
        axes.plot(flights, [one[3] for one in points], ".--", color=colour, lw=1)
    axes.set_title("Latency against requests in flight: p50 (solid) and p99 (dashed)")
    axes.set_ylabel("milliseconds, logarithmic")
    axes.set_yscale("log")
    _in_flight(axes, curve)


def _in_flight(axes: Axes, curve: dict) -> None:
    flights = [one[0] for one in next(iter(curve["series"].values()))]
    axes.set_xscale("log", base=2)
    axes.set_xticks(flights, [str(each) for each in flights])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("requests in flight")
    axes.grid(color=FAINT, lw=0.5)


def _plain(axes: Axes, ticks: tuple[float, ...]) -> None:
    least, most = axes.get_xlim()
    shown = [each for each in ticks if least <= each <= most]
    axes.set_xticks(shown, [f"{each:g}x" for each in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def _past(value: float, target: dict) -> float:
    return value / target["value"] if target["sense"] == "at least" else target["value"] / value


def _theirs(one: dict) -> str:
    return PEER if one["kind"] == "peer" else THEIRS


def _label(one: dict) -> str:
    return f"{one['id']}  {one['what']}" + (f" / {one['against']}" if one["against"] else "")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _title(machine: dict) -> str:
    return (
        f"Tenure, {machine['at']}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}, {machine['postgres']}; "
        f"load {machine['load_before']} before, {machine['load_after']} after"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
