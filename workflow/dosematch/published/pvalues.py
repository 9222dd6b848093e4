"""Which McNemar test the printed p-values come from: four variants against every printed value (thinker-spec 13)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scipy.stats import binom
from statsmodels.stats.contingency_tables import mcnemar

from dosematch.published.cells import Cell, Published
from dosematch.published.contrasts import BOUND, SCIENTIFIC, extra_contrasts
from dosematch.statistics.mcnemar import exact_p


@dataclass(frozen=True)
class PrintedP:
    """One printed p-value with its discordant pairs, and what each variant gives for them."""

    where: str
    wins: int
    losses: int
    printed: str
    form: str  # decimals | scientific | bound
    variants: dict[str, float]

    def reproduced_by(self, variant: str) -> bool:
        """Whether the variant, rounded to the printed decimals, is the printed value (values with decimals only)."""
        cell = Cell("", self.where, "p", self.printed)
        return cell.number == round(Fraction(self.variants[variant]), cell.decimals)


def mid_p(wins: int, losses: int) -> float:
    """Exact two-sided p less the probability of the observed table, which mid-p counts by half on either side."""
    return exact_p(wins, losses) - float(binom.pmf(min(wins, losses), wins + losses, 0.5))


def chi_square(wins: int, losses: int) -> float:
    """McNemar's chi-square without continuity correction."""
    return float(mcnemar([[0, wins], [losses, 0]], exact=False, correction=False).pvalue)


def chi_square_corrected(wins: int, losses: int) -> float:
    """McNemar's chi-square with continuity correction."""
    return float(mcnemar([[0, wins], [losses, 0]], exact=False, correction=True).pvalue)


VARIANTS: dict[str, Callable[[int, int], float]] = {
    "exact": exact_p,
    "mid_p": mid_p,
    "chi_square": chi_square,
    "chi_square_corrected": chi_square_corrected,
}


def printed_p_values(published: Published) -> list[PrintedP]:
    """Every printed p with printed wins and losses: Table 2, then the contrasts that only the text gives."""
    rows = [*published.rows("table2").values(), *(row for row in extra_contrasts(published) if "wins" in row)]
    values = []
    for row in rows:
        wins, losses, text = row["wins"].count, row["losses"].count, row["p"].text
        form = "bound" if BOUND.fullmatch(text) else "scientific" if SCIENTIFIC.fullmatch(text) else "decimals"
        variants = {name: test(wins, losses) for name, test in VARIANTS.items()}
        values.append(PrintedP(row.name, wins, losses, text, form, variants))
    return values


def reproduced(values: Sequence[PrintedP]) -> dict[str, int]:
    """Variant -> how many of the p-values printed with decimals it reproduces."""
    return {name: sum(v.reproduced_by(name) for v in values if v.form == "decimals") for name in VARIANTS}


def interval_disagreements(published: Published) -> list[str]:
    """Contrasts whose 95 % interval and exact p decide differently at 5 %: no misprint (thinker-spec 20, item 25).

    An interval that ends on 0 contains 0.
    """
    found = []
    for row in published.rows("table2").values():
        excludes_zero = row["ci_lo"].number > 0 or row["ci_hi"].number < 0
        p = exact_p(row["wins"].count, row["losses"].count)
        if excludes_zero != (p < 0.05):
            found.append(f"{row.name}: p {p:.4f}, interval [{row['ci_lo'].text}, {row['ci_hi'].text}]")
    return found
