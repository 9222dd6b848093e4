"""Checks of a study's own records; the report lists every one with its outcome (thinker-spec 13, 14, 18)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dosematch.evaluation_record import TOTALS
from dosematch.reporting.verifier_checks import VERIFIER_CHECKS
from dosematch.statistics.paired import where

Summary = Mapping[str, Any]
Evals = Sequence[Mapping[str, Any]]
ROOM = (0.05, 0.95)  # accuracy of the parent that leaves both wins and losses room
ITEM_LISTS = ("sha1", "extracted", "tokens", "has_box", "correct", "outcome", "finish")


def checks(summary: Summary, evals: Evals) -> list[dict[str, Any]]:
    """Run every check: `[{name, ok, detail}]` in a fixed order; `detail` names the first findings, or is empty."""
    found = {
        "Every panel holds n items, and counts them right": _panels(evals),
        "Totals of each evaluation equal the sums of its panels": _totals(summary, evals),
        "One evaluation protocol and one grader for all checkpoints": _protocol(evals),
        "No answer was lost to a grader timeout or error": _grading(evals),
        **{name: check(evals, summary["verify_slow_panel"]) for name, check in VERIFIER_CHECKS.items()},
        "Pooled counts equal the sums over seeds": _pooled(summary),
        "Net of each contrast equals the difference of its arms' totals": _nets(summary),
        "Decontaminated N = N - seeds x removed items": _decontaminated(summary),
        "Every training log has all its steps, each in one class": _steps(summary),
        "Mean norm x steps = mean active norm x active steps": _mean_identity(summary),
        "Generated tokens stay within the nominal cap of every step": _caps(summary),
        "Generated tokens of the stages sum to the total": _stages(summary),
        "No arm spends tokens on what its switches leave out": _unasked(summary),
        "Every exposed question is found in a training log of its seed": _exposure(summary),
        "The parent leaves room for wins and losses": _room(summary),
    }
    return [_outcome(name, list(findings)) for name, findings in found.items()]


def _outcome(name: str, findings: list[str]) -> dict[str, Any]:
    more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
    return {"name": name, "ok": not findings, "detail": "; ".join(findings[:3]) + more}


def _panels(evals: Evals) -> Iterator[str]:
    for record in evals:
        for name, panel in record["panels"].items():
            for column in ITEM_LISTS:
                if len(panel[f"per_item_{column}"]) != panel["n"]:
                    yield f"{where(record)} {name}: {len(panel[f'per_item_{column}'])} {column} for n = {panel['n']}"
            if sum(panel["per_item_correct"]) != panel["correct"]:
                yield f"{where(record)} {name}: {sum(panel['per_item_correct'])} right, recorded {panel['correct']}"


def _totals(summary: Summary, evals: Evals) -> Iterator[str]:
    for record in evals:
        for total, suite in TOTALS.items():
            panels = [record["panels"][name] for name in summary["suites"].get(suite, ())]
            for key in ("n", "correct"):
                expected = sum(panel[key] for panel in panels)
                if panels and record["totals"][total][key] != expected:
                    yield f"{where(record)} {total}.{key}: {record['totals'][total][key]}, panels sum to {expected}"


def _protocol(evals: Evals) -> Iterator[str]:
    for record in evals[1:]:
        for key in ("eval", "grader"):
            if record[key] != evals[0][key]:
                yield f"{where(record)}: {key} differs from {where(evals[0])}"


def _grading(evals: Evals) -> Iterator[str]:
    for record in evals:
        for name, panel in record["panels"].items():
            lost = sum(outcome in ("timeout", "error") for outcome in panel["per_item_outcome"])
            if lost:
                yield f"{where(record)} {name}: {lost} answers"


def _all_arms(summary: Summary) -> dict[str, Any]:
    return {**summary["arms"], **summary["single_seed_arms"]}


def _pooled(summary: Summary) -> Iterator[str]:
    for name, arm in _all_arms(summary).items():
        for suite, panels in summary["suites"].items():
            by_seed = sum(arm[suite][f"s{seed}"] for seed in arm["seeds"])
            by_panel = sum(arm["panels"][panel]["pooled"] for panel in panels)
            if not arm[suite]["pooled"] == by_seed == by_panel:
                yield f"arm {name} {suite}: pooled {arm[suite]['pooled']}, seeds {by_seed}, panels {by_panel}"


def _nets(summary: Summary) -> Iterator[str]:
    for contrast in summary["contrasts"]:
        a, b = summary["arms"][contrast["a"]], summary["arms"][contrast["b"]]
        suite = contrast["suite"]
        pairs = [(contrast, suite)] + ([(contrast["decontam"], f"{suite}_decontam")] if contrast["decontam"] else [])
        for counts, totals in pairs:
            if counts["net"] != a[totals]["pooled"] - b[totals]["pooled"]:
                yield f"{contrast['a']} vs. {contrast['b']} {totals}: net {counts['net']}"


def _decontaminated(summary: Summary) -> Iterator[str]:
    for name, arm in _all_arms(summary).items():
        for suite in summary["statistics"]["decontaminated_suites"]:
            expected = arm[suite]["n"] - len(arm["seeds"]) * summary["removed"]["items"][suite]
            if arm[f"{suite}_decontam"]["n"] != expected:
                yield f"arm {name} {suite}: N {arm[f'{suite}_decontam']['n']}, expected {expected}"


def _runs(summary: Summary) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for arm, seeds in summary["training_diagnostics"].items():
        for seed, run in seeds.items():
            yield arm, seed, run


def _steps(summary: Summary) -> Iterator[str]:
    for arm, seed, run in _runs(summary):
        classes = run["all_wrong"] + run["all_right"] + run["mixed"]
        if not run["steps"] == summary["steps"] == classes:
            yield f"arm {arm} seed {seed}: {run['steps']} steps, {classes} classified, {summary['steps']} planned"


def _mean_identity(summary: Summary) -> Iterator[str]:
    for arm, seed, run in _runs(summary):
        over_all = run["grad_norm_mean_all"] * run["steps"]
        over_active = run["grad_norm_mean_active"] * run["active_steps"]
        if not math.isclose(over_all, over_active, rel_tol=1e-9, abs_tol=1e-12):
            yield f"arm {arm} seed {seed}: {over_all} against {over_active}"


def _caps(summary: Summary) -> Iterator[str]:
    for arm, seed, run in _runs(summary):
        cap = _all_arms(summary)[arm]["cap"]
        if cap is not None and run["gen_tokens_max_step"] > cap:
            yield f"arm {arm} seed {seed}: a step generated {run['gen_tokens_max_step']} tokens, cap {cap}"


def _stages(summary: Summary) -> Iterator[str]:
    for arm, seed, run in _runs(summary):
        counts = run["tokens"]["gen_tokens"]
        stages = sum(n for stage, n in counts.items() if stage != "total")
        if stages != counts["total"]:
            yield f"arm {arm} seed {seed}: stages generated {stages}, total {counts['total']}"


def _unasked(summary: Summary) -> Iterator[str]:
    """An arm without forks scores no entropies, one without targets distils nothing, and so on (thinker-spec 14)."""
    for arm, seed, run in _runs(summary):
        switches = summary["switches"][arm]
        if not switches:
            continue
        asked = {
            "entropy_fwd_tokens": switches["fork"],
            "pg_bwd_tokens": switches["pg_fast"] or switches["pg_stages"],
            "distill_bwd_tokens": switches["summary_sft"] or switches["fork_sft"],
            "anchor_bwd_tokens": switches["anchor"],
            "teacher_fwd_tokens": switches["alpha"] < 1,
        }
        for counter, wanted in asked.items():
            value = run["tokens"][counter]
            spent = value if isinstance(value, int) else value["fed"]
            if spent and not wanted:
                yield f"arm {arm} seed {seed}: {spent} {counter}"


def _exposure(summary: Summary) -> Iterator[str]:
    for item in summary["exposure"]:
        trained = [arm for arm, seeds in summary["training_diagnostics"].items() if str(item["train_seed"]) in seeds]
        if missing := sorted(set(trained) - set(item["arms"])):
            place = f"seed {item['train_seed']} step {item['step']}"
            yield f"{item['sha1_12']}, {place}: not logged by {', '.join(missing)}"


def _room(summary: Summary) -> Iterator[str]:
    arm = _all_arms(summary)[summary["parent"]]
    for suite in summary["suite_order"]:
        accuracy = arm[suite]["pooled"] / arm[suite]["n"]
        if not ROOM[0] <= accuracy <= ROOM[1]:
            yield f"{summary['parent']} {suite}: accuracy {accuracy:.2%} is outside {ROOM[0]:.0%} to {ROOM[1]:.0%}"
