"""Figures as SVG and PNG whose bytes depend on the data alone (thinker-spec 17)."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dosematch.errors import UserError
from dosematch.records import write_atomically

# Okabe and Ito's palette: told apart with every common form of colour blindness; yellow is left out, too pale on white
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
LINE_STYLES = ("-", "--", ":")
PAGE_WIDTH = 7.2  # inches
METADATA = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}  # None leaves the tag out
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same glyphs
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e2e2e2",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "dosematch",
    "savefig.dpi": 200,
}
Curves = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]  # (arm, seed) -> rows of val500_curve.jsonl


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure to each path, in the format of its suffix (.svg or .png), without date or version in it."""
    for path in paths:
        if path.suffix not in METADATA:
            raise UserError(f"{path}: figures are written as .svg or .png")
        kind = path.suffix.removeprefix(".")
        with mpl.rc_context(STYLE):
            write_atomically(path, partial(figure.savefig, format=kind, metadata=METADATA[path.suffix]))


def figure1(summary: Mapping[str, Any]) -> Figure:
    """Accuracy per arm and suite as grouped bars; dots are single seeds, dashed lines the parent."""
    arms = [name for name in summary["arm_order"] if name in summary["arms"]]
    suites = summary["suite_order"]
    height = 0.8 / len(suites)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_WIDTH, 1.3 + 0.24 * len(arms) * (len(suites) + 0.6)), layout="constrained")
        axes = figure.add_subplot()
        for number, suite in enumerate(suites):
            at = np.arange(len(arms)) + (number - (len(suites) - 1) / 2) * height
            _suite_bars(
                axes, at, 0.92 * height, [summary["arms"][arm] for arm in arms], suite, PALETTE[number % len(PALETTE)]
            )
            if parent := summary["arms"].get(summary["parent"]):
                line = 100 * parent[suite]["pooled"] / parent[suite]["n"]
                axes.axvline(line, color=PALETTE[number % len(PALETTE)], linestyle=(0, (4, 2)), linewidth=1.1, zorder=3)
        axes.set_yticks(range(len(arms)), arms)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0)
        axes.margins(x=0.08, y=0.02)
        axes.set_xlabel(f"correct answers, % (dots: single seeds; dashed: {summary['parent']})")
        figure.legend(loc="outside upper left", ncols=len(suites), handlelength=1.2)
    return figure


def _suite_bars(
    axes: Axes, at: np.ndarray, height: float, arms: Sequence[Mapping[str, Any]], suite: str, colour: str
) -> None:
    """Bars of one suite at the positions `at`, each with its value and its seeds as dots."""
    pooled = [100 * arm[suite]["pooled"] / arm[suite]["n"] for arm in arms]
    axes.barh(at, pooled, height, color=colour, alpha=0.85, label=suite)
    for y, value, arm in zip(at, pooled, arms, strict=True):
        per_seed = arm[suite]["n"] / len(arm["seeds"])
        dots = [100 * arm[suite][f"s{seed}"] / per_seed for seed in arm["seeds"]]
        axes.scatter(dots, [y] * len(dots), s=10, color="white", edgecolors="#222222", linewidths=0.7, zorder=3.5)
        axes.annotate(
            f"{value:.2f}",
            (max(value, *dots), y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},  # keeps the figures clear of the dashed lines
            zorder=4,
        )


def training_curves(curves: Curves, arm_order: Sequence[str]) -> Figure:
    """Accuracy on the development panel over training steps: a thin line per seed, a thick one for their mean.

    The mean is drawn at the steps that every seed of the arm has. Raises `UserError` for an arm outside `arm_order`.
    """
    if unknown := sorted({arm for arm, _ in curves} - set(arm_order)):
        raise UserError(f"curves: arm {unknown[0]} is not among the arms of the summary")
    arms = [arm for arm in arm_order if any(arm == name for name, _ in curves)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_WIDTH, 3.6 + 0.2 * (len(arms) // 3)), layout="constrained")
        axes = figure.add_subplot()
        for number, arm in enumerate(arms):
            colour, style = PALETTE[number % len(PALETTE)], LINE_STYLES[number // len(PALETTE) % len(LINE_STYLES)]
            logs = [rows for (name, _), rows in curves.items() if name == arm]
            by_seed = [{row["step"]: 100 * row["accuracy"] for row in rows} for rows in logs]
            for points in by_seed:
                axes.plot(list(points), list(points.values()), style, color=colour, alpha=0.4, linewidth=0.8)
            steps = sorted(set.intersection(*(set(points) for points in by_seed)))
            mean = [sum(points[step] for points in by_seed) / len(by_seed) for step in steps]
            axes.plot(steps, mean, style, color=colour, linewidth=2.2, marker="o", markersize=3.5, label=arm)
        axes.set_xlabel("training step (thin lines: single seeds)")
        axes.set_ylabel("development accuracy, %")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if arms:
            figure.legend(loc="outside upper left", ncols=min(3, len(arms)))
    return figure
