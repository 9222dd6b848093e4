"""One table as records for machines and as text for people, and how numbers print (thinker-spec 17)."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """One table: `records` for machines, `headers` and `rows` of text for people; a line break in a cell is `\\n`."""

    name: str
    title: str
    headers: list[str]
    rows: list[list[str]]
    records: list[dict[str, Any]]
    note: str = ""

    def csv(self) -> str:
        """CSV text with a header line; a value that a record lacks is an empty field."""
        columns = list(dict.fromkeys(column for record in self.records for column in record))
        out = io.StringIO()
        writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return out.getvalue()

    def markdown(self) -> str:
        """Markdown text: the title, a pipe table, the note."""
        lines = [self.headers, ["---"] * len(self.headers), *self.rows]
        body = "\n".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines)
        return f"**{self.title}**\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def percent(count: int, n: int, digits: int = 2) -> str:
    """`count` of `n` in percent, two decimals: 291 of 480 is 60.62; a dash when `n` is 0 (thinker-spec 17)."""
    return f"{100 * count / n:.{digits}f}" if n else "-"


def share(count: int, n: int, digits: int = 2) -> str:
    """A count with its share of `n`: `12 (34.29 %)`; the count alone when `n` is 0."""
    return f"{count} ({percent(count, n, digits)} %)" if n else str(count)


def signed(value: float) -> str:
    """A difference with its sign: whole numbers as `+1,234`, others as `+5.95`; zero has no sign."""
    text = f"{value:+,}" if isinstance(value, int) else f"{value:+.2f}"
    return text if any(digit in text for digit in "123456789") else text.lstrip("+-")


def by_seed(counts: Mapping[str, int], seeds: Sequence[int]) -> str:
    """Counts of the seeds as the study prints them: `1,254 + 1,236`."""
    return " + ".join(f"{counts[f's{seed}']:,}" for seed in seeds)


def arm_of(summary: Summary, name: str) -> Mapping[str, Any]:
    """An arm's entry, whether it has all seeds or stands apart."""
    return summary["arms"].get(name) or summary["single_seed_arms"][name]


def runs_of(summary: Summary, block: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(arm, seed, entry) of `training_diagnostics` or `verifier`, arms and seeds in the order of the study."""
    return [
        (arm, str(seed), summary[block][arm][str(seed)])
        for arm in summary["arm_order"]
        for seed in summary["seeds"]
        if str(seed) in summary[block].get(arm, ())
    ]
