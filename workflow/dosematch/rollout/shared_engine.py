"""An engine in every process: each generates a share of the requests."""

from collections.abc import Mapping, Sequence

import torch

from dosematch.parallel import in_shares
from dosematch.rollout.engine import Completion, Engine, Request


class SharedEngine:
    """Implements `Engine` over this process's own engine; every process must make the same calls.

    A request carries its own random numbers, so who samples it changes no token.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def generate(self, requests: Sequence[Request], batch_size: int | None = None) -> list[Completion]:
        """Complete every request, in request order, with at most `batch_size` sequences in flight per process."""
        return in_shares(lambda own: self.engine.generate(own, batch_size), requests)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights of this process's engine."""
        self.engine.load_weights(weights)

    def close(self) -> None:
        """Close this process's engine."""
        self.engine.close()
