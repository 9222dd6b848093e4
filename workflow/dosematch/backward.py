"""From segments to gradients: one forward and backward pass per micro-batch, adding up to the loss of the step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from dosematch.objectives import Segment, target_logprobs


@dataclass
class BackwardResult:
    """Sums over the segments of one step; `loss` per kind is before division by the accumulation."""

    loss: dict[str, float] = field(default_factory=dict)
    tokens_fed: dict[str, int] = field(default_factory=dict)
    tokens_loss: dict[str, int] = field(default_factory=dict)
    logp_gaps: list[float] = field(default_factory=list)


def micro_batches(segments: Sequence[Segment], max_tokens: int) -> Iterator[list[Segment]]:
    """Cut segments, longest first, into batches of at most `max_tokens` padded tokens (one segment always fits)."""
    batch: list[Segment] = []
    for segment in sorted(segments, key=len, reverse=True):
        if batch and len(batch[0]) * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch


def backward(
    model: PreTrainedModel,
    segments: Sequence[Segment],
    *,
    accumulation: int,
    micro_batch_tokens: int,
    after_batch: Callable[[], None] = lambda: None,
) -> BackwardResult:
    """Add the gradient of the segments' loss, divided by `accumulation`, to the model's `.grad`s.

    Segments of weight zero are neither fed nor counted. `after_batch` is called after every backward pass. How the
    segments are cut into micro-batches changes the gradient by rounding only.
    """
    result = BackwardResult()
    for batch in micro_batches([s for s in segments if s.weight != 0.0], micro_batch_tokens):
        logprobs = segment_logprobs(model, batch)
        total = torch.zeros((), device=logprobs[0].device)
        for segment, logprob in zip(batch, logprobs, strict=True):
            loss = -segment.weight * logprob[segment.start :].sum()
            total = total + loss
            _count(result, segment, loss.item(), logprob.detach())
        (total / accumulation).backward()
        after_batch()
    return result


def _count(result: BackwardResult, segment: Segment, loss: float, logprob: torch.Tensor) -> None:
    kind = segment.kind
    result.loss[kind] = result.loss.get(kind, 0.0) + loss
    result.tokens_fed[kind] = result.tokens_fed.get(kind, 0) + len(segment)
    result.tokens_loss[kind] = result.tokens_loss.get(kind, 0) + len(segment.target_ids) - segment.start
    if segment.sampled_logprobs is not None:
        sampled = torch.tensor(segment.sampled_logprobs, device=logprob.device)
        result.logp_gaps += (logprob - sampled).abs().tolist()


def segment_logprobs(model: PreTrainedModel, batch: Sequence[Segment]) -> list[torch.Tensor]:
    """Log-probabilities of every segment's targets, fp32 [len(target_ids)] each, from one right-padded forward pass.

    Causal attention never looks right, so padding needs no mask; only hidden states at target positions reach the
    vocabulary projection.
    """
    device = next(model.parameters()).device
    width = max(map(len, batch))
    ids = torch.zeros(len(batch), width, dtype=torch.int64, device=device)
    rows: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for i, segment in enumerate(batch):
        context, n = len(segment.context_ids), len(segment.target_ids)
        ids[i, : len(segment)] = torch.tensor(segment.context_ids + segment.target_ids, device=device)
        rows += [i] * n
        columns += range(context - 1, context + n - 1)  # the token at t is predicted by the state at t-1
        targets += segment.target_ids
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[rows, columns])
    logprobs = target_logprobs(logits, torch.tensor(targets, device=device))
    return list(logprobs.split([len(segment.target_ids) for segment in batch]))
