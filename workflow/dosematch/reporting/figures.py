"""Figures as SVG and PNG whose bytes depend on the data alone (thinker-spec 17)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from dosematch.errors import UserError
from dosematch.records import write_atomically

# Okabe and Ito's palette: told apart with every common form of colour blindness; yellow is left out, too pale on white
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
CONTEXT = "#c4c8cc"  # the other arms behind the one that a panel shows
COLUMNS = 3  # small panels side by side
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
Rows = Sequence[Mapping[str, Any]]
Curves = Mapping[tuple[str, int], Rows]  # (arm, seed) -> rows of val500_curve.jsonl


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
        figure = Figure(figsize=(PAGE_WIDTH, 1.3 + 0.19 * len(arms) * (len(suites) + 0.6)), layout="constrained")
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


def figure2(summary: Mapping[str, Any], training: Iterable[Mapping[str, Any]]) -> Figure:
    """(a) Verify -> Slow accuracy and trigger rate per arm; (b) pre-clip norms of all updates on a log axis.

    `training` holds the rows of all training logs. Boxes pool the seeds, and span the quartiles with whiskers to the
    extremes; the dark line across an arm is its clip norm. Colours of (b) tell accumulations apart, whose norms are not
    comparable.
    """
    arms = [
        name for name in summary["arm_order"] if name in summary["verifier"] or name in summary["training_diagnostics"]
    ]
    norms: dict[str, list[float]] = {name: [] for name in arms}
    for row in training:
        if row["grad_norm"] > 0:
            norms[row["arm"]].append(row["grad_norm"])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_WIDTH, 1.5 + 0.34 * len(arms)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _verifier_bars(left, summary, arms)
        _norm_boxes(right, summary, norms)
        left.set_yticks(range(len(arms)), arms)
        left.set_ylim(len(arms) - 0.4, -0.6)  # the first arm on top; sharing the axis, so for both
        for axes in (left, right):
            axes.tick_params(axis="y", length=0)
            axes.grid(visible=False, axis="y")
    return figure


def _verifier_bars(axes: Axes, summary: Mapping[str, Any], arms: Sequence[str]) -> None:
    """Panel (a): bars of accuracy with their value, a diamond for the share of triggered items."""
    verified = [number for number, arm in enumerate(arms) if arm in summary["verifier"]]
    entries = [summary["arms"].get(arms[i]) or summary["single_seed_arms"][arms[i]] for i in verified]
    slow = [entry["val_slow"] for entry in entries]
    accuracy = [100 * counts["accuracy"] for counts in slow]
    rates = [100 * sum(counts["trig"]) / counts["n"] for counts in slow]
    axes.barh(verified, accuracy, 0.62, color=PALETTE[0], alpha=0.8, label="accuracy")
    axes.scatter(rates, verified, s=26, marker="D", color=PALETTE[5], zorder=3, label="triggered")
    for y, value in zip(verified, accuracy, strict=True):  # in a column of their own, where no marker can hide them
        axes.annotate(f"{value:.1f}", (114, y), ha="right", va="center", fontsize=7.5)
    axes.set_xlim(0, 115)
    axes.set_xticks(range(0, 101, 20))
    axes.set_title(f"(a) {summary['verify_slow_panel']}, Verify→Slow", loc="left", fontsize=9, pad=22)
    axes.set_xlabel("% of items")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, handlelength=1.2, borderaxespad=0.2)


def _norm_boxes(axes: Axes, summary: Mapping[str, Any], norms: Mapping[str, Sequence[float]]) -> None:
    """Panel (b): a box per arm, its clip norm as a line across, colour by accumulation."""
    switches = summary["switches"]
    kinds = sorted({switches[arm].get("accumulation", 1) for arm, values in norms.items() if values})
    for y, (arm, values) in enumerate(norms.items()):
        if not values:
            continue
        colour = PALETTE[1 + kinds.index(switches[arm].get("accumulation", 1))]
        axes.boxplot(
            [values],
            positions=[y],
            widths=0.5,
            whis=(0, 100),
            orientation="horizontal",
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.7},
            medianprops={"color": "black"},
        )
        if clip := switches[arm].get("clip_norm"):
            axes.plot([clip, clip], [y - 0.48, y + 0.48], color="#a00000", linewidth=1.6, zorder=3)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title("(b) gradient norm before clipping", loc="left", fontsize=9, pad=22)
    axes.set_xlabel("norm of every update")
    handles: list[Any] = [
        Patch(color=PALETTE[1 + i], alpha=0.7, label=f"{kind} step{'s' * (kind > 1)}") for i, kind in enumerate(kinds)
    ]
    handles.append(Line2D([], [], color="#a00000", linewidth=1.6, label="clip norm"))
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        handlelength=1.0,
        columnspacing=1.0,
        borderaxespad=0.2,
    )


def training_curves(curves: Curves, arm_order: Sequence[str]) -> Figure:
    """Accuracy on the development panel over training, one small panel per arm: Fast solid, Verify -> Slow dashed.

    Thin lines are single seeds, thick ones their mean at the steps that every seed of the arm has; the Fast means of
    the other arms stand grey behind. Raises `UserError` for an arm outside `arm_order`.
    """
    if unknown := sorted({arm for arm, _ in curves} - set(arm_order)):
        raise UserError(f"curves: arm {unknown[0]} is not among the arms of the summary")
    arms = [arm for arm in arm_order if any(arm == name for name, _ in curves)]
    logs = {arm: [rows for (name, _), rows in curves.items() if name == arm] for arm in arms}
    with mpl.rc_context(STYLE):
        lines = max(1, -(-len(arms) // COLUMNS))
        figure = Figure(figsize=(PAGE_WIDTH, 0.9 + 1.75 * lines), layout="constrained")
        grid = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, arm in zip(grid, arms, strict=False):
            _small_curves(axes, logs[arm])
            for other in arms:
                if other != arm:
                    axes.plot(*_mean_curve(logs[other], "accuracy"), color=CONTEXT, linewidth=0.7, zorder=1)
            axes.set_title(arm, loc="left", fontsize=8)
            axes.tick_params(labelbottom=True)
        for axes in grid[len(arms) :]:
            axes.set_visible(False)
        grid[0].set_ylim(bottom=max(0.0, grid[0].get_ylim()[0]))
        grid[0].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, steps=[1, 2, 5, 10]))
        figure.supxlabel("training step (thin lines: single seeds; grey: the other arms)", fontsize=9)
        figure.supylabel("development accuracy, %", fontsize=9)
        if arms:
            shown = {label: line for line in grid[0].get_lines() if (label := str(line.get_label()))[0] != "_"}
            figure.legend(shown.values(), shown.keys(), loc="outside upper left", ncols=2)
    return figure


def _small_curves(axes: Axes, logs: Sequence[Rows]) -> None:
    """One arm: thin lines per seed and their mean, for the single pass and, where it was measured, Verify -> Slow."""
    kinds = (("accuracy", "Fast", "-", PALETTE[0]), ("verify_slow_accuracy", "Verify→Slow", "--", PALETTE[5]))
    for key, label, style, colour in kinds:
        if not all(key in row for rows in logs for row in rows):
            continue
        for rows in logs:
            axes.plot(*_mean_curve([rows], key), style, color=colour, alpha=0.45, linewidth=0.8, zorder=2)
        axes.plot(*_mean_curve(logs, key), style, color=colour, linewidth=1.8, label=label, zorder=3)


def _mean_curve(logs: Sequence[Rows], key: str) -> tuple[list[int], list[float]]:
    """Steps that all logs have, and the mean of `key` there in percent."""
    by_seed = [{row["step"]: 100 * row[key] for row in rows} for rows in logs]
    steps = sorted(set.intersection(*(set(points) for points in by_seed)))
    return steps, [sum(points[step] for points in by_seed) / len(by_seed) for step in steps]
