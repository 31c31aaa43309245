"""The ranks of a trial: joining, collectives on Python values, a common clock, data parallelism, batch norm.

The timing's decisions (length of the warm-up, length of a block, when to stop) follow from a clock. Ranks that read
one clock decide alike and stay in step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.devices.backend import backend_of
from bench.spec.errors import UnsupportedError
from bench.spec.techniques import Techniques
from bench.spec.trial import Rendezvous

Value = TypeVar("Value")
PATIENCE = timedelta(minutes=20)
"""How long a rank waits for another at most; the first step of a large model may take minutes."""


def announce(rendezvous: Rendezvous) -> None:
    """Set torch.distributed's environment variables to this rank's place, and take its share of the CPU's threads."""
    os.environ |= {
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
        "RANK": str(rendezvous.rank),
        "LOCAL_RANK": str(rendezvous.rank % rendezvous.local_world),  # ranks of one machine follow each other
        "WORLD_SIZE": str(rendezvous.world),
        "LOCAL_WORLD_SIZE": str(rendezvous.local_world),
    }
    torch.set_num_threads(max(1, torch.get_num_threads() // rendezvous.local_world))


def join(device: torch.device, silence_s: float) -> None:
    """Join the other ranks at the address in torch.distributed's environment variables.

    After ``silence_s`` without a message the trial is taken to hang; a rank that waits for another says so before.
    """
    patience = min(PATIENCE, timedelta(seconds=silence_s * 2 / 3))
    distributed.init_process_group(backend_of(device).collectives, timeout=patience)


def ranks() -> int:
    """Return the number of ranks."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return this process's rank."""
    return distributed.get_rank() if ranks() > 1 else 0


def clock() -> Callable[[], int]:
    """Return a clock in nanoseconds, common to all ranks: the latest of theirs.

    Reading it waits for all ranks, so the time between two readings is that of the slowest rank.
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


def mean(value: float) -> float:
    """Return the mean over the ranks."""
    return summed([value], torch.device("cpu"))[0] / ranks()


def summed(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sums over the ranks, computed on the rank's device."""
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

    Every rank starts from rank 0's weights; ``bf16-allreduce`` sends gradients as bfloat16.
    """
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[device] if backend_of(device).is_gpu else None)
    if techniques.bf16_allreduce:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped


def synchronised_norms(model: nn.Module) -> nn.Module:
    """Return the model with batch norm over the whole batch of all ranks: torch's on GPUs, its formulas on CPUs.

    Raises:
        UnsupportedError: it has no batch norm, or one of another class, which might do more than normalise.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        raise UnsupportedError(f"sync-bn needs a model with batch norm, and {type(model).__name__} has none")
    for norm in norms:
        if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
            raise UnsupportedError(f"sync-bn replaces torch's own batch norms, and not a {type(norm).__name__}")
    if any(backend_of(weight.device).is_gpu for weight in model.parameters()):
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for norm in norms:
        norm.__class__ = SyncedBatchNorm  # weights, statistics and hooks stay as they are
    return model


class SyncedBatchNorm(_BatchNorm):
    """Batch norm of the mini-batch of all ranks, equally many samples on each (Ioffe and Szegedy, arXiv 1502.03167).

    The mean is reduced first and the squared deviations from it after: E[x²] − E[x]² loses digits when the mean is
    large. Computed in fp32 whatever the input's type, as batch norm is under autocast.
    """

    def _check_input_dim(self, input: Tensor) -> None:  # the name that torch gives it
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions (got {input.dim()})")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (B, C, ...) by each channel's mean and variance over all ranks' samples.

        Raises:
            ValueError: there is only one value per channel.
        """
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        x = input if input.dtype == torch.float64 else input.float()
        others = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        world = distributed.get_world_size()
        count = x.numel() // x.shape[1] * world
        if count < 2:
            raise ValueError(f"batch norm needs more than one value per channel in training, got {tuple(input.shape)}")
        mean: Tensor = _Sum.apply(x.mean(others)) / world
        away = x - mean.view(shape)
        variance = _Sum.apply(away.square().mean(others)) / world
        self._follow(mean.detach(), variance.detach() * count / (count - 1))
        normal = away * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, unbiased: Tensor) -> None:
        """Update the running statistics by ``momentum``, or as the mean so far."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        weight = self.momentum if self.momentum is not None else 1 / int(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


class _Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is summed over the ranks as well, because each loss is a part of one."""

    @staticmethod
    def forward(_ctx: Any, value: Tensor) -> Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        return _Sum.forward(ctx, gradients[0])
