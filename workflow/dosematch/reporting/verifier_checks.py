"""Checks of the Verify -> Slow part of evaluation records (thinker-spec 12, C29, C30)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dosematch.statistics.paired import where

Evals = Sequence[Mapping[str, Any]]


def _verified(evals: Evals, panel: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(place, Fast record, Verify -> Slow record) of every evaluation, nothing where no panel was verified."""
    for record in evals if panel else ():
        yield f"{where(record)} {panel}", record["panels"][panel], record[f"{panel}_verify_slow"]


def confusion_sums(evals: Evals, panel: str) -> Iterator[str]:
    """Rows of the confusion matrix equal the Fast answers right and wrong; the six cells sum to the panel (C30)."""
    for place, fast, slow in _verified(evals, panel):
        right = sum(fast["per_item_correct"])
        for row, expected in (("fast_right", right), ("fast_wrong", fast["n"] - right)):
            cells = slow["confusion_matrix"][row]
            total = cells["yes"] + cells["no"] + cells["invalid"]
            if total != expected:
                yield f"{place} {row}: verdicts sum to {total}, Fast has {expected}"


def trigger_sums(evals: Evals, panel: str) -> Iterator[str]:
    """The disjoint causes sum to the triggers, and an item triggers exactly for a No or a missing box (C29, C30)."""
    for place, _, slow in _verified(evals, panel):
        counts = slow["triggers"]
        causes = counts["no_only"] + counts["nobox_only"] + counts["both"]
        if not causes == counts["total"] == sum(slow["per_item_triggered"]):
            yield f"{place}: causes sum to {causes}, total {counts['total']}, items {sum(slow['per_item_triggered'])}"
        items = zip(
            slow["per_item_verdict"], slow["per_item_missing_fast_box"], slow["per_item_triggered"], strict=True
        )
        wrong = [index for index, (verdict, boxless, hit) in enumerate(items) if hit != (verdict == "No" or boxless)]
        if wrong:
            yield f"{place}: item {wrong[0]} breaks the trigger rule"


def wins_and_losses(evals: Evals, panel: str) -> Iterator[str]:
    """Fast + W - L = final; W + L <= triggers; no more losses than triggers on right Fast answers (C29)."""
    for place, fast, slow in _verified(evals, panel):
        wins, losses = slow["slow_wins"], slow["slow_losses"]
        right_triggered = sum(
            hit and right for hit, right in zip(slow["per_item_triggered"], fast["per_item_correct"], strict=True)
        )
        if sum(fast["per_item_correct"]) + wins - losses != slow["correct"]:
            yield f"{place}: {sum(fast['per_item_correct'])} + {wins} - {losses} is not {slow['correct']}"
        if wins + losses > slow["triggers"]["total"]:
            yield f"{place}: {wins} + {losses} of {slow['triggers']['total']} triggers"
        if losses > right_triggered:
            yield f"{place}: {losses} losses of {right_triggered} triggered right answers"


def untriggered_items(evals: Evals, panel: str) -> Iterator[str]:
    """An untriggered item keeps its Fast result, a triggered one takes that of Slow (C29)."""
    for place, fast, slow in _verified(evals, panel):
        items = zip(
            fast["per_item_correct"],
            slow["per_item_triggered"],
            slow["per_item_slow_correct"],
            slow["per_item_final_correct"],
            strict=True,
        )
        wrong = [
            index for index, (before, hit, again, final) in enumerate(items) if final != (again if hit else before)
        ]
        if wrong:
            yield f"{place}: item {wrong[0]} has another final result"


VERIFIER_CHECKS: dict[str, Callable[[Evals, str], Iterator[str]]] = {
    "Verdicts on right and wrong Fast answers sum to their number": confusion_sums,
    "Disjoint causes sum to the triggers, each a No or a missing box": trigger_sums,
    "Fast + wins - losses = final, and wins + losses stay within the triggers": wins_and_losses,
    "An untriggered answer keeps its Fast result": untriggered_items,
}
