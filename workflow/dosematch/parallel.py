"""Data parallelism under `torchrun`: every process holds the whole step and all weights, and works on a share.

Shares are cut where the work is (requests, sequences, segments) and put together at once, so that everything between
is the same in every process: what is sampled, which segments exist, the gradient and the update. Without `torchrun`
all functions here are the identity.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dosematch.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


def join(device: str, processes: int) -> None:
    """Join the group that `torchrun` describes in the environment; one process alone needs none.

    Raises `UserError` when another number of processes was started than the settings say.
    """
    if started() != processes:
        raise UserError(
            f"scale: runtime.processes is {processes}, started: {started()} (torchrun --nproc-per-node {processes})"
        )
    if processes > 1:
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")


def started() -> int:
    """Number of processes that `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leave() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """This process's number; number 0 is the one that writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def gathered(value: Item) -> list[Item]:
    """The values of all processes, in their order, in every process."""
    if size() == 1:
        return [value]
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value)
    return values


def in_shares(work: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
    """`work(items)`, each process doing a run of neighbours; all get all results, in the order of the items.

    `work` must treat items alone, whatever their neighbours are; it is not called on an empty share.
    """
    first, last = (len(items) * number // size() for number in (rank(), rank() + 1))
    own = work(items[first:last]) if last > first else []
    return [result for share in gathered(own) for result in share]


def dealt(items: Sequence[Item], key: Callable[[Item], Any]) -> Sequence[Item]:
    """This process's items when all are dealt out in the order of `key`: shares of about equal size."""
    return items if size() == 1 else sorted(items, key=key)[rank() :: size()]


def by_first(decide: Callable[..., Result]) -> Callable[..., Result]:
    """The same function, called in process 0 alone: for decisions that could differ, as a time limit's."""

    def decided(*arguments: Any) -> Result:
        return gathered(decide(*arguments) if rank() == 0 else None)[0]  # type: ignore[return-value]

    return decide if size() == 1 else decided


def first_alone(action: Callable[[], Result]) -> Result:
    """Act in process 0, and only then in the others: for reading what process 0 may have to mend."""
    if rank() == 0:
        result = action()
    gathered(None)
    return result if rank() == 0 else action()


def add_up(tensors: Iterable[torch.Tensor]) -> None:
    """Replace every tensor by its sum over all processes."""
    if size() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def check_agreement(what: str, digest: str) -> None:
    """Raise `UserError` naming the first process whose `digest` is not that of process 0."""
    digests = gathered(digest)
    for number, other in enumerate(digests):
        if other != digests[0]:
            raise UserError(f"process {number}: its {what} differ from those of process 0")
