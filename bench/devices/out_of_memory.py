"""Whether an error means that memory did not suffice, whichever library raises it."""

from __future__ import annotations

import torch

from bench.devices.cuda import nearly_full

_SIGNS = ("defaultcpuallocator", "out of memory", "alloc_failed", "allocation_failed")
"""Parts of the messages, in lower case, of torch's allocators, CUDA's runtime and driver, Triton, cuBLAS and cuDNN."""
_DOUBTFUL = ("unable to find an engine", "cublas_status_not_initialized", "cudnn_status_not_initialized")
"""Raised by cuBLAS and cuDNN (hipBLAS and MIOpen) for lack of a workspace, but also for other reasons."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device's or the host's memory did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS) or (any(sign in text for sign in _DOUBTFUL) and nearly_full())


def behind(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error that this error is or was raised while handling; None if there is none."""
    cause: BaseException | None = error
    while cause is not None and not is_out_of_memory(cause):
        cause = cause.__context__
    return cause
