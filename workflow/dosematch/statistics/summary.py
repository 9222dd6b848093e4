"""The pooled summary of a study: counts, contrasts, training diagnostics, exposure (thinker-spec 13, 15)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dosematch.errors import UserError
from dosematch.statistics import paired
from dosematch.statistics.bootstrap import percentile_intervals
from dosematch.statistics.diagnostics import diagnose_run, exposure, group_by_run
from dosematch.statistics.mcnemar import holm
from dosematch.statistics.paired import Bools, Items
from dosematch.statistics.policies import policy_totals
from dosematch.statistics.replicates import run_spread
from dosematch.statistics.settings import ContrastSettings, StudySettings
from dosematch.statistics.verifier import pooled_verify_slow, verifier_diagnostics

Correct = Mapping[str, Mapping[int, Bools]]  # arm -> seed -> bool [clusters]


def build_summary(
    evals: Sequence[Mapping[str, Any]],
    ancestry: Mapping[str, Any],
    training: Iterable[Mapping[str, Any]],
    settings: StudySettings,
) -> dict[str, Any]:
    """Pool all evaluations of a study into the content of summary.json (thinker-spec 15).

    `evals` are the records of eval_6panel_bs50.json, `ancestry` that of the audit, `training` the rows of all
    training.jsonl files. Arms with fewer seeds than the study stand apart in `single_seed_arms`. Beside the fields of
    the specification it keeps the order of arms, panels and suites, since JSON objects here are sorted, and the
    switches, so that every table is made from the summary alone.
    Raises `UserError` for evaluations that do not fit each other or the settings, and for a contrast that needs a seed
    which one of its arms lacks.
    """
    correct = _correct_by_arm(evals, settings)
    items = paired.collect_items(evals, settings.claim_panels)
    removed = sorted({item["sha1_12"] for item in ancestry["exposed"]})
    contrasts = _contrasts(correct, items, removed, settings)
    _refuse_missing_runs(correct, settings)
    runs = group_by_run(training)
    accumulation = {arm.name: arm.accumulation for arm in settings.arms}
    if unknown := sorted(set(runs) - set(accumulation)):
        raise UserError(f"training logs: arm {unknown[0]} is not among the arms of the settings")
    verifier = verifier_diagnostics(evals, settings.verify_slow_panel) if settings.verify_slow_panel else {}
    arms = {arm.name: _arm(arm.name, correct[arm.name], items, removed, settings) for arm in settings.arms}
    for name, runs_of_arm in verifier.items():
        arms[name]["val_slow"] = pooled_verify_slow(runs_of_arm, arms[name]["seeds"])
    complete = {name for name in arms if set(correct[name]) == set(settings.seeds)}
    return {
        "study": settings.study,
        "scale": settings.scale,
        "seeds": settings.seeds,
        "steps": settings.steps,
        "tail_start": settings.tail_start,
        "panels": settings.claim_panels,
        "suites": settings.suites,
        "suite_order": settings.suite_order,
        "statistics": settings.statistics.model_dump(),
        "arm_order": list(arms),
        "parent": settings.parent,
        "token_reference": settings.token_reference,
        "verify_slow_panel": settings.verify_slow_panel,
        "switches": {arm.name: arm.switches for arm in settings.arms},
        "arms": {name: arm for name, arm in arms.items() if name in complete},
        "single_seed_arms": {name: arm for name, arm in arms.items() if name not in complete},
        "contrasts": contrasts,
        "replicates": run_spread(correct, items, removed, settings),
        "verifier": verifier,
        "policies": policy_totals(correct, items, ancestry, settings),
        "exposed": list(ancestry["exposed"]),
        "removed": _removed(items, removed, settings),
        "exposure": exposure(ancestry["exposed"], runs, accumulation, settings.steps, settings.tail_start),
        "training_diagnostics": {
            arm: {str(seed): diagnose_run(rows) for seed, rows in seeds.items()} for arm, seeds in runs.items()
        },
    }


def _correct_by_arm(evals: Sequence[Mapping[str, Any]], settings: StudySettings) -> dict[str, dict[int, Bools]]:
    paired.collect_items(evals, settings.claim_panels)  # refuses missing panels before they are read
    declared = {arm.name: arm.seeds for arm in settings.arms}
    correct: dict[str, dict[int, Bools]] = {arm: {} for arm in declared}
    for record in evals:
        arm, seed = record["arm"], record["seed"]
        if seed not in declared.get(arm, ()):
            raise UserError(f"evaluation of {paired.where(record)}: the settings list no such arm and seed")
        if seed in correct[arm]:
            raise UserError(f"evaluation of {paired.where(record)}: given twice")
        correct[arm][seed] = paired.correctness(record, settings.claim_panels)
    return correct


def _refuse_missing_runs(correct: Correct, settings: StudySettings) -> None:
    for arm in settings.arms:
        if missing := set(arm.seeds) - set(correct[arm.name]):
            raise UserError(f"evaluations: arm {arm.name} seed {min(missing)} is missing")


def _arm(
    name: str, correct: Mapping[int, Bools], items: Items, removed: Sequence[str], settings: StudySettings
) -> dict[str, Any]:
    """Counts of one arm: per panel, per suite, and decontaminated (`{s<seed>, pooled, n}`)."""
    seeds = [seed for seed in settings.seeds if seed in correct]

    def counts(panels: Sequence[str], without: Sequence[str] = ()) -> dict[str, int]:
        keep = items.keep(panels, without)
        by_seed = {f"s{seed}": int(correct[seed][keep].sum()) for seed in seeds}
        return {**by_seed, "pooled": sum(by_seed.values()), "n": len(seeds) * int(keep.sum())}

    panels = {}
    for panel in settings.claim_panels:
        clean = counts([panel], removed)
        panels[panel] = {**counts([panel]), "decontam": clean["pooled"], "decontam_n": clean["n"]}
    entry = next(arm for arm in settings.arms if arm.name == name)
    return {
        "label": entry.label,
        "about": entry.about,
        "cap": entry.cap,
        "seeds": seeds,
        "panels": panels,
        **{suite: counts(settings.suites[suite]) for suite in settings.suites},
        **{
            f"{suite}_decontam": counts(settings.suites[suite], removed)
            for suite in settings.statistics.decontaminated_suites
        },
        "val_slow": None,
    }


def _contrasts(correct: Correct, items: Items, removed: Sequence[str], settings: StudySettings) -> list[dict[str, Any]]:
    """All contrasts in all suites, suites innermost, with Holm's adjustment over all of them."""
    sides = [_sides(contrast, correct, settings.seeds) for contrast in settings.contrasts]
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for suite, panels in settings.suites.items():
        keep = items.keep(panels)
        clean = items.keep(panels, removed) if suite in settings.statistics.decontaminated_suites else None
        intervals = _intervals(sides, keep, settings)
        for number, (contrast, (a, b)) in enumerate(zip(settings.contrasts, sides, strict=True)):
            counts = paired.compare(a, b, keep)
            rows[number, suite] = {
                "a": contrast.a,
                "b": contrast.b,
                "label": contrast.label,
                "suite": suite,
                **counts.as_dict(),
                "pp": counts.pp,
                "ci": intervals[number],
                "by_seed": {
                    f"s{seed}": paired.compare(a[[row]], b[[row]], keep).as_dict()
                    for row, seed in enumerate(settings.seeds)
                },
                "decontam": None if clean is None else paired.compare(a, b, clean).as_dict(),
            }
    ordered = [rows[number, suite] for number in range(len(sides)) for suite in settings.suite_order]
    for row, adjusted in zip(ordered, holm([row["p_exact"] for row in ordered]), strict=True):
        row["p_holm"] = adjusted
    return ordered


