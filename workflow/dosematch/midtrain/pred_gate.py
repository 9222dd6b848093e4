"""The prediction gate: how much of the prediction after a thought is mixed into the prediction without it (t5-spec 1.2)."""

import torch
import torch.nn.functional as F

from dosematch.sampling import philox_key

WIDTH = 64
START = -2.0  # the first output before the sigmoid: a share of about 0.12


class PredictionGate(torch.nn.Module):
    """One number per item, the share's logit, from the scorer's states before and after the thought.

    It never sees the text to come. `torch.sigmoid` of it is the share; logits stay finite where a share rounds to 1.
    """

    def __init__(self, hidden: int, seed: int) -> None:
        """`hidden` is the scorer's width; the first weights depend on `seed` alone."""
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(2 * hidden, WIDTH), torch.nn.Linear(WIDTH, 1)
        generator = torch.Generator().manual_seed(int(philox_key(module="pred_gate", seed=seed)[0]) >> 1)
        with torch.no_grad():
            self.inner.weight.normal_(0.0, (2 * hidden) ** -0.5, generator=generator)
            self.inner.bias.zero_()
            self.outer.weight.zero_()
            self.outer.bias.fill_(START)

    def forward(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """States [..., h] at the last visible token and at the closing token -> logits [...]."""
        features = F.layer_norm(torch.cat([before, after], -1), (2 * before.shape[-1],))
        return self.outer(F.silu(self.inner(features))).squeeze(-1)


def mixed_logp(logit: torch.Tensor, without: torch.Tensor, after: torch.Tensor, space: str) -> torch.Tensor:
    """log p_mix of the target tokens: the share's `logit` [...], log-probabilities without and after the thought [..., H].

    In probability space log p_mix >= log(1 - share) + log p without the thought: a bad thought costs a bounded amount.
    In log-probability space the two are interpolated, without the normaliser over the vocabulary.
    """
    logit = logit.unsqueeze(-1)
    if space == "logprob":
        return torch.lerp(without, after, torch.sigmoid(logit))
    return torch.logaddexp(F.logsigmoid(logit) + after, F.logsigmoid(-logit) + without)


def fit(
    gate: PredictionGate,
    optimizer: torch.optim.Optimizer,
    states: tuple[torch.Tensor, torch.Tensor],
    logps: tuple[torch.Tensor, torch.Tensor],
    space: str,
    steps: int,
) -> float:
    """`steps` full-batch updates of the gate on -mean log p_mix; states and both experts' scores carry no gradient.

    `states` are those of `PredictionGate.forward`, `logps` the log-probabilities without and after the thought [N, H].
    Returns the loss before the first update (nats per token).
    """
    before, after = (tensor.detach() for tensor in states)
    without, inserted = (tensor.detach() for tensor in logps)
    first = float("nan")
    for step in range(steps):
        loss = -mixed_logp(gate(before, after), without, inserted, space).mean()
        first = loss.item() if step == 0 else first
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return first
