"""The predicted cost of a window, in forward passes of one sequence (t5-spec 6.4)."""

from typing import Any

from dosematch.midtrain.settings import T5TrainSettings

GENERATE = 2.0  # sampling a thought
BACKWARD = 2.0  # beside the forward pass of a training pass
PREFIX_SCORING = 1.2  # scoring all prefixes of a thought in one pass, against scoring the thought alone
TRAIN = 1.0 + BACKWARD


def predicted_cost(settings: T5TrainSettings, row: dict[str, Any]) -> float:
    """What one window's row says it should have cost; the anchor is outside the model, as it is equal for all arms.

    Group arms: G N (g + 1 + 3E) + N. Arms with critics: n_traj (g + s + 1), a fit and a read-out per critic, and the
    actor's 3 E N_act.
    """
    n_traj: int = sum(row["n_traj"].values())
    trained = 0 if row["actor_step"] is None else row["n_traj"].get("actor", 0)
    actor = TRAIN * settings.arm.loss.epochs * trained
    critics = settings.arm.critics.n
    if not critics:
        return n_traj * (GENERATE + 1) + actor + n_traj / settings.arm.group
    scoring = PREFIX_SCORING if settings.arm.reward.placement == "prefix_delta" else 1.0
    fitted: int = row["n_fit_total"]
    return n_traj * (GENERATE + scoring + 1) + critics * (TRAIN * fitted + n_traj) + actor
