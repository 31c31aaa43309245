"""A precision's switches: set, and read back.

``fp32`` is really FP32 here: TF32 is off in matrix products, convolutions and recurrent layers unless
the precision asks for it, on the GPU and in oneDNN on the CPU.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bench.results.records import DeviceKind, Switches
from bench.spec.precisions import Precision

TF32_CAPABILITY = (8, 0)
BF16_CAPABILITY = (8, 0)
FP16_CAPABILITY = (5, 3)
FP8_CAPABILITY = (8, 9)
"""The first compute capabilities that do each in hardware (CUDA C++ Programming Guide, "Arithmetic Instructions")."""


_backends: Any = torch.backends
"""Not typed as torch types it, because what it has depends on torch's version."""


def apply(precision: Precision) -> None:
    """Set torch's process-wide fp32 switches for ``precision``.

    torch has two interfaces to them, which raise where they disagree. Both are set, the newer last where there is one,
    so that whoever looks through either (torch's own compiler, a suite) finds the same.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the older interface is the older one
        _backends.cuda.matmul.allow_tf32 = precision.tf32
        _backends.cudnn.allow_tf32 = precision.tf32
    if hasattr(_backends, "fp32_precision"):
        setting = "tf32" if precision.tf32 else "ieee"
        _backends.fp32_precision = setting
        # Each of these may hold a setting of its own, which wins over the general one; cuDNN's is TF32 by default.
        for part in (_backends.cuda, _backends.mkldnn):
            part.matmul.fp32_precision = setting
        for part in (_backends.cudnn, _backends.mkldnn):
            part.conv.fp32_precision = setting
            part.rnn.fp32_precision = setting


def read_back(precision: Precision, device: torch.device) -> Switches:
    """Return what the switches are now, and the error of an fp32 matrix product under them."""
    if not hasattr(_backends, "fp32_precision"):
        matmul = "tf32" if _backends.cuda.matmul.allow_tf32 else "ieee"
        conv = "tf32" if _backends.cudnn.allow_tf32 else "ieee"
    elif device.type == "cuda":
        matmul, conv = _backends.cuda.matmul.fp32_precision, _backends.cudnn.conv.fp32_precision
    else:
        matmul, conv = _backends.mkldnn.matmul.fp32_precision, _backends.mkldnn.conv.fp32_precision
    return Switches(
        fp32_matmul=matmul,
        fp32_conv=conv,
        autocast=precision.autocast,
        loss_scaling=precision.loss_scaling,
        matmul_error=matmul_error(device),
    )


def matmul_error(device: torch.device, size: int = 512) -> float:
    """Return the relative error, in the Frobenius norm, of an fp32 matrix product against float64.

    IEEE fp32 gives about 1e-7 to 1e-6, TF32 (10 bits of mantissa) about 3e-4.
    """
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return the region in which the forward pass and the loss run; a no-op for fp32 and tf32."""
    if precision.autocast is None:
        return nullcontext()  # entering a disabled autocast costs 5 µs a step
    return torch.autocast(device.type, dtype=getattr(torch, precision.autocast), cache_enabled=precision.cache)


class StaticScaler(torch.amp.GradScaler):
    """A GradScaler whose scale stays what it is; a step with a gradient that is not finite is skipped all the same."""

    def __init__(self, device: str, scale: float) -> None:
        super().__init__(device, init_scale=scale)
        self._static = scale

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Forget what was found in the gradients, and leave the scale alone or set it to ``new_scale``."""
        super().update(self._static if new_scale is None else new_scale)


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Return the precision's GradScaler; where it does not scale, one that does nothing."""
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
    """Let torchao turn the model's linear layers, in place, into ones that multiply in float8, forward and backward.

    The scales are those of each tensor at each use, torchao's default. Left as they are: layers whose sizes are no
    multiple of 16, which the hardware's float8 products take no others than.
    """
    from torchao.float8 import convert_to_float8_training

    def fits(module: nn.Module, _name: str) -> bool:
        return isinstance(module, nn.Linear) and module.in_features % 16 == module.out_features % 16 == 0

    convert_to_float8_training(model, module_filter_fn=fits)


CONVERSIONS: dict[str, Callable[[nn.Module], None]] = {"float8": use_float8}
"""What each ``Precision.conversion`` does to a model, in place."""


def unsupported_reason(precision: Precision, kind: DeviceKind, capability: tuple[int, int] | None) -> str | None:
    """Say why a device cannot do ``precision``, or None where it can.

    Args:
        precision: the precision asked for.
        kind: the kind of device.
        capability: a GPU's compute capability; None on a CPU.
    """
    if kind == "cpu":
        if precision.needs == "fp8":
            return f"{precision.name} needs float8 tensor cores, which are on GPUs"
        return _no_tf32_on_cpu() if precision.tf32 else _failure_on_cpu(precision.compute)
    need, what = (0, 0), ""
    if precision.needs == "tf32":
        need, what = TF32_CAPABILITY, "TF32 tensor cores"
    elif precision.needs == "fp8":
        need, what = FP8_CAPABILITY, "float8 tensor cores"
    elif precision.needs == "bf16":
        need, what = BF16_CAPABILITY, "bfloat16 arithmetic"
    elif precision.needs == "fp16":
        need, what = FP16_CAPABILITY, "float16 arithmetic"
    if capability is not None and capability < need:
        have = f"sm_{capability[0]}{capability[1]}"
        return f"{precision.name} needs {what}, from sm_{need[0]}{need[1]} on; this GPU is {have}"
    if precision.package and importlib.util.find_spec(precision.package) is None:
        install = f"pip install 'ampmeter[{precision.extra}]'"
        return f"{precision.name} needs {precision.package}, which is not installed: {install}"
    return None


@cache
def _failure_on_cpu(name: str) -> str | None:
    """Say why layers of a type cannot be trained here: not every torch has every operator for 16 bits on a CPU."""
    dtype = getattr(torch, name)
    with torch.random.fork_rng(devices=[]):  # building layers draws random numbers
        layers = (nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
        try:
            nn.Sequential(*layers).to(dtype)(torch.ones(2, 1, 4, 4, dtype=dtype)).float().sum().backward()
        except RuntimeError as error:
            return f"this torch does not train {name} layers on this CPU: {str(error).strip().splitlines()[0]}"
    return None


def _no_tf32_on_cpu() -> str | None:
    """Say why the CPU has no TF32: oneDNN takes the switch everywhere, and uses it on few CPUs."""
    if not hasattr(_backends, "fp32_precision"):
        return "this torch has no TF32 switch for the CPU"
    matmul = _backends.mkldnn.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    error = matmul_error(torch.device("cpu"))
    matmul.fp32_precision = before
    return None if error > 1e-5 else "this CPU multiplies fp32 matrices in IEEE fp32 also with TF32 allowed"
