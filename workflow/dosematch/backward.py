"""From segments to gradients: one forward and backward pass per micro-batch, adding up to the loss of the step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from transformers import PreTrainedModel

from dosematch.objectives import Segment, brier_gate, drawn_logprobs, target_logprobs, top_k_kl


@dataclass
class BackwardResult:
    """Sums over the segments of one step; `loss` per kind is before division by the accumulation."""

    loss: dict[str, float] = field(default_factory=dict)
    tokens_fed: dict[str, int] = field(default_factory=dict)
    tokens_loss: dict[str, int] = field(default_factory=dict)
    teacher_tokens: int = 0
    logp_gaps: list[float] = field(default_factory=list)


def merged(results: Sequence[BackwardResult]) -> BackwardResult:
    """The sums of several shares of one step."""
    whole = BackwardResult()
    for result in results:
        for name in ("loss", "tokens_fed", "tokens_loss"):
            total = getattr(whole, name)
            for kind, value in getattr(result, name).items():
                total[kind] = total.get(kind, 0) + value
        whole.teacher_tokens += result.teacher_tokens
        whole.logp_gaps += result.logp_gaps
    return whole


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
    logit_rows: int = 1 << 30,
    after_batch: Callable[[str], None] | None = None,
) -> BackwardResult:
    """Add the gradient of the segments' loss, divided by `accumulation`, to the model's `.grad`s.

    Segments of weight zero are neither fed nor counted. `after_batch` is called with the kind of the batch after every
    backward pass. How the segments are cut into micro-batches, and their targets into runs of `logit_rows`, changes
    the gradient by rounding only; no more than `logit_rows` rows of logits exist at a time.
    """
    result = BackwardResult()
    for batch in micro_batches([s for s in segments if s.weight != 0.0], micro_batch_tokens):
        hidden = target_states(model, [(segment.context_ids, segment.target_ids) for segment in batch])
        teachers = _teacher_states(model, batch, result)
        # The vocabulary projection ends in a leaf, so that each run's logits are freed by a backward pass of its own.
        leaf = hidden.detach().requires_grad_()
        losses = dict.fromkeys(range(len(batch)), 0.0)
        logprobs: list[list[torch.Tensor]] = [[] for _ in batch]
        for run in _runs(batch, logit_rows):
            total = torch.zeros((), device=hidden.device)
            student = _project(model, leaf[run[0].rows.start : run[-1].rows.stop])
            for piece, logits in zip(run, student.split([len(piece.rows) for piece in run]), strict=True):
                loss, found = _piece_loss(model, batch[piece.index], piece, logits, teachers[piece.index])
                total = total + loss
                losses[piece.index] += loss.item()
                logprobs[piece.index].append(found)
            (total / accumulation).backward()
        hidden.backward(leaf.grad)
        for i, segment in enumerate(batch):
            _count(result, segment, losses[i], torch.cat(logprobs[i]))
        if after_batch is not None:
            after_batch(batch[0].kind)
    return result


@dataclass(frozen=True)
class _Piece:
    """Targets `targets` of a batch's segment number `index`, whose hidden states are the rows `rows` of the batch."""

    index: int
    targets: range
    rows: range


def _runs(batch: Sequence[Segment], size: int) -> Iterator[list[_Piece]]:
    """Cut the targets of a batch, in order, into runs of at most `size`; a run may begin or end inside a segment."""
    run: list[_Piece] = []
    row = 0
    for index, segment in enumerate(batch):
        done = 0
        while done < len(segment.target_ids):
            free = size - sum(len(piece.rows) for piece in run)
            taken = min(free, len(segment.target_ids) - done)
            run.append(_Piece(index, range(done, done + taken), range(row, row + taken)))
            done, row = done + taken, row + taken
            if taken == free:
                yield run
                run = []
    if run:
        yield run


