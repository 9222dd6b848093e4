"""Pairs of answers to the same question: which items count, and who won them (thinker-spec 13)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dosematch.errors import UserError
from dosematch.statistics.mcnemar import exact_p

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Items:
    """The clusters (panel, index) in panel order: `panel` and `sha1_12`, str arrays [clusters]."""

    panel: NDArray[np.str_]
    sha1_12: NDArray[np.str_]

    def keep(self, panels: Iterable[str], removed: Iterable[str] = ()) -> Bools:
        """Items of `panels` whose identity is not in `removed`: bool [clusters].

        Every full and every decontaminated count uses this mask. It works by identity, so a removed question leaves
        every panel that holds it, in every seed (thinker-spec 3.3, 13).
        """
        return np.isin(self.panel, list(panels)) & ~np.isin(self.sha1_12, list(removed))


@dataclass(frozen=True)
class PairedCounts:
    """Wins and losses of A against B among `n` pairs (seed, panel, index)."""

    wins: int
    losses: int
    n: int

    @property
    def net(self) -> int:
        """Wins minus losses."""
        return self.wins - self.losses

    @property
    def pp(self) -> float:
        """Net in percentage points of the pairs; 0 when there is no pair."""
        return 100.0 * self.net / self.n if self.n else 0.0

    def as_dict(self) -> dict[str, Any]:
        """`{net, n, wins, losses, p_exact}`, the form kept in summary.json (thinker-spec 15)."""
        p = exact_p(self.wins, self.losses)
        return {"net": self.net, "n": self.n, "wins": self.wins, "losses": self.losses, "p_exact": p}


def compare(a: Bools, b: Bools, keep: Bools) -> PairedCounts:
    """Count the pairs of `a` and `b`, bool [seeds, clusters] each, on the items of `keep`, bool [clusters]."""
    a, b = a[:, keep], b[:, keep]
    return PairedCounts(wins=int((a & ~b).sum()), losses=int((~a & b).sum()), n=a.size)


def cluster_differences(a: Bools, b: Bools, keep: Bools) -> NDArray[np.int64]:
    """Paired differences summed over the seeds of each kept cluster: int64 [kept clusters], in -seeds..seeds."""
    return (a[:, keep].astype(np.int64) - b[:, keep]).sum(axis=0)


def collect_items(evaluations: Sequence[Mapping[str, Any]], panels: Sequence[str]) -> Items:
    """The items of `panels`, which every evaluation must hold in the same order.

    Raises `UserError` naming arm, seed and panel when a panel is missing or differs from the first evaluation's, and
    when there is no evaluation at all.
    """
    if not evaluations:
        raise UserError("evaluations: none given, so there is nothing to compare")
    for record in evaluations:
        for panel in panels:
            if panel not in record["panels"]:
                raise UserError(f"evaluation of {where(record)}: panels.{panel} is missing")
            if record["panels"][panel]["per_item_sha1"] != evaluations[0]["panels"][panel]["per_item_sha1"]:
                raise UserError(
                    f"evaluation of {where(record)}: panels.{panel}.per_item_sha1 differs from that of "
                    f"{where(evaluations[0])}; only answers to the same questions can be paired"
                )
    identities = {panel: evaluations[0]["panels"][panel]["per_item_sha1"] for panel in panels}
    return Items(
        panel=np.array([panel for panel, sha1s in identities.items() for _ in sha1s], dtype=str),
        sha1_12=np.array([sha1 for sha1s in identities.values() for sha1 in sha1s], dtype=str),
    )


def correctness(record: Mapping[str, Any], panels: Sequence[str]) -> Bools:
    """Which items of `panels` one evaluation answers correctly: bool [clusters], in the order of `collect_items`."""
    return np.array([right for panel in panels for right in record["panels"][panel]["per_item_correct"]], dtype=bool)


def where(record: Mapping[str, Any]) -> str:
    """`arm NAME seed S`, for messages."""
    return f"arm {record['arm']} seed {record['seed']}"
