"""Whether an error means that something did not fit into memory, whatever library says so."""

from __future__ import annotations

import torch

_SIGNS = (
    "DefaultCPUAllocator",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that something did not fit into the device's or the machine's memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def behind(error: BaseException) -> BaseException | None:
    """Return the error of memory that this one is, or was raised while handling; None where there is none."""
    seen: BaseException | None = error
    while seen is not None and not is_out_of_memory(seen):
        seen = seen.__context__
    return seen
