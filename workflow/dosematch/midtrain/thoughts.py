"""Hidden thoughts: sampling them, the rounding of the sampler's weights, and their log-probabilities (t5-spec 1.2, 1.7)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from dosematch.midtrain.settings import Task
from dosematch.rollout.engine import Generator, Request
from dosematch.sampling import uniforms

STUDY = "t5"


@dataclass(frozen=True)
class Item:
    """A selected text position: what is visible before it, and the scored continuation that no policy sees.

    `context` ends with the token that opens a thought; `sequence` is the row of the corpus that it comes from, `parent`
    the document.
    """

    item_id: str
    parent: str
    kind: str
    sequence: int
    context: tuple[int, ...]
    continuation: tuple[int, ...]


@dataclass(frozen=True)
class Thought:
    """Sampled actions, with the closing token if it was sampled (`closed`), and their log-probabilities under q."""

    ids: tuple[int, ...]
    logp_q: tuple[float, ...]
    closed: bool

    @property
    def content(self) -> tuple[int, ...]:
        """The actions without the closing one."""
        return self.ids[:-1] if self.closed else self.ids


def sample_thoughts(
    engine: Generator, items: Sequence[Item], task: Task, *, group: int, seed: int, step: int, role: str, batch: int
) -> list[Thought]:
    """`group` thoughts of every item, items in order; the random numbers depend on nothing but the named counters.

    A thought that does not end by itself within `task.l_max` actions stops there and counts as closed by force.
    """
    requests = [
        Request(
            item.context,
            task.l_max,
            temperature=task.temperature,
            uniforms=uniforms(
                task.l_max, study=STUDY, seed=seed, run=1, step=step, question=item.item_id, stage=role, rollout=rollout
            ),
        )
        for item in items
        for rollout in range(group)
    ]
    completions = engine.generate(requests, batch_size=batch)
    return [Thought(c.token_ids, c.logprobs, c.finish_reason == "stop") for c in completions]


def rounded(weights: Mapping[str, torch.Tensor], kind: str) -> dict[str, torch.Tensor]:
    """A copy of the weights as a sampler of lower precision would hold them, in their own dtype.

    `bf16` rounds every value; `int8` rounds matrices to 255 levels per row, with the row's largest value as scale.
    """
    if kind == "fp32":
        return dict(weights)
    if kind == "bf16":
        return {name: tensor.to(torch.bfloat16).to(tensor.dtype) for name, tensor in weights.items()}
    return {name: _int8(tensor) if tensor.ndim == 2 else tensor for name, tensor in weights.items()}


def _int8(matrix: torch.Tensor) -> torch.Tensor:
    scale = matrix.abs().amax(1, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny) / 127
    return (matrix / scale).round().clamp(-127, 127) * scale


def padded(rows: Sequence[Sequence[int]], width: int | None = None) -> torch.Tensor:
    """Rows of token ids as one int64 tensor [B, width], padded with 0 on the right."""
    longest = max(map(len, rows)) if width is None else width
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])


def chunks(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices in batches of at most `max_tokens` padded tokens, longest first (one row always fits)."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def action_states(hidden: torch.Tensor, starts: torch.Tensor, l_max: int) -> torch.Tensor:
    """Hidden states that the actions are taken in: [B, S, h] -> [B, l_max, h], action t at `starts + t - 1`.

    `starts` int64 [B] is the place of the opening token; places past a row's end repeat its last column.
    """
    place = (starts.unsqueeze(1) + torch.arange(l_max, device=hidden.device)).clamp(max=hidden.shape[1] - 1)
    return hidden.gather(1, place.unsqueeze(2).expand(-1, -1, hidden.shape[2]))


def thought_states(
    backbone: torch.nn.Module, contexts: Sequence[Sequence[int]], thoughts: Sequence[Sequence[int]], l_max: int
) -> torch.Tensor:
    """Final hidden states before every action, [B, l_max, h]; rows are padded on the right, which causality ignores."""
    rows = [[*context, *ids[:-1]] for context, ids in zip(contexts, thoughts, strict=True)]
    device = next(backbone.parameters()).device
    hidden = backbone(input_ids=padded(rows).to(device), use_cache=False).last_hidden_state
    return action_states(hidden, torch.tensor([len(context) - 1 for context in contexts], device=device), l_max)


def action_logps(
    model: PreTrainedModel,
    contexts: Sequence[Sequence[int]],
    thoughts: Sequence[Sequence[int]],
    l_max: int,
    temperature: float,
) -> torch.Tensor:
    """log pi(a_t given s_t), fp32 [B, l_max], with gradient where it is on; entries past a thought's end mean nothing."""
    states = thought_states(model.model, contexts, thoughts, l_max)
    logits = model.lm_head(states).float() / temperature
    actions = padded(thoughts, l_max).to(logits.device)
    return logits.gather(2, actions.unsqueeze(2)).squeeze(2) - logits.logsumexp(2)
