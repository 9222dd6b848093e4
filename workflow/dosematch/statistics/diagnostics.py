"""What the training logs say about each arm: step classes, norms, tokens, exposed questions (thinker-spec 14, 15)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from dosematch.errors import UserError
from dosematch.statistics.anatomy import clipping, term_cosines, term_norms, without_signal
from dosematch.statistics.verifier import collapse_in_training, count_verdicts

Row = Mapping[str, Any]
TOKEN_COUNTERS = (
    "gen_tokens",
    "entropy_fwd_tokens",
    "pg_bwd_tokens",
    "distill_bwd_tokens",
    "anchor_bwd_tokens",
    "teacher_fwd_tokens",
)


def tail_weight(step: int, steps: int, tail_start: int, accumulation: int) -> float:
    """Share of the tail average that carries the gradient of `step` (thinker-spec 11.1).

    The gradient enters at the next optimiser boundary; the average takes the weights after steps `tail_start` to
    `steps`. A gradient still waiting for its boundary when training ends weighs 0. Raises `ValueError` for a step
    outside `1..steps`.
    """
    if not 1 <= step <= steps:
        raise ValueError(f"step {step} is not one of 1..{steps}")
    carriers = steps - max(boundary_of(step, accumulation), tail_start) + 1
    return max(0, carriers) / (steps - tail_start + 1)


def boundary_of(step: int, accumulation: int) -> int:
    """The step whose optimiser call applies the gradient of `step`: the next multiple of `accumulation`."""
    return -(-step // accumulation) * accumulation


def group_by_run(training: Iterable[Row]) -> dict[str, dict[int, list[Row]]]:
    """Training rows by arm and seed, in step order.

    Raises `UserError` naming arm, seed and step when a step occurs twice, as when a log is given twice.
    """
    runs: dict[str, dict[int, list[Row]]] = {}
    for row in training:
        runs.setdefault(row["arm"], {}).setdefault(row["seed"], []).append(row)
    for arm, seeds in runs.items():
        for seed, rows in seeds.items():
            rows.sort(key=lambda row: row["step"])
            for before, after in pairwise(rows):
                if before["step"] == after["step"]:
                    raise UserError(f"training log of arm {arm} seed {seed}: step {after['step']} occurs twice")
    return runs


def diagnose_run(rows: Sequence[Row]) -> dict[str, Any]:
    """Step classes, active steps, pre-clip norms, token totals, gradient anatomy and verdicts of one run (thinker-spec
    15).

    `active_steps` counts rows with `grad_norm > 0`; off-boundary rows hold 0. `gen_tokens_max_step` is the largest
    number of tokens generated in one step, to hold against the nominal cap. `verdicts` are all zero without
    verification.
    """
    norms = [float(row["grad_norm"]) for row in rows]
    active = [norm for norm in norms if norm > 0]
    classes = [row["step_class"] for row in rows]
    return {
        **{name: classes.count(name) for name in ("all_wrong", "all_right", "mixed")},
        "steps": len(rows),
        "active_steps": len(active),
        "grad_norm_mean_all": sum(norms) / len(norms),
        "grad_norm_mean_active": sum(active) / len(active) if active else 0.0,
        "grad_norm_max": max(norms),
        "tokens": {name: _total(rows, name) for name in TOKEN_COUNTERS},
        "gen_tokens_max_step": max(row["gen_tokens"]["total"] for row in rows),
        "no_signal": without_signal(rows),
        "clip": clipping(rows),
        "term_norms": term_norms(rows),
        "term_cosines": term_cosines(rows),
        "verdicts": count_verdicts([verdict for row in rows for verdict in row.get("verdicts", ())]),
        "collapse": collapse_in_training(rows),
    }


def _total(rows: Sequence[Row], counter: str) -> int | dict[str, int]:
    """Sum of a counter over the steps, kept apart by its parts (`fed` and `loss`, or generation stages)."""
    values = [row[counter] for row in rows]
    if isinstance(values[0], Mapping):
        parts = sorted({part for value in values for part in value})
        return {part: sum(value.get(part, 0) for value in values) for part in parts}
    return sum(values)


def exposure(
    exposed: Sequence[Mapping[str, Any]],
    runs: Mapping[str, Mapping[int, Sequence[Row]]],
    accumulation: Mapping[str, int],
    steps: int,
    tail_start: int,
) -> list[dict[str, Any]]:
    """For every exposed question, what each arm's gradient took from it (thinker-spec 3.3, 11.1, 20 item 21).

    One entry per (training seed, step, identity): `{train_seed, step, sha1_12, places: [{panel, index}], answer,
    arms: {arm: {fast_acc, pg_tokens, pg_update, distill_tokens, is_boundary, grad_norm_micro, applied_at, tail_weight,
    anchor_replays}}}`. `pg_update` says whether any stage had a policy gradient; `applied_at` is the step of the
    optimiser call that the gradient entered, `tail_weight` that update's share of the average. `anchor_replays` lists
    the later steps that replayed the question's right answers: `[{step, sequences, applied_at, tail_weight}]`. An arm
    whose log lacks the question is left out.
    """
    entries: dict[tuple[int, int, str], dict[str, Any]] = {}
    for item in exposed:
        identity = {key: item[key] for key in ("train_seed", "step", "sha1_12", "answer")}
        entry = entries.setdefault((item["train_seed"], item["step"], item["sha1_12"]), {**identity, "places": []})
        entry["places"].append({"panel": item["panel"], "index": item["index"]})
    for entry in entries.values():
        entry["arms"] = {}
        for arm, seeds in runs.items():
            applied = partial(_applied, accumulation=accumulation[arm], steps=steps, tail_start=tail_start)
            rows = seeds.get(entry["train_seed"], ())
            for row in rows:
                if row["step"] == entry["step"] and row["sha1_12"] == entry["sha1_12"]:
                    replays = [replay | applied(replay["step"]) for replay in _replays(row, rows)]
                    entry["arms"][arm] = _trained_on(row) | applied(row["step"]) | {"anchor_replays": replays}
    return list(entries.values())


def _applied(step: int, accumulation: int, steps: int, tail_start: int) -> dict[str, Any]:
    weight = tail_weight(step, steps, tail_start, accumulation)
    return {"applied_at": boundary_of(step, accumulation), "tail_weight": weight}


def _trained_on(row: Row) -> dict[str, Any]:
    """What the step itself took; tokens are loss-bearing ones, so masked rollouts do not count."""
    return {
        "fast_acc": row["fast_acc"],
        "pg_tokens": row["pg_bwd_tokens"]["loss"],
        "pg_update": row["pg_bwd_tokens"]["loss"] > 0,
        "distill_tokens": row["distill_bwd_tokens"]["loss"],
        "is_boundary": row["is_boundary"],
        "grad_norm_micro": row["grad_norm_micro"],
    }


def _replays(row: Row, rows: Sequence[Row]) -> list[dict[str, int]]:
    """Later steps that replayed the question of `row`, each with the number of sequences drawn."""
    counts = {later["step"]: list(later.get("anchor_sha1", ())).count(row["sha1_12"]) for later in rows}
    return [{"step": step, "sequences": n} for step, n in counts.items() if n and step > row["step"]]
