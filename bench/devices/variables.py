"""Environment variables that change figures: those that are removed before a run, and those that run.json records."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from fnmatch import fnmatchcase

TF32_VARIABLES = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")
EMULATION_VARIABLES = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY")
"""Variables that change behind the program's back how fp32 is multiplied: in TF32, or as sums of bfloat16 products."""
RECORDED = (
    *("ATEN_CPU_CAPABILITY", "CUBLAS*", "CUDA_DEVICE_*", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("CUDA_VISIBLE_DEVICES", "CUDNN_*", "DNNL_*", "HIP_*", "HSA_*", "KMP_*", "MIOPEN_*", "MKL_*", "NCCL_*"),
    *("OMP_NUM_THREADS", "ONEDNN_*", "PYTORCH_*", "ROCR_*", "TORCHDYNAMO_*", "TORCHINDUCTOR_*", "TORCH_NCCL_*"),
)
"""Variables that may change figures, as patterns; folders do not, and would tell whose they are."""


def remove_overrides(environment: MutableMapping[str, str] = os.environ) -> tuple[str, ...]:
    """Unset what overrides how fp32 is multiplied, before torch reads it; return what there was, as NAME=VALUE."""
    names = (*TF32_VARIABLES, *EMULATION_VARIABLES)
    return tuple(f"{name}={environment.pop(name)}" for name in names if name in environment)


def recorded(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables that run.json records, as NAME=VALUE, by name."""
    known = [name for name in environment if any(fnmatchcase(name, pattern) for pattern in RECORDED)]
    return tuple(f"{name}={environment[name]}" for name in sorted(known) if not name.endswith(("_DIR", "_PATH")))