def _sides(contrast: ContrastSettings, correct: Correct, seeds: Sequence[int]) -> tuple[Bools, Bools]:
    """Outcomes of both arms, bool [seeds, clusters] each."""
    for arm in (contrast.a, contrast.b):
        for seed in seeds:
            if seed not in correct[arm]:
                raise UserError(
                    f"contrast {contrast.label!r} ({contrast.a} vs. {contrast.b}): arm {arm} has no evaluation of "
                    f"seed {seed}"
                )
    return np.stack([correct[contrast.a][s] for s in seeds]), np.stack([correct[contrast.b][s] for s in seeds])


def _intervals(sides: Sequence[tuple[Bools, Bools]], keep: Bools, settings: StudySettings) -> list[list[float]]:
    if not sides:
        return []
    options = settings.statistics
    differences = np.stack([paired.cluster_differences(a, b, keep) for a, b in sides])
    seeds = len(settings.seeds)
    return percentile_intervals(differences, seeds, options.resamples, options.rng_seed, options.level).tolist()


def _removed(items: Items, removed: Sequence[str], settings: StudySettings) -> dict[str, Any]:
    """What decontamination removes: identities that some panel holds, and items per suite and seed."""
    taken = ~items.keep(settings.claim_panels, removed)
    return {
        "sha1_12": sorted(set(items.sha1_12[taken].tolist())),
        "items": {suite: int((items.keep(panels) & taken).sum()) for suite, panels in settings.suites.items()},
    }
