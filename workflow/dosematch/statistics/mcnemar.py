"""Exact McNemar test, its printed form, and Holm's adjustment (thinker-spec 13)."""

import math
from collections.abc import Sequence

from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

SMALLEST_POINT_VALUE = 1e-6
SMALLEST_WITH_FOUR_DECIMALS = 0.00005


def exact_p(wins: int, losses: int) -> float:
    """Two-sided exact binomial p of `wins` against `losses` discordant pairs (thinker-spec 13).

    `p = min(1, 2 P[Bin(wins + losses, 1/2) <= min(wins, losses)])`; 1 when no pair is discordant.
    Raises `ValueError` for negative counts.
    """
    if min(wins, losses) < 0:
        raise ValueError(f"counts of pairs cannot be negative: {wins} wins, {losses} losses")
    if wins + losses == 0:
        return 1.0
    return float(mcnemar([[0, wins], [losses, 0]], exact=True).pvalue)


def format_p(p: float) -> str:
    """Four decimals, or below 1e-6 the smallest bound `<1e-k` that holds (thinker-spec 13).

    Values between, which would print as a p of zero, give `<0.0001`.
    """
    if p >= SMALLEST_WITH_FOUR_DECIMALS:
        return f"{p:.4f}"
    if p >= SMALLEST_POINT_VALUE:
        return "<0.0001"
    if p == 0:
        return "<1e-300"
    return f"<1e-{math.ceil(-math.log10(p)) - 1}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values in the order given; an empty list stays empty (thinker-spec 13)."""
    if not p_values:
        return []
    return [float(p) for p in multipletests(p_values, method="holm")[1]]
