"""What the report says in words: headline contrasts, the noise floor, alarms, exposure (thinker-spec 13, 20, 21)."""

from collections.abc import Iterator, Mapping
from typing import Any

from dosematch.reporting.table import Summary, runs_of, signed
from dosematch.statistics.mcnemar import format_p
from dosematch.statistics.verifier import COLLAPSE, WINDOW


def headlines(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each contrast in the first suite in words: `{label, text, verdict}`; the verdict is read from the interval."""
    first = summary["suite_order"][0]
    return [
        {"label": contrast["label"], "text": _in_words(contrast, summary), "verdict": _verdict(contrast)}
        for contrast in summary["contrasts"]
        if contrast["suite"] == first
    ]


def _in_words(contrast: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    net, (low, high) = contrast["net"], contrast["ci"]
    size = f"{abs(net):,} {'more' if net > 0 else 'fewer'} answers right than" if net else "as many answers right as"
    p, level = format_p(contrast["p_exact"]), 100 * summary["statistics"]["level"]
    text = (
        f"{contrast['a']} gets {size} {contrast['b']} in {contrast['n']:,} pairs of {contrast['suite']} "
        f"({signed(contrast['pp'])} pp, {level:g} % interval {signed(low)} to {signed(high)}; "
        f"{contrast['wins']:,} wins, {contrast['losses']:,} losses; exact p {p if p[0] == '<' else f'= {p}'})."
    )
    by_seed = {seed: contrast["by_seed"][f"s{seed}"]["net"] for seed in summary["seeds"]}
    nets = ", ".join(f"{signed(net)} (seed {seed})" for seed, net in by_seed.items())
    text += f" Net by seed: {nets}." if len(summary["seeds"]) > 1 else ""
    if clean := contrast["decontam"]:
        text += f" Without the questions seen in training: net {signed(clean['net'])} of {clean['n']:,}."
    for pair in summary["replicates"]:
        if {pair["a"], pair["b"]} & {contrast["a"], contrast["b"]}:
            text += " " + _spread_in_words(pair, contrast["suite"])
    return text


def _verdict(contrast: Mapping[str, Any]) -> str:
    low, high = contrast["ci"]
    if low > 0:
        return "interval above 0"
    return "interval below 0" if high < 0 else "interval includes 0"


def _spread_in_words(pair: Mapping[str, Any], suite: str) -> str:
    counts = pair["suites"][suite]
    nets = " and ".join(f"{signed(counts['by_seed'][f's{seed}']['net'])} (seed {seed})" for seed in pair["seeds"])
    return (
        f"{pair['a']} and {pair['b']}, two runs that differ only in their random numbers, differ by {nets} answers "
        f"in {suite} ({signed(counts['pp'])} pp)."
    )


def noise_floor(summary: Summary) -> list[str]:
    """What two runs of one arm differ by in the first suite, one sentence per pair of runs (thinker-spec 21)."""
    return [_spread_in_words(pair, summary["suite_order"][0]) for pair in summary["replicates"]]


def alarms(summary: Summary) -> list[dict[str, str]]:
    """Collapsed verifiers, in training and on the evaluated panel: `[{arm, seed, place, text}]`."""
    return [*_training_alarms(summary), *_panel_alarms(summary)]


def _training_alarms(summary: Summary) -> Iterator[dict[str, str]]:
    for arm, seed, run in runs_of(summary, "training_diagnostics"):
        for alarm in run["collapse"]:
            text = (
                f"{alarm['verdict']} makes up more than {COLLAPSE:.0%} of the verdicts of every {WINDOW} steps in a "
                f"row from step {alarm['first_step']} to step {alarm['last_step']} ({alarm['n']} verdicts)"
            )
            yield {"arm": arm, "seed": seed, "place": "training", "text": text}


def _panel_alarms(summary: Summary) -> Iterator[dict[str, str]]:
    for arm, seed, run in runs_of(summary, "verifier"):
        if verdict := run["collapsed"]:
            text = f"{run['verdicts'][verdict]} of {run['n']} verdicts are {verdict}"
            yield {"arm": arm, "seed": seed, "place": summary["verify_slow_panel"], "text": text}


def exposure_by_arm(summary: Summary) -> list[dict[str, Any]]:
    """How many exposed questions each arm's gradient used: `[{arm, questions, pg, distilled, replayed, unused}]`."""
    lines = []
    for arm in summary["arm_order"]:
        took = [item["arms"][arm] for item in summary["exposure"] if arm in item["arms"]]
        uses = [(t["pg_update"], t["distill_tokens"] > 0, bool(t["anchor_replays"])) for t in took]
        if uses:
            pg, distilled, replayed = (sum(column) for column in zip(*uses, strict=True))
            counts = {"pg": pg, "distilled": distilled, "replayed": replayed, "unused": uses.count((False,) * 3)}
            lines.append({"arm": arm, "questions": len(uses), **counts})
    return lines
