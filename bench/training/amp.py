"""A precision's switches: set, and read back.

``fp32`` is really FP32 here: TF32 is off in matrix products, convolutions and recurrent layers unless
the precision asks for it, on the GPU and in oneDNN on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from bench.devices.backend import backend_of
from bench.devices.capabilities import matmul_error, set_tf32
from bench.results.records import Switches
from bench.spec.precisions import Precision


def apply(precision: Precision) -> None:
    """Set torch's process-wide fp32 switches for ``precision``."""
    set_tf32(precision.tf32)


def read_back(precision: Precision, device: torch.device) -> Switches:
    """Return the switches as they are now, and the error of an fp32 matrix product under them."""
    matmul, conv = backend_of(device).fp32_switches()
    return Switches(
        fp32_matmul=matmul,
        fp32_conv=conv,
        autocast=precision.autocast,
        loss_scaling=precision.loss_scaling,
        matmul_error=matmul_error(device),
    )


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return the region in which the forward pass and the loss run; a no-op for fp32 and tf32."""
    if precision.autocast is None:
        return nullcontext()  # entering a disabled autocast costs 5 µs a step
    return torch.autocast(device.type, dtype=getattr(torch, precision.autocast), cache_enabled=precision.cache)


class StaticScaler(torch.amp.GradScaler):
    """A GradScaler with a constant scale; steps with a gradient that is not finite are skipped as usual."""

    def __init__(self, device: str, scale: float) -> None:
        super().__init__(device, init_scale=scale)
        self._static = scale

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Reset what was found in the gradients, and keep the scale or set it to ``new_scale``."""
        super().update(self._static if new_scale is None else new_scale)


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Return the precision's GradScaler, disabled where the precision does not scale the loss."""
    if precision.scale is not None:
        return StaticScaler(device.type, precision.scale)
    return torch.amp.GradScaler(
        device.type,
        init_scale=precision.init_scale,
        growth_factor=precision.growth_factor,
        backoff_factor=precision.backoff_factor,
        growth_interval=precision.growth_interval,
        enabled=precision.loss_scaling,
    )


def use_float8(model: nn.Module) -> None:
    """Let torchao convert the model's linear layers, in place, to multiply in float8, forward and backward.

    The scales are torchao's default, one for each tensor at each use. Layers whose sizes are no multiples of 16, which
    the hardware's float8 products need, stay as they are.
    """
    from torchao.float8 import convert_to_float8_training

    def fits(module: nn.Module, _name: str) -> bool:
        return isinstance(module, nn.Linear) and module.in_features % 16 == module.out_features % 16 == 0

    convert_to_float8_training(model, module_filter_fn=fits)


CONVERSIONS: dict[str, Callable[[nn.Module], None]] = {"float8": use_float8}
"""What each ``Precision.conversion`` does to a model, in place."""
