"""The ranks of a trial: joining, collectives, a common clock, data parallelism, batch norm.

The timing's decisions (length of the warm-up, length of a block, when to stop) follow from a clock.
Ranks that read one clock decide alike and stay in step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.devices.backend import backend_of
from bench.spec.errors import UnsupportedError
from bench.spec.placement import Rendezvous

Value = TypeVar("Value")
# How long a rank waits for another at most; the first step of a large model may take minutes.
PATIENCE = timedelta(minutes=20)


def announce(rendezvous: Rendezvous) -> None:
    """Set torch.distributed's environment variables, and take this rank's share of the threads."""
    # The ranks of one machine follow each other.
    local_rank = rendezvous.rank % rendezvous.local_world
    os.environ |= {
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
        "RANK": str(rendezvous.rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(rendezvous.world),
        "LOCAL_WORLD_SIZE": str(rendezvous.local_world),
    }
    torch.set_num_threads(max(1, torch.get_num_threads() // rendezvous.local_world))


def join(device: torch.device, silence_s: float) -> None:
    """Join the other ranks at the address in torch.distributed's environment variables.

    After ``silence_s`` without a message the trial is taken to hang; a rank that waits for another
    says so before.
    """
    patience = min(PATIENCE, timedelta(seconds=silence_s * 2 / 3))
    distributed.init_process_group(backend_of(device).collectives, timeout=patience)


def ranks() -> int:
    """Return the number of ranks."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def rank() -> int:
    """Return this process's rank."""
    if ranks() > 1:
        return distributed.get_rank()
    return 0


def clock() -> Callable[[], int]:
    """Return a clock in nanoseconds, common to all ranks: the latest of theirs.

    Reading it waits for all ranks, so the time between two readings is that of the slowest rank.
    """
    if ranks() == 1:
        return time.perf_counter_ns
    # Each machine's clock has a zero of its own, so all count from a common moment.
    distributed.barrier()
    zero = time.perf_counter_ns()

    def read() -> int:
        # On the CPU, where gloo reduces it without waiting for the GPU.
        now = torch.tensor([time.perf_counter_ns() - zero])
        distributed.all_reduce(now, distributed.ReduceOp.MAX)
        return int(now)

    return read


def gathered(value: Value) -> tuple[Value, ...]:
    """Return every rank's value, by rank."""
    if ranks() == 1:
        return (value,)
    values: list[Any] = [None] * ranks()
    distributed.all_gather_object(values, value)
    return tuple(values)


def from_first(value: Value) -> Value:
    """Return rank 0's value on every rank."""
    if ranks() == 1:
        return value
    values = [value]
    distributed.broadcast_object_list(values, 0)
    return values[0]


def total(readings: Sequence[float | None]) -> float | None:
    """Return the sum, or None where one of them is unknown."""
    known = [reading for reading in readings if reading is not None]
    if known and len(known) == len(readings):
        return sum(known)
    return None


def summed(values: Sequence[float]) -> list[float]:
    """Return the sums of each value over the ranks."""
    # Python's numbers, in one exchange: a device's tensors might round them.
    by_value = zip(*gathered(values), strict=True)
    return [sum(readings) for readings in by_value]


@torch.no_grad()
def share_buffers(model: nn.Module) -> None:
    """Copy rank 0's buffers to every rank, as DistributedDataParallel does before each step."""
    if ranks() > 1:
        for buffer in model.buffers():
            # Collectives take contiguous memory.
            dense = buffer.contiguous()
            distributed.broadcast(dense, 0)
            buffer.copy_(dense)


def parallel(model: nn.Module, device: torch.device) -> Callable[..., Any]:
    """Return the model's forward pass, after which backward averages gradients over the ranks.

    Every rank starts from rank 0's weights.
    """
    # A model on the CPU must have none.
    device_ids = None
    if backend_of(device).is_gpu:
        device_ids = [device]
    return nn.parallel.DistributedDataParallel(model, device_ids=device_ids)


def synchronised_norms(model: nn.Module) -> nn.Module:
    """Return the model with torch's SyncBatchNorm in place of its batch norms.

    It normalises over the whole batch of all ranks.

    Raises:
        UnsupportedError: it has no batch norm, or one of another class, which might do more than
            normalise.
    """
    kinds = {type(module) for module in model.modules() if isinstance(module, _BatchNorm)}
    if not kinds:
        raise UnsupportedError(
            f"sync-bn needs a model with batch norm, and {type(model).__name__} has none"
        )
    others = kinds - {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm}
    if others:
        raise UnsupportedError(
            f"sync-bn replaces torch's own batch norms, and not a {others.pop().__name__}"
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted
