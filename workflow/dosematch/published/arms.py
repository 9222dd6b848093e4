"""Rules on the arms' switches: against the protocol, and against the words of Table 1 (thinker-spec 10)."""

import re
from collections.abc import Iterator
from fractions import Fraction

from dosematch.published.cells import Cell, Published, Row
from dosematch.published.checks import Check, equal, member
from dosematch.published.design import Design
from dosematch.published.totals import total

STAGE = re.compile(r"(\d+)x(\d+)")  # 4x512: four rollouts of at most 512 tokens
CAP = re.compile(r"([\d,]+) cap")
CONFIG_SWITCHES = {  # how Table 1 words a switch -> columns of arms.json, in printed order
    re.compile(r"\baccum=(\d+)"): ("grad_accum",),
    re.compile(r"\bwd=(\d+(?:\.\d+)?)"): ("wd",),
    re.compile(r"\blr=(\d+(?:\.\d+)?)"): ("lr.mixed",),
    re.compile(r"\blr_scale=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)"): ("lr.distill_only", "lr.mixed"),
    re.compile(r"\bmin_tok=(\d+)/(\d+)"): ("fast.0.2", "fast.1.2"),
    re.compile(r"\bmin_tok=(\d+)\)"): ("fast.0.2",),
    re.compile(r"alpha=(\d+(?:\.\d+)?)"): ("alpha",),
    re.compile(r"\bfast=(\d+)"): ("fast.0.1",),
    re.compile(r"\bsum=(\d+)"): ("summary.0",),
    re.compile(r"(\d+) Ver\b"): ("verify.0",),
    re.compile(r"(\d+) Slow\b"): ("slow.0",),
    re.compile(r"(\d+) Sum\b"): ("summary.0",),
}
PROTOCOL_SWITCHES = (  # protocol row, its column, switch, which it fixes in every arm that has this other switch
    ("train_steps", "", "steps", "fast.0.0"),
    ("clip_grad_norm", "", "clip", "fast.0.0"),
    ("group", "four_stage_fast", "fast.0.0", "verify.0"),
    ("group", "fork_fast.0", "fast.0.0", "fork.k"),
    ("group", "fork_fast.1", "fast.0.1", "fork.k"),
    ("group", "fork_fast.2", "fast.0.2", "fork.k"),
    ("group", "fork_slow.0", "fork.k", "fork.k"),
    ("group", "fork_slow.1", "fork.max_tokens", "fork.k"),
    ("group", "fork_slow.2", "fork.min_tokens", "fork.k"),
    ("fork_windows", "k_slow", "fork.k", "fork.k"),
    ("fork_windows", "min_len", "fork.min_len", "fork.k"),
    ("slow_fork_accept", "max_len", "fork.accept_len", "fork.k"),
    ("stage_tokens", "verify", "verify.0", "verify.0"),
    ("stage_tokens", "slow", "slow.0", "slow.0"),
    ("topk_teacher_kl", "", "topk_kl", "topk_kl"),
    ("alpha_4stage", "", "alpha", "topk_kl"),
    ("alpha_fork", "", "alpha", "fork.k"),
)


def check_arms(published: Published) -> Iterator[Check]:
    """All checks of arms.json."""
    design = Design(published)
    for (arm,), switches in published.rows("arms").items():
        for column, cell in switches.items():
            if column.startswith("seeds."):
                yield member("known_seed", cell, design.seeds)
        for row, column, switch, where in PROTOCOL_SWITCHES:
            if where in switches:
                fixed = published.need("protocol", row, column)
                yield equal("protocol_switch", switches[switch], fixed.number, (fixed,))
        if config := published.cell("table1", arm, "config"):
            yield from _config(config, switches)
    yield from _caps(published)


def _config(config: Cell, switches: Row) -> Iterator[Check]:
    """What the configuration column of Table 1 says in words is what the arm's switches say."""
    for pattern, columns in CONFIG_SWITCHES.items():
        if found := pattern.search(config.text):
            for value, column in zip(found.groups(), columns, strict=True):
                ok = Fraction(value) == switches[column].number
                yield Check("config_text", switches[column], value, ok, pinned=(switches[column],), bounded=(config,))
    cells = [cell for stage in _stages(switches) for cell in stage]
    if stages := STAGE.findall(config.text):
        ok = stages == [(n.text, length.text) for n, length in _stages(switches)]
        words = " + ".join("x".join(stage) for stage in stages)
        yield Check("config_text", cells[0], words, ok, tuple(cells), (config,))
    if cap := CAP.search(config.text):
        ok = int(cap[1].replace(",", "")) == nominal_cap(switches)
        yield Check("config_text", cells[0], cap[0], ok, tuple(cells), (config,))


def _caps(published: Published) -> Iterator[Check]:
    """Nominal caps of the protocol, by the arm's name or its `Level`, follow from the arm's stages."""
    for name, cell in published.row("protocol", "nominal_cap").items():
        for (arm,), switches in published.rows("arms").items():
            level = switches["id"].text.lower().replace(" ", "") if "id" in switches else ""
            if name == arm or level.startswith(name):
                parts = [part for stage in _stages(switches) for part in stage]
                yield equal("nominal_cap", cell, nominal_cap(switches), parts)


def nominal_cap(switches: Row) -> Fraction:
    """Tokens per step when every stage runs at full length; Verify, Slow and Summary once per Fast rollout."""
    stages = _stages(switches)
    per_attempt = total([switches[f"{name}.0"] for name in ("verify", "slow", "summary") if f"{name}.0" in switches])
    rollouts = sum((n.number for n, _ in stages), Fraction(0))
    return sum((n.number * length.number for n, length in stages), Fraction(0)) + rollouts * per_attempt


def _stages(switches: Row) -> list[tuple[Cell, Cell]]:
    """(rollouts, largest length) of Fast groups and forks."""
    count = len({column.split(".")[1] for column in switches if column.startswith("fast.")})
    stages = [(switches[f"fast.{i}.0"], switches[f"fast.{i}.1"]) for i in range(count)]
    return stages + ([(switches["fork.k"], switches["fork.max_tokens"])] if "fork.k" in switches else [])
