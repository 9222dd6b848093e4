"""What verification did: confusion with the Fast answers, triggers, wins and losses, collapse (thinker-spec 12.1)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dosematch.errors import UserError
from dosematch.statistics.paired import where

COLLAPSE = 0.95  # a verifier that gives one verdict more often than this no longer looks at the answer
WINDOW = 5  # training steps whose verdicts are judged together: a single step has too few
VERDICTS = ("Yes", "No", "Invalid")
COUNTS = ("n", "fast_correct", "correct", "slow_wins", "slow_losses", "confusion_matrix", "triggers")


def verifier_diagnostics(evals: Iterable[Mapping[str, Any]], panel: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Verify -> Slow of every evaluated checkpoint: `{arm: {seed: {n, fast_correct, correct, slow_wins, slow_losses,
    confusion_matrix, triggers, verdicts: {Yes, No, Invalid}, collapsed}}}` (thinker-spec 15).

    `collapsed` is the verdict that more than 95 % of the panel's items get, Yes or No, else null. Raises `UserError`
    naming arm and seed of a record without Verify -> Slow.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for record in evals:
        key = f"{panel}_verify_slow"
        if key not in record:
            raise UserError(f"evaluation of {where(record)}: {key} is missing")
        entry = {name: record[key][name] for name in COUNTS}
        entry["verdicts"] = count_verdicts(record[key]["per_item_verdict"])
        entry["collapsed"] = collapsed(entry["verdicts"])
        found.setdefault(record["arm"], {})[str(record["seed"])] = entry
    return found


def pooled_verify_slow(runs: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """`val_slow` of one arm: `{correct, n, accuracy, trig: [one a seed], wins, losses, s<seed>}` (thinker-spec 15)."""
    chosen = [runs[str(seed)] for seed in seeds]
    correct, n = sum(run["correct"] for run in chosen), sum(run["n"] for run in chosen)
    return {
        **{f"s{seed}": run["correct"] for seed, run in zip(seeds, chosen, strict=True)},
        "correct": correct,
        "n": n,
        "accuracy": correct / n,
        "trig": [run["triggers"]["total"] for run in chosen],
        "wins": sum(run["slow_wins"] for run in chosen),
        "losses": sum(run["slow_losses"] for run in chosen),
    }


def count_verdicts(verdicts: Sequence[str]) -> dict[str, int]:
    """How often each of Yes, No and Invalid occurs."""
    return {verdict: sum(found == verdict for found in verdicts) for verdict in VERDICTS}


def collapsed(counts: Mapping[str, int]) -> str | None:
    """The verdict, Yes or No, that makes up more than 95 % of all; None when neither does."""
    total = sum(counts.values())
    return next((verdict for verdict in ("Yes", "No") if counts[verdict] > COLLAPSE * total), None)


def collapse_in_training(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Stretches of training in which the verifier had collapsed: `[{verdict, first_step, last_step, n}]`.

    A stretch joins adjacent windows of `WINDOW` steps in which one verdict makes up more than 95 % of the verdicts;
    `first_step` and `last_step` are the steps that these windows cover, `n` is their number of verdicts. Empty for arms
    without a verification stage.
    """
    alarms: list[dict[str, Any]] = []
    previous = None
    for end in range(WINDOW, len(rows) + 1):
        window = rows[end - WINDOW : end]
        verdict = collapsed(count_verdicts([v for row in window for v in row.get("verdicts", ())]))
        if verdict and verdict == previous:
            alarms[-1]["last_step"] = window[-1]["step"]
        elif verdict:
            alarms.append({"verdict": verdict, "first_step": window[0]["step"], "last_step": window[-1]["step"]})
        previous = verdict
    for alarm in alarms:
        covered = [row for row in rows if alarm["first_step"] <= row["step"] <= alarm["last_step"]]
        alarm["n"] = sum(len(row["verdicts"]) for row in covered)
    return alarms
