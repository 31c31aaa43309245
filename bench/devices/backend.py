"""The devices of this machine, by the kinds that there are.

Other packages do not ask what kind a device is, nor call ``torch.cuda``, except for what runs
inside a user's script, where no ``Backend`` is known: ``bench.script.hook`` and
``bench.phases.explain.observe``. To support another kind, derive a class from ``base.Backend`` and
name it in ``backend_of``.
"""

from __future__ import annotations

import os
from functools import cache

import torch

from bench.devices.base import Backend
from bench.devices.cpu import Cpu
from bench.devices.monitor import monitor_problem
from bench.devices.nvidia import Cuda
from bench.devices.rocm import Rocm

# Parts of the messages, in lower case, of torch's allocators, CUDA's runtime and driver, Triton,
# cuBLAS and cuDNN.
OUT_OF_MEMORY = ("defaultcpuallocator", "out of memory", "alloc_failed", "allocation_failed")
# Raised by cuBLAS and cuDNN (hipBLAS and MIOpen) for lack of a workspace, but also for other
# reasons.
NO_WORKSPACE = (
    "unable to find an engine",
    "cublas_status_not_initialized",
    "cudnn_status_not_initialized",
)
# Share of a GPU's memory; with less free, libraries may lack their workspaces.
NEARLY_FULL = 0.05
HIDES_GPUS = "CUDA_VISIBLE_DEVICES"


@cache
def backend_of(device: torch.device) -> Backend:
    """Return the backend of a device."""
    # On the meta device, tensors without values are counted by the host.
    if device.type in ("cpu", "meta"):
        return Cpu(device)
    return Rocm(device) if torch.version.hip else Cuda(device)


def device_at(index: int | None) -> torch.device:
    """Return the GPU with an index; for None, the CPU."""
    return torch.device("cpu") if index is None else torch.device("cuda", index)


def gpu_count() -> int:
    """Return the number of visible GPUs."""
    return torch.cuda.device_count()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device's or the host's memory did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    if any(sign in text for sign in OUT_OF_MEMORY):
        return True
    return any(sign in text for sign in NO_WORKSPACE) and _nearly_full()


def out_of_memory_behind(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error that this error is, or was raised while handling, if any."""
    cause: BaseException | None = error
    while cause is not None and not is_out_of_memory(cause):
        cause = cause.__context__
    return cause


def _nearly_full() -> bool:
    """Return whether the current GPU has little free memory; False where this process uses none."""
    if not torch.cuda.is_initialized():
        return False
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:  # after some errors every call to CUDA raises; they are not of memory
        return False
    return free < NEARLY_FULL * total


def runtime_problem() -> str:
    """Return why torch sees no GPU."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    problem = None if torch.version.hip else monitor_problem()
    if problem:
        return f"no NVIDIA driver answers ({problem})"
    if HIDES_GPUS in os.environ:
        return f"{HIDES_GPUS} is '{os.environ[HIDES_GPUS]}'"
    return "torch sees no GPU"
