"""Whether an error means that something did not fit into memory, whatever library says so."""

from __future__ import annotations

import torch

_SIGNS = ("defaultcpuallocator", "out of memory", "alloc_failed", "allocation_failed")
"""In lower case: torch's allocators, CUDA's runtime and driver, Triton, cuBLAS and cuDNN."""
_DOUBTFUL = ("unable to find an engine", "cublas_status_not_initialized", "cudnn_status_not_initialized")
"""What cuBLAS and cuDNN say where they cannot have their workspaces, but also where they are broken."""
LITTLE_FREE = 0.05
"""Share of a GPU's memory; with less than this free, it is memory that they lack."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that something did not fit into the device's or the machine's memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS) or (any(sign in text for sign in _DOUBTFUL) and _little_is_free())


def _little_is_free() -> bool:
    if not torch.cuda.is_initialized():
        return False
    free, total = torch.cuda.mem_get_info()
    return free < LITTLE_FREE * total


def behind(error: BaseException) -> BaseException | None:
    """Return the error of memory that this one is, or was raised while handling; None where there is none."""
    seen: BaseException | None = error
    while seen is not None and not is_out_of_memory(seen):
        seen = seen.__context__
    return seen
