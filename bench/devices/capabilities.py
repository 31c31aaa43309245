"""The arithmetic of a device: torch's fp32 switches, the error of an fp32 product, packages.

torch has two interfaces to the switches, ``allow_tf32`` and, from 2.9 on, ``fp32_precision``, which
raise where they disagree. ``set_fp32`` sets both.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from operator import attrgetter
from typing import Any

import torch
from torch.torch_version import TorchVersion

from bench.spec.precisions import IEEE_ERROR, TORCH_OF_TORCHAO, TORCHAO, Fp32, Precision

# Untyped, because its attributes depend on torch's version.
_backends: Any = torch.backends
# The switches that torch itself has at TF32.
CUDNN = ("cudnn.conv", "cudnn.rnn")
# Where torch has a switch for one kind of operation on one kind of device; it wins over the general
# ones.
PARTS = ("cuda.matmul", *CUDNN, "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")


def set_fp32(products: Fp32) -> None:
    """Set all switches of fp32 products in this process, on GPU and CPU.

    Those are the switches of operations, and the general ones. The general ones alone would not do:
    they leave cuDNN's convolutions and recurrent layers as they were (pytorch#179445). They are set
    too because torch.compile asks them.

    Shapes are fixed, so cuDNN chooses its algorithms by trying them, except where torch's own state
    is asked for.
    """
    _backends.cudnn.benchmark = products != "default"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older interface is deprecated
        _backends.cuda.matmul.allow_tf32 = products == "tf32"
        _backends.cudnn.allow_tf32 = products != "ieee"
    if not hasattr(_backends, "fp32_precision"):
        return
    general = "none" if products == "default" else products
    # Assigning to mkldnn's fp32_precision would set the one for all devices.
    _backends.mkldnn.set_flags(_fp32_precision=general)
    _backends.fp32_precision = general
    _backends.cudnn.fp32_precision = general
    for name in PARTS:
        is_torchs_tf32 = products == "default" and name in CUDNN
        attrgetter(name)(_backends).fp32_precision = "tf32" if is_torchs_tf32 else general


def fp32_switches(matmul: str, conv: str, rnn: str) -> tuple[str, str, str]:
    """Return ``tf32``, ``ieee`` or another, as in force.

    They are of matrix products, convolutions and recurrent layers; the arguments name the one of
    ``PARTS`` that each of them goes by.
    """
    if not hasattr(_backends, "fp32_precision"):
        # The older interface has none for the CPU.
        products = "tf32" if _backends.cuda.matmul.allow_tf32 else "ieee"
        others = "tf32" if _backends.cudnn.allow_tf32 else "ieee"
        return products, others, others

    def read(name: str) -> str:
        switch: str = attrgetter(name)(_backends).fp32_precision
        return switch.replace("none", "ieee")  # nothing has set it: IEEE fp32

    return read(matmul), read(conv), read(rnn)


def matmul_error(device: torch.device, size: int = 512) -> float:
    """Return the relative error, in the Frobenius norm, of an fp32 matrix product against float64.

    ``IEEE_ERROR`` tells which arithmetic it was.
    """
    generator = torch.Generator(device).manual_seed(0)
    a, b = torch.randn(2, size, size, device=device, generator=generator)
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())


def missing_package(precision: Precision) -> str | None:
    """Return which package a precision needs that is missing or too old; None if there is none."""
    if not precision.conversion:
        return None
    try:
        installed = importlib.metadata.version("torchao")
    except importlib.metadata.PackageNotFoundError:
        return (
            f"{precision.name} needs torchao, which is not installed: pip install 'ampmeter[fp8]'"
        )
    needed = (("torch", torch.__version__, TORCH_OF_TORCHAO), ("torchao", installed, TORCHAO))
    for package, version, least in needed:
        if TorchVersion(version) < least:
            return f"{precision.name} needs {package} {least} or later; this one is {version}"
    return None


def no_tf32_on_cpu() -> str | None:
    """Return why the CPU has no TF32: oneDNN takes the switch anywhere, and uses it on few CPUs."""
    if not hasattr(_backends, "fp32_precision"):
        return "this torch has no TF32 switch for the CPU"
    matmul = _backends.mkldnn.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    error = matmul_error(torch.device("cpu"))
    matmul.fp32_precision = before
    if error > IEEE_ERROR:
        return None
    return "this CPU multiplies fp32 matrices in IEEE fp32 also with TF32 allowed"
