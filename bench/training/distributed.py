"""Processes that train together: how many there are, which this is, and what they must agree on.

Each decision of the timing (how long to warm up, how to cut blocks, when to stop) follows from a clock, so that
processes which read one clock decide alike and stay in step.
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
"""How long a process waits for another; the first step of a large model on a slow device may take minutes. Less than
after how long a silent worker is taken to hang (bench/launch/local.py): who waits in vain says so."""


def join(device: torch.device) -> None:
    """Join the other processes, which the usual variables of torch.distributed name."""
    distributed.init_process_group(backend_of(device).collectives, timeout=PATIENCE)


def ranks() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return which of them this is."""
    return distributed.get_rank() if ranks() > 1 else 0


def clock() -> Callable[[], int]:
    """Return a clock in nanoseconds: this process's own, or one that all processes read together.

    The shared one is the latest of theirs: whoever reads it waits for the slowest, so that a block between two readings
    took as long as it took the slowest process.
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
    """Return what each process gave, in their order."""
    if ranks() == 1:
        return (own,)
    found: list[Any] = [None] * ranks()
    distributed.all_gather_object(found, own)
    return tuple(found)


def from_first(own: Value) -> Value:
    """Return in every process what the first of them gave."""
    if ranks() == 1:
        return own
    told: list[Any] = [own]
    distributed.broadcast_object_list(told, 0)
    first: Value = told[0]
    return first


def mean(value: float) -> float:
    """Return the mean over the processes."""
    total = torch.tensor([value], dtype=torch.float64)
    if ranks() > 1:
        distributed.all_reduce(total)
    return float(total) / ranks()


def summed(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sums over the processes, made on a device for which they are joined."""
    totals = torch.tensor(values, dtype=torch.float64, device=device)
    if ranks() > 1:
        distributed.all_reduce(totals)
    return [float(total) for total in totals]


@torch.no_grad()
def share_buffers(model: nn.Module) -> None:
    """Give each process the first one's buffers, as DistributedDataParallel does before a training step."""
    if ranks() > 1:
        for buffer in model.buffers():
            dense = buffer.contiguous()
            distributed.broadcast(dense, 0)
            buffer.copy_(dense)


def part(batch_size: int) -> int:
    """Return how much of a batch is this process's."""
    return batch_size // ranks()


def parallel(model: nn.Module, device: torch.device, techniques: Techniques) -> Callable[..., Tensor]:
    """Return the model's forward pass, after which backward averages gradients over the processes.

    Args:
        model: on its device; every process starts from the first one's weights.
        device: the process's own.
        techniques: ``bf16-allreduce`` sends gradients as bfloat16.
    """
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[device] if backend_of(device).is_gpu else None)
    if techniques.bf16_allreduce:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped
