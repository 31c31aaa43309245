"""The ranks of a trial: joining, collectives on Python values, a common clock, DistributedDataParallel.

The timing's decisions (length of the warm-up, length of a block, when to stop) follow from a clock. Ranks that read
one clock decide alike and stay in step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from bench.devices.backend import backend_of
from bench.spec.techniques import Techniques

Value = TypeVar("Value")
PATIENCE = timedelta(minutes=20)
"""How long a rank waits for another; the first step of a large model may take minutes. Less than the silence after
which a worker counts as hung (bench/launch/local.py), so that the rank that waits reports why."""


def join(device: torch.device) -> None:
    """Join the other ranks at the address in torch.distributed's environment variables."""
    distributed.init_process_group(backend_of(device).collectives, timeout=PATIENCE)


def ranks() -> int:
    """Return the number of ranks."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return this process's rank."""
    return distributed.get_rank() if ranks() > 1 else 0


def clock() -> Callable[[], int]:
    """Return a clock in nanoseconds, common to all ranks.

    The common clock is the latest of theirs. Reading it waits for all ranks, so the time between two readings is that
    of the slowest rank.
    """
    if ranks() == 1:
        return time.perf_counter_ns
    distributed.barrier()
    zero = time.perf_counter_ns()

    def read() -> int:
        now = torch.tensor([time.perf_counter_ns() - zero])
        distributed.all_reduce(now, distributed.ReduceOp.MAX)
        return int(now)

    return read


def gathered(own: Value) -> tuple[Value, ...]:
    """Return every rank's value, by rank."""
    if ranks() == 1:
        return (own,)
    found: list[Any] = [None] * ranks()
    distributed.all_gather_object(found, own)
    return tuple(found)


def from_first(own: Value) -> Value:
    """Return rank 0's value on every rank."""
    if ranks() == 1:
        return own
    told: list[Any] = [own]
    distributed.broadcast_object_list(told, 0)
    first: Value = told[0]
    return first


def mean(value: float) -> float:
    """Return the mean over the ranks."""
    total = torch.tensor([value], dtype=torch.float64)
    if ranks() > 1:
        distributed.all_reduce(total)
    return float(total) / ranks()


def summed(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sums over the ranks, computed on a device whose backend they have joined."""
    totals = torch.tensor(values, dtype=torch.float64, device=device)
    if ranks() > 1:
        distributed.all_reduce(totals)
    return [float(total) for total in totals]


@torch.no_grad()
def share_buffers(model: nn.Module) -> None:
    """Copy rank 0's buffers to every rank, as DistributedDataParallel does before a training step."""
    if ranks() > 1:
        for buffer in model.buffers():
            dense = buffer.contiguous()
            distributed.broadcast(dense, 0)
            buffer.copy_(dense)


def part(batch_size: int) -> int:
    """Return the size of this rank's part of a batch."""
    return batch_size // ranks()


def parallel(model: nn.Module, device: torch.device, techniques: Techniques) -> Callable[..., Tensor]:
    """Return the model's forward pass, after which backward averages gradients over the ranks.

    Args:
        model: on its device; every rank starts from rank 0's weights.
        device: the rank's own.
        techniques: ``bf16-allreduce`` sends gradients as bfloat16.
    """
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[device] if backend_of(device).is_gpu else None)
    if techniques.bf16_allreduce:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped
