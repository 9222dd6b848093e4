"""Run-to-run spread: arms that differ in nothing but the index of their random numbers (thinker-spec 13, 21)."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dosematch.statistics import paired
from dosematch.statistics.paired import Bools, Items
from dosematch.statistics.settings import ArmSettings, StudySettings


def replicate_pairs(arms: Sequence[ArmSettings]) -> list[tuple[ArmSettings, ArmSettings]]:
    """Pairs of arms whose switches are equal but for `run`, the lower run first; arms without switches have none."""
    ranked = sorted((arm for arm in arms if arm.switches), key=lambda arm: arm.switches.get("run", 1))
    return [(a, b) for a, b in combinations(ranked, 2) if _differ_only_in_run(a.switches, b.switches)]


def _differ_only_in_run(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return {**a, "run": None} == {**b, "run": None} and a.get("run", 1) != b.get("run", 1)


def run_spread(
    correct: Mapping[str, Mapping[int, Bools]], items: Items, removed: Sequence[str], settings: StudySettings
) -> list[dict[str, Any]]:
    """Differences between the runs of one arm: `[{a, b, runs, seeds, suites: {suite: counts}}]`.

    Counts are `{net, n, wins, losses, p_exact, pp, by_seed: {s<seed>: counts}, decontam}` over the seeds that both runs
    have, `decontam` null where the suite is not reported without exposed items. What these pairs differ by is the
    noise floor of every contrast of their arms.
    """
    spreads = []
    for first, second in replicate_pairs(settings.arms):
        seeds = [s for s in settings.seeds if s in correct[first.name] and s in correct[second.name]]
        if not seeds:
            continue
        a, b = (np.stack([correct[arm.name][seed] for seed in seeds]) for arm in (first, second))
        suites = {}
        for suite, panels in settings.suites.items():
            keep = items.keep(panels)
            counts = paired.compare(a, b, keep)
            clean = items.keep(panels, removed) if suite in settings.statistics.decontaminated_suites else None
            suites[suite] = {
                **counts.as_dict(),
                "pp": counts.pp,
                "by_seed": {
                    f"s{seed}": paired.compare(a[[row]], b[[row]], keep).as_dict() for row, seed in enumerate(seeds)
                },
                "decontam": None if clean is None else paired.compare(a, b, clean).as_dict(),
            }
        runs = [arm.switches.get("run", 1) for arm in (first, second)]
        spreads.append({"a": first.name, "b": second.name, "runs": runs, "seeds": seeds, "suites": suites})
    return spreads