def _piece_loss(
    model: PreTrainedModel, segment: Segment, piece: _Piece, student: torch.Tensor, states: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of a segment's piece, and the log-probabilities that its targets had when they were drawn."""
    targets = torch.tensor(segment.target_ids, device=student.device)[piece.targets.start : piece.targets.stop]
    logprobs = target_logprobs(student, targets)
    teacher = None
    if states is not None:
        with torch.no_grad():
            teacher = _project(model, states[piece.targets.start : piece.targets.stop])
    skipped = max(0, segment.start - piece.targets.start)
    loss = segment.weight * token_losses(segment, logprobs, student, teacher)[skipped:].sum()
    if segment.drawn is None:
        return loss, logprobs.detach()
    return loss, drawn_logprobs(student.detach(), targets, segment.drawn, piece.targets.start)


def token_losses(
    segment: Segment, logprobs: torch.Tensor, student: torch.Tensor, teacher: torch.Tensor | None
) -> torch.Tensor:
    """`g_t * (alpha * CE_t + (1 - alpha) * KL_t)` for every given target, fp32 [N] (thinker-spec 5.4)."""
    losses = -logprobs
    if teacher is not None:
        losses = segment.alpha * losses + (1.0 - segment.alpha) * top_k_kl(student, teacher, segment.top_k)
    return losses * brier_gate(logprobs) if segment.gated else losses


def _teacher_states(
    model: PreTrainedModel, batch: Sequence[Segment], result: BackwardResult
) -> list[torch.Tensor | None]:
    """States of the same weights after each segment's teacher context; None where alpha is 1: no pass is made."""
    taught = [s for s in batch if s.teacher_ids is not None and s.alpha < 1.0]
    if not taught:
        return [None] * len(batch)
    sequences = [(segment.teacher_ids or (), segment.target_ids) for segment in taught]
    result.teacher_tokens += sum(len(context) + len(targets) for context, targets in sequences)
    with torch.no_grad():
        states = iter(target_states(model, sequences).split([len(segment.target_ids) for segment in taught]))
    return [next(states) if s.teacher_ids is not None and s.alpha < 1.0 else None for s in batch]


def _count(result: BackwardResult, segment: Segment, loss: float, logprobs: torch.Tensor) -> None:
    kind = segment.kind
    result.loss[kind] = result.loss.get(kind, 0.0) + loss
    result.tokens_fed[kind] = result.tokens_fed.get(kind, 0) + len(segment)
    result.tokens_loss[kind] = result.tokens_loss.get(kind, 0) + len(segment.target_ids) - segment.start
    if segment.drawn is not None:
        sampled = torch.tensor(segment.drawn.logprobs, device=logprobs.device)
        result.logp_gaps += (logprobs - sampled).abs().tolist()


def target_states(model: PreTrainedModel, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> torch.Tensor:
    """Hidden states that predict the targets of (context, targets) pairs, [sum of len(targets), hidden].

    One right-padded forward pass: causal attention never looks right, so padding needs no mask.
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
    return model.base_model(input_ids=ids, use_cache=False).last_hidden_state[rows, columns]


def segment_logits(
    model: PreTrainedModel, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> list[torch.Tensor]:
    """Logits at the targets of (context, targets) pairs, [len(targets), V] each."""
    logits = _project(model, target_states(model, sequences))
    return list(logits.split([len(targets) for _, targets in sequences]))


def _project(model: PreTrainedModel, states: torch.Tensor) -> torch.Tensor:
    """Logits [N, V] of hidden states [N, hidden]."""
    logits: torch.Tensor = model.get_output_embeddings()(states)
    return logits


@torch.no_grad()
def token_entropies(
    model: PreTrainedModel,
    sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    logit_rows: int = 1 << 30,
) -> list[list[float]]:
    """Entropy (nats) of the model's distribution at every target of (context, targets) pairs (thinker-spec 7.1)."""
    entropies: list[float] = []
    for states in target_states(model, sequences).split(logit_rows):
        log_p = _project(model, states).float().log_softmax(-1)
        entropies += (-(log_p.exp() * log_p).sum(-1)).tolist()
    found = iter(entropies)
    return [[next(found) for _ in targets] for _, targets in sequences]
