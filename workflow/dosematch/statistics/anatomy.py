"""Where a run's gradient came from: groups without signal, norms and cosines of loss terms, clipping."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def without_signal(rows: Rows) -> dict[str, int]:
    """Steps whose Fast group gives no policy gradient, by cause: all wrong, all right, or masked.

    Masked: the group is mixed, but every non-zero advantage belongs to a censored rollout (thinker-spec 5.1).
    """
    classes = [row["step_class"] for row in rows]
    masked = [
        row["step_class"] == "mixed"
        and all(out for advantage, out in zip(row["adv_fast"], row["censored"], strict=True) if advantage != 0)
        for row in rows
    ]
    return {"all_wrong": classes.count("all_wrong"), "all_right": classes.count("all_right"), "masked": sum(masked)}


def term_norms(rows: Rows) -> dict[str, dict[str, Any]]:
    """Norm of each loss term's own gradient over the steps in which it acted: `{term: {steps, mean, max}}`."""
    norms = _by_key(rows, "grad_norm_by_term")
    return {
        term: {"steps": len(values), "mean": fmean(values), "max": max(values)}
        for term, values in sorted(norms.items())
    }


def term_cosines(rows: Rows) -> dict[str, dict[str, Any]]:
    """Mean cosine between two terms over the steps in which both acted: `{"a/b": {steps, mean}}`."""
    cosines = _by_key(rows, "grad_cosine")
    return {pair: {"steps": len(values), "mean": fmean(values)} for pair, values in sorted(cosines.items())}


def _by_key(rows: Rows, field: str) -> dict[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for key, value in row[field].items():
            values[key].append(value)
    return values


def clipping(rows: Rows) -> dict[str, Any]:
    """What clipping did at the boundaries that updated: `{updates, clipped, mean}`.

    `mean` is the mean factor the gradient was multiplied by, null without any update; a boundary that was skipped for
    its zero gradient had nothing to clip and does not count.
    """
    factors = [row["clip_coef"] for row in rows if row["is_boundary"] and not row["skipped_zero_grad"]]
    return {
        "updates": len(factors),
        "clipped": sum(factor < 1 for factor in factors),
        "mean": fmean(factors) if factors else None,
    }
