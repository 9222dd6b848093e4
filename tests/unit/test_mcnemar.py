"""Exact McNemar test: reference values, the published table, printed form, Holm's adjustment."""

import csv
import os
from pathlib import Path

import pytest
from scipy.stats import binomtest

from dosematch.statistics.mcnemar import exact_p, format_p, holm

TABLE2 = Path(os.environ.get("PUBLISHED_DIR", "../shared/published")) / "table2.csv"
ROUNDED_TO_SIX_DECIMALS = "1.0x10^-6"  # printed for 129/61, whose exact p is 9.05e-07


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (25, 11, 0.0288167),
        (48, 28, 0.0286267),
        (13, 21, 0.2294810),
        (5, 0, 0.0625),
        (1, 0, 1.0),
        (10, 10, 1.0),
        (0, 0, 1.0),
    ],
)
def test_reference_values(wins: int, losses: int, p: float) -> None:
    assert exact_p(wins, losses) == pytest.approx(p, abs=5e-8)
    assert exact_p(losses, wins) == exact_p(wins, losses)


def test_agrees_with_the_binomial_test() -> None:
    for wins in range(0, 40, 3):
        for losses in range(1, 60, 7):
            assert exact_p(wins, losses) == pytest.approx(binomtest(wins, wins + losses).pvalue, rel=1e-9)


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        exact_p(-1, 3)


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (1.0, "1.0000"),
        (0.0286267, "0.0286"),
        (0.00005, "0.0001"),
        (0.00004, "<0.0001"),
        (1e-6, "<0.0001"),
        (9.05e-7, "<1e-6"),
        (1e-7, "<1e-6"),
        (9.9e-16, "<1e-15"),
        (0.0, "<1e-300"),
    ],
)
def test_printed_form(p: float, text: str) -> None:
    assert format_p(p) == text


def test_holm_against_the_definition() -> None:
    p = [0.01, 0.04, 0.03, 0.5]
    assert holm(p) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([]) == []


@pytest.mark.skipif(not TABLE2.is_file(), reason=f"{TABLE2} is absent; PUBLISHED_DIR names its folder")
def test_published_table_is_reproduced() -> None:
    with TABLE2.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    points = bounds = 0
    for row in rows:
        p, printed = exact_p(int(row["wins"]), int(row["losses"])), row["p"]
        if printed.startswith("<10^"):
            bounds += 1
            assert p < float(printed.replace("<10^", "1e"))
        elif printed == ROUNDED_TO_SIX_DECIMALS:
            assert round(p, 6) == 1e-6
        else:
            points += 1
            assert format_p(p) == printed
    assert (points, bounds, len(rows)) == (24, 5, 30)
