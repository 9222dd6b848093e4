"""The corpus and its selected positions as a training uses them: items by role, the same for every arm (t5-spec 1.1, 3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dosematch.errors import UserError
from dosematch.midtrain.roles import role_of
from dosematch.midtrain.thoughts import STUDY, Item
from dosematch.sampling import philox_key

CALIBRATION = "qualify"  # the one role whose items come from a split of its own


@dataclass(frozen=True)
class Material:
    """Training sequences int64 [n, T]; the positions selected in them, and those of the calibration split."""

    sequences: torch.Tensor
    train: Sequence[Item]
    calibration: Sequence[Item]

    def select(self, role: str, n: int, seed: int, *, step: int, epoch: int) -> list[Item]:
        """`n` distinct items of a role, in an order that depends on `seed`, `role` and `step` alone.

        Which documents have which role depends on `epoch` alone. Raises `UserError` when the role has too few items.
        """
        pool = self.calibration if role == CALIBRATION else self.train
        key = philox_key(study=STUDY, seed=seed, stage="select", role=role, step=step)
        found: list[Item] = []
        for index in np.random.Generator(np.random.Philox(key=key)).permutation(len(pool)):
            if len(found) == n:
                return found
            item = pool[index]
            if role == CALIBRATION or role_of(item.parent, epoch) == role:
                found.append(item)
        if len(found) < n:
            raise UserError(f"t5 positions: {len(found)} items for role {role!r} in epoch {epoch}, {n} are needed")
        return found
