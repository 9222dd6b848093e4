"""From segments to gradients: one forward and backward pass per micro-batch, adding up to the loss of the step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from transformers import PreTrainedModel

from dosematch.objectives import Segment, brier_gate, target_logprobs, top_k_kl


@dataclass
class BackwardResult:
    """Sums over the segments of one step; `loss` per kind is before division by the accumulation."""

    loss: dict[str, float] = field(default_factory=dict)
    tokens_fed: dict[str, int] = field(default_factory=dict)
    tokens_loss: dict[str, int] = field(default_factory=dict)
    teacher_tokens: int = 0
    logp_gaps: list[float] = field(default_factory=list)


def micro_batches(segments: Sequence[Segment], max_tokens: int) -> Iterator[list[Segment]]:
    """Cut segments, longest first, into batches of at most `max_tokens` padded tokens (one segment always fits).

    A batch holds segments of one kind only, so that every loss term has a gradient of its own.
    """
    for _, same_kind in groupby(sorted(segments, key=lambda s: (s.kind, -len(s))), key=lambda s: s.kind):
        batch: list[Segment] = []
        for segment in same_kind:
            if batch and len(batch[0]) * (len(batch) + 1) > max_tokens:
                yield batch
                batch = []
            batch.append(segment)
        yield batch


def backward(
    model: PreTrainedModel,
    segments: Sequence[Segment],
    *,
    accumulation: int,
    micro_batch_tokens: int,
    after_batch: Callable[[str], None] | None = None,
) -> BackwardResult:
    """Add the gradient of the segments' loss, divided by `accumulation`, to the model's `.grad`s.

    Segments of weight zero are neither fed nor counted. `after_batch` is called with the kind of the batch after every
    backward pass. How the segments are cut into micro-batches changes the gradient by rounding only.
    """
    result = BackwardResult()
    for batch in micro_batches([s for s in segments if s.weight != 0.0], micro_batch_tokens):
        logits = segment_logits(model, [(segment.context_ids, segment.target_ids) for segment in batch])
        teachers = _teacher_logits(model, batch, result)
        total = torch.zeros((), device=logits[0].device)
        for segment, student, teacher in zip(batch, logits, teachers, strict=True):
            logprobs = target_logprobs(student, torch.tensor(segment.target_ids, device=student.device))
            loss = segment.weight * token_losses(segment, logprobs, student, teacher)[segment.start :].sum()
            total = total + loss
            _count(result, segment, loss.item(), logprobs.detach())
        (total / accumulation).backward()
        if after_batch is not None:
            after_batch(batch[0].kind)
    return result


def token_losses(
    segment: Segment, logprobs: torch.Tensor, student: torch.Tensor, teacher: torch.Tensor | None
) -> torch.Tensor:
    """`g_t * (alpha * CE_t + (1 - alpha) * KL_t)` for every target, fp32 [N] (thinker-spec 5.4)."""
    losses = -logprobs
    if teacher is not None:
        losses = segment.alpha * losses + (1.0 - segment.alpha) * top_k_kl(student, teacher, segment.top_k)
    return losses * brier_gate(logprobs) if segment.gated else losses


def _teacher_logits(
    model: PreTrainedModel, batch: Sequence[Segment], result: BackwardResult
) -> list[torch.Tensor | None]:
    """Logits of the same weights after each segment's teacher context; None where alpha is 1: no pass is made."""
    taught = [s for s in batch if s.teacher_ids is not None and s.alpha < 1.0]
    if not taught:
        return [None] * len(batch)
    sequences = [(segment.teacher_ids or (), segment.target_ids) for segment in taught]
    result.teacher_tokens += sum(len(context) + len(targets) for context, targets in sequences)
    with torch.no_grad():
        logits = iter(segment_logits(model, sequences))
    return [next(logits) if s.teacher_ids is not None and s.alpha < 1.0 else None for s in batch]


def _count(result: BackwardResult, segment: Segment, loss: float, logprobs: torch.Tensor) -> None:
    kind = segment.kind
    result.loss[kind] = result.loss.get(kind, 0.0) + loss
    result.tokens_fed[kind] = result.tokens_fed.get(kind, 0) + len(segment)
    result.tokens_loss[kind] = result.tokens_loss.get(kind, 0) + len(segment.target_ids) - segment.start
    if segment.sampled_logprobs is not None:
        sampled = torch.tensor(segment.sampled_logprobs, device=logprobs.device)
        result.logp_gaps += (logprobs - sampled).abs().tolist()


def segment_logits(
    model: PreTrainedModel, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> list[torch.Tensor]:
    """Logits at the targets of (context, targets) pairs, [len(targets), V] each, from one right-padded forward pass.

    Causal attention never looks right, so padding needs no mask; only hidden states at target positions reach the
    vocabulary projection.
    """
    device = next(model.parameters()).device
    width = max(len(context) + len(targets) for context, targets in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.int64, device=device)
    rows: list[int] = []
    columns: list[int] = []
    for i, (context, targets) in enumerate(sequences):
        ids[i, : len(context) + len(targets)] = torch.tensor(context + targets, device=device)
        rows += [i] * len(targets)
        # The token at t is predicted by the state at t-1.
        columns += range(len(context) - 1, len(context) + len(targets) - 1)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[rows, columns])
    return list(logits.split([len(targets) for _, targets in sequences]))


@torch.no_grad()
def token_entropies(
    model: PreTrainedModel, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> list[list[float]]:
    """Entropy (nats) of the model's distribution at every target of (context, targets) pairs (thinker-spec 7.1)."""
    entropies = []
    for logits in segment_logits(model, sequences):
        log_p = logits.float().log_softmax(-1)
        entropies.append((-(log_p.exp() * log_p).sum(-1)).tolist())
    return entropies
