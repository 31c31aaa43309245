"""Batch norm over the whole batch of all ranks: torch's SyncBatchNorm on GPUs, the same formulas on CPUs.

The formulas are batch norm's (Ioffe and Szegedy, arXiv 1502.03167, algorithm 1) for the mini-batch of all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.devices.backend import backend_of
from bench.spec.errors import UnsupportedError


def synchronised_norms(model: nn.Module) -> nn.Module:
    """Return the model with batch norm's statistics taken over the whole batch of all ranks.

    Args:
        model: on its device.

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
    """Batch norm whose training statistics are those of all ranks' samples, equally many on each.

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
        ranks = distributed.get_world_size()
        count = x.numel() // x.shape[1] * ranks
        if count < 2:
            raise ValueError(f"batch norm needs more than one value per channel in training, got {tuple(input.shape)}")
        mean = _sum(x.mean(others)) / ranks
        away = x - mean.view(shape)
        variance = _sum(away.square().mean(others)) / ranks
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
        share = self.momentum if self.momentum is not None else 1 / int(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is summed over the ranks as well, because each loss is a part of one."""

    @staticmethod
    def forward(_ctx: Any, own: Tensor) -> Tensor:
        total = own.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Tensor:
        total: Tensor = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total


def _sum(own: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(own)
    return total
