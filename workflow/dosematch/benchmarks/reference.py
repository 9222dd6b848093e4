"""The plain transformers side of the comparisons: what a straightforward program would do."""

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import log_softmax
from transformers import PreTrainedModel

from dosematch.objectives import Segment

Ids = tuple[int, ...]


def by_transformers(
    model: PreTrainedModel, prompts: list[Ids], batch: int, limits: dict[str, int], pad: int
) -> list[list[int]]:
    """Greedy completions by transformers: left-padded batches, each run until its longest row ends."""
    completions: list[list[int]] = []
    generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        out = generate(ids, attention_mask=mask, do_sample=False, pad_token_id=pad, **limits)
        completions += [row[width:].tolist() for row in out]
    return [row[: row.index(pad) + 1] if pad in row else row for row in completions]


def plain_backward(model: PreTrainedModel, segments: Sequence[Segment]) -> float:
    """Add the gradient of a policy-gradient loss by logits of the whole right-padded batch; returns the loss.

    The loss is that of `backward` for segments without gate, teacher or start: `-sum of weight * log-probability`.
    """
    width = max(map(len, segments))
    ids, mask = torch.zeros(len(segments), width, dtype=torch.int64), torch.zeros(len(segments), width)
    weights = torch.zeros(len(segments), width)
    for row, segment in enumerate(segments):
        ids[row, : len(segment)] = torch.tensor(segment.context_ids + segment.target_ids)
        mask[row, : len(segment)] = 1
        weights[row, len(segment.context_ids) : len(segment)] = segment.weight
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    logprobs = log_softmax(logits[:, :-1].float(), dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    loss = -(weights[:, 1:] * logprobs).sum()
    loss.backward()
    return loss.item()


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    """All gradients as one float64 vector, in the order of the parameters that have one."""
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
