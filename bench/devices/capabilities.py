"""The arithmetic of a device: torch's TF32 switches, the error of an fp32 product, and why a precision is unsupported.

torch has two interfaces to the TF32 switches, which raise where they disagree. ``set_tf32`` sets both.
"""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache
from typing import Any

import torch
from torch import nn

from bench.spec.precisions import Precision

_backends: Any = torch.backends
"""Untyped, because its attributes depend on torch's version."""


def set_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 in this process: in matrix products, convolutions and recurrent layers, on GPU and CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older interface is deprecated
        _backends.cuda.matmul.allow_tf32 = allowed
        _backends.cudnn.allow_tf32 = allowed
    if not hasattr(_backends, "fp32_precision"):
        return
    # The newer interface comes last. Its parts may override the general switch; cuDNN's default is TF32.
    precision = "tf32" if allowed else "ieee"
    _backends.fp32_precision = precision
    for part in (_backends.cuda, _backends.mkldnn):
        part.matmul.fp32_precision = precision
    for part in (_backends.cudnn, _backends.mkldnn):
        part.conv.fp32_precision = precision
        part.rnn.fp32_precision = precision


def fp32_switches(matmul: str, conv: str) -> tuple[str, str]:
    """Return ``tf32`` or ``ieee`` for matrix products and for convolutions.

    Args:
        matmul: the part of ``torch.backends`` that a device's matrix products go by.
        conv: the part that its convolutions go by.
    """
    if not hasattr(_backends, "fp32_precision"):
        allowed = (_backends.cuda.matmul.allow_tf32, _backends.cudnn.allow_tf32)
        return "tf32" if allowed[0] else "ieee", "tf32" if allowed[1] else "ieee"
    return getattr(_backends, matmul).matmul.fp32_precision, getattr(_backends, conv).conv.fp32_precision


def matmul_error(device: torch.device, size: int = 512) -> float:
    """Return the relative error, in the Frobenius norm, of an fp32 matrix product against float64.

    IEEE fp32 gives about 1e-7 to 1e-6, TF32 (10 bits of mantissa) about 3e-4.
    """
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())


def missing_package(precision: Precision) -> str | None:
    """Return which package a precision needs and is not installed; None if there is none."""
    if not precision.package or importlib.util.find_spec(precision.package) is not None:
        return None
    # Transformer Engine is compiled against the torch that is installed.
    how = "--no-build-isolation " if precision.package == "transformer_engine" else ""
    install = f"pip install {how}'ampmeter[{precision.extra}]'"
    return f"{precision.name} needs {precision.package}, which is not installed: {install}"


@cache
def failure_on_cpu(name: str) -> str | None:
    """Return why layers of a type cannot be trained here: not every torch has every 16-bit operator for the CPU."""
    dtype = getattr(torch, name)
    with torch.random.fork_rng(devices=[]):  # building layers draws random numbers
        layers = (nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
        try:
            nn.Sequential(*layers).to(dtype)(torch.ones(2, 1, 4, 4, dtype=dtype)).float().sum().backward()
        except RuntimeError as error:
            return f"this torch does not train {name} layers on this CPU: {str(error).strip().splitlines()[0]}"
    return None


def no_tf32_on_cpu() -> str | None:
    """Return why the CPU has no TF32: oneDNN accepts the switch everywhere, and uses it on few CPUs."""
    if not hasattr(_backends, "fp32_precision"):
        return "this torch has no TF32 switch for the CPU"
    matmul = _backends.mkldnn.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    error = matmul_error(torch.device("cpu"))
    matmul.fp32_precision = before
    return None if error > 1e-5 else "this CPU multiplies fp32 matrices in IEEE fp32 also with TF32 allowed"
