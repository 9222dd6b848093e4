"""AdamW on fp32 masters of the working weights, with accumulation and the zero-gradient skip (thinker-spec 9)."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import torch

from dosematch.errors import UserError
from dosematch.parallel import add_up


@dataclass(frozen=True)
class Update:
    """What one boundary did: the pre-clip norm (0.0 without an update), the factor clipping applied, the rate used."""

    grad_norm: float
    clip_coef: float
    lr: float
    skipped: bool


@dataclass(frozen=True)
class StepGradient:
    """Anatomy of one step's own gradient: its norm, the norm of every loss term, and their pairwise cosines."""

    norm: float
    norms: dict[str, float]
    cosines: dict[str, float]


class MasterAdamW:
    """fp32 master weights, gradients and moments behind working weights of any dtype.

    `absorb` moves the working gradients into an fp32 gradient of their loss term after every backward pass, `end_step`
    adds the terms to the accumulated gradient, `update` clips, steps and casts back.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        clip_norm: float,
        skip_zero_grad: bool,
    ) -> None:
        self.names, self.working = zip(*model.named_parameters(), strict=True)
        self.masters = [parameter.detach().float().clone() for parameter in self.working]
        self.step_grads: dict[str, list[torch.Tensor]] = {}
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.clip_norm, self.skip_zero_grad = clip_norm, skip_zero_grad
        self.adamw = torch.optim.AdamW(self.masters, lr=0.0, betas=betas, eps=eps, weight_decay=weight_decay)

    @property
    def grads(self) -> list[torch.Tensor]:
        """The accumulated fp32 gradients."""
        return [master.grad for master in self.masters if master.grad is not None]

    def absorb(self, kind: str) -> None:
        """Add the working gradients to the step gradient of a loss term in fp32 and clear them."""
        for total, parameter in zip(self._step_grad(kind), self.working, strict=True):
            if parameter.grad is not None:
                total += parameter.grad.float()
                parameter.grad = None

    def add_up(self, kinds: Iterable[str]) -> None:
        """Sum the step gradients over all processes, which name the same loss terms whether they had a share or not."""
        for kind in sorted(kinds):
            add_up(self._step_grad(kind))

    def _step_grad(self, kind: str) -> list[torch.Tensor]:
        if kind not in self.step_grads:
            self.step_grads[kind] = [torch.zeros_like(master) for master in self.masters]
        return self.step_grads[kind]

    def end_step(self) -> StepGradient:
        """Add the step's loss terms to the accumulated gradient and describe them; cosines are named `a/b`."""
        terms = dict(sorted(self.step_grads.items()))
        norms = {kind: _norm(grads) for kind, grads in terms.items()}
        cosines = {
            f"{a}/{b}": _dot(terms[a], terms[b]) / (norms[a] * norms[b])
            for a, b in combinations(terms, 2)
            if norms[a] > 0 and norms[b] > 0
        }
        self.step_grads = {}
        if not terms:
            return StepGradient(0.0, {}, {})
        total, *others = terms.values()
        for other in others:  # in place: a sum of its own would be one more copy of the model
            for a, b in zip(total, other, strict=True):
                a += b
        for accumulated, step in zip(self.grads, total, strict=True):
            accumulated += step
        return StepGradient(_norm(total), norms, cosines)

    def update(self, lr: float) -> Update:
        """Clip the accumulated gradient, step, cast the masters to the working weights, clear.

        With the skip on, a gradient that is exactly zero leaves masters, moments and step counter untouched, decay
        included. Raises `UserError` when the norm is not finite.
        """
        norm = float(torch.nn.utils.get_total_norm(self.grads))
        if not torch.isfinite(torch.tensor(norm)):
            raise UserError(f"training: gradient norm is {norm}: lower training.base_lr or look for a diverged parent")
        skipped = norm == 0.0 and self.skip_zero_grad
        if not skipped:
            torch.nn.utils.clip_grads_with_norm_(self.masters, self.clip_norm, torch.tensor(norm))
            self.adamw.param_groups[0]["lr"] = lr
            self.adamw.step()
            self.cast()
        for grad in self.grads:
            grad.zero_()
        coef = min(1.0, self.clip_norm / (norm + 1e-6))  # the factor of torch's clipping
        return Update(norm, coef, 0.0 if skipped else lr, skipped)

    def cast(self) -> None:
        """Write the masters into the working weights."""
        with torch.no_grad():
            for parameter, master in zip(self.working, self.masters, strict=True):
                parameter.copy_(master)

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor that a resumed run needs, by name."""
        tensors = {}
        for name, master in zip(self.names, self.masters, strict=True):
            tensors[f"master.{name}"] = master
            tensors[f"grad.{name}"] = master.grad
            for key, value in self.adamw.state[master].items():
                tensors[f"adamw.{key}.{name}"] = value
        return tensors

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore what `state` returned, and the working weights."""
        with torch.no_grad():
            for name, master in zip(self.names, self.masters, strict=True):
                master.copy_(tensors[f"master.{name}"])
                master.grad = tensors[f"grad.{name}"].to(master.device, copy=True)
                moments = {key: tensors.get(f"adamw.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
                if moments["step"] is not None:
                    self.adamw.state[master] = {k: v.clone() for k, v in moments.items() if v is not None}
        self.cast()


def _norm(tensors: list[torch.Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(tensors))


def _dot(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))
