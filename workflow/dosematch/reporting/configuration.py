"""Table 0: the executed configuration of every arm, read from its switches (thinker-spec 10, 17)."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dosematch.reporting.table import Summary, Table, arm_of

Switches = Mapping[str, Any]


def table0(summary: Summary) -> Table:
    """What each arm was run with; lengths are tokens at this scale. The CSV holds every switch under its own name."""
    names = [name for name in summary["arm_order"] if summary["switches"].get(name)]
    rows, records = [], []
    for name in names:
        switches, arm = summary["switches"][name], arm_of(summary, name)
        seeds = ", ".join(map(str, arm["seeds"]))
        cap = f"{arm['cap']:,}" if arm["cap"] else "-"
        rows.append([name, *(column(switches) for column in COLUMNS.values()), cap, seeds])
        flat = {key: as_text(value) for key, value in flatten(switches) if value is not None}
        records.append({"arm": name, "label": arm["label"], "seeds": seeds, "cap": arm["cap"] or "", **flat})
    headers = ["Arm", *COLUMNS, "Cap per step", "Seeds"]
    title = "Table 0. Executed configuration; lengths in tokens"
    return Table("table0", title, headers, rows, records, NOTE if rows else "")


def fast_groups(switches: Switches) -> str:
    """Rollouts and their longest length, the least length where there is one: `4x512 (min 16) + 4x768 (min 24)`."""
    return " + ".join(_rollouts(group["n"], group) for group in switches["fast"])


def _rollouts(n: int, limits: Switches) -> str:
    return f"{n}x{limits['max_tokens']}" + (f" (min {limits['min_tokens']})" if limits["min_tokens"] else "")


def _stages(switches: Switches) -> str:
    stages = [switches[stage] for stage in ("verify", "slow", "summary")]
    return "/".join(str(stage["max_tokens"]) for stage in stages if stage) or "-"


def _forks(switches: Switches) -> str:
    fork = switches["fork"]
    return f"{_rollouts(fork['k'], fork)}, at most {fork['max_sequence']} with prefix" if fork else "-"


def _policy_gradient(switches: Switches) -> str:
    trained = [name for name, on in (("Fast", "pg_fast"), ("stages", "pg_stages")) if switches[on]]
    return " and ".join(trained) or "none"


def _isolation(switches: Switches) -> str:
    """Whether later stages are kept out of the gradient; a single-turn arm has nothing to isolate."""
    if switches["episode"] == "single_turn":
        return "n/a"
    return "shared actor" if switches["pg_stages"] else "isolated"


def _supervised(switches: Switches) -> str:
    return " and ".join(part for part in ("summary", "fork") if switches[f"{part}_sft"]) or "none"


def _teacher(switches: Switches) -> str:
    if not (switches["summary_sft"] or switches["fork_sft"]):
        return "-"
    return f"{switches['alpha']:g} / {switches['teacher_top_k'] if switches['alpha'] < 1 else '-'}"


def _anchor(switches: Switches) -> str:
    return f"weight {switches['anchor_weight']:g}" if switches["anchor"] else "-"


def _yes(key: str) -> Callable[[Switches], str]:
    return lambda switches: "yes" if switches[key] else "no"


def _assumed(switches: Switches) -> str:
    """Values that the study does not print and this one had to choose."""
    parts = ["skips zero gradients" if switches["zero_grad_skip"] else "decays without a gradient"]
    if switches["summary_sft"] or switches["fork_sft"]:
        parts.append(f"distillation weight {switches['lambda_distill']:g}")
    if switches["anchor"]:
        parts.append(f"anchor buffer {switches['anchor_capacity']}")
        parts.append("replay at every failure" if switches["anchor_on_failure"] else "one replay per accepted target")
    return ", ".join(parts)


COLUMNS: dict[str, Callable[[Switches], str]] = {  # header -> text
    "Starts from": lambda switches: switches["starts_from"],
    "Fast": fast_groups,
    "Verify/Slow/Summary": _stages,
    "Forks": _forks,
    "Policy gradient": _policy_gradient,
    "Isolation": _isolation,
    "Supervised": _supervised,
    "Alpha / top-k": _teacher,
    "Gate": lambda switches: switches["gate"],
    "Anchor": _anchor,
    "Censor": _yes("censor"),
    "Prefix mask": _yes("prefix_mask"),
    "Accumulation": lambda switches: str(switches["accumulation"]),
    "Rate: PG / mixed / distill": lambda switches: " / ".join(
        f"{switches['lr'][kind]:g}" for kind in ("pg_only", "mixed", "distill_only")
    ),
    "Weight decay": lambda switches: f"{switches['weight_decay']:g}",
    "Reward": lambda switches: switches["reward"],
    "Run": lambda switches: str(switches["run"]),
    "Assumed": _assumed,
}
NOTE = (
    "Lengths are those of this scale; labels of arms name those of the paper. Rates are multiples of the base rate by "
    "what the gradient holds. Assumed: the study does not print these values. The CSV lists every switch."
)


def flatten(switches: Switches, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Switches with nested keys joined by dots, in their order."""
    for key, value in switches.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def as_text(value: Any) -> str:
    """A switch's value as text: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
