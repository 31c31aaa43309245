"""The interface of a kind of device. Only ``bench.devices`` calls ``torch.cuda`` or asks what kind a device is.

To support another kind, implement ``Backend`` in a module of this package and name it in ``backend_of``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from bench.spec.precisions import Precision

Value = TypeVar("Value")
OUT_OF_MEMORY = ("defaultcpuallocator", "out of memory", "alloc_failed", "allocation_failed")
"""Parts of the messages, in lower case, of torch's allocators, CUDA's runtime and driver, Triton, cuBLAS and cuDNN."""
NO_WORKSPACE = ("unable to find an engine", "cublas_status_not_initialized", "cudnn_status_not_initialized")
"""Raised by cuBLAS and cuDNN (hipBLAS and MIOpen) for lack of a workspace, but also for other reasons."""
NEARLY_FULL = 0.05
"""Share of a GPU's memory; with less free, libraries may lack their workspaces."""


class Event(Protocol):
    """A point in the device's queue."""

    def query(self) -> bool:
        """Return whether the device has reached it."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return the milliseconds until a later one; both were recorded with ``timing`` and have been reached."""


class SideStream(Protocol):
    """A queue beside the current one of the same device."""

    def wait(self) -> None:
        """Let what is queued here from now on wait for what is on the current stream."""

    def use(self) -> AbstractContextManager[object]:
        """Return a context in which operations are queued here."""

    def join(self, tensors: Iterable[Tensor] = ()) -> None:
        """Let the current stream wait for what is queued here, and use ``tensors`` that were allocated here."""


class Graph(Protocol):
    """Work that is captured once and then replayed with one launch."""

    def warm_up(self, work: Callable[[], Value]) -> Value:
        """Run work on the stream of the capture, so that what libraries allocate for a stream exists by then."""

    def capture(self, work: Callable[[], Value]) -> Value:
        """Capture work without running it; raise RuntimeError if it does what cannot be captured."""

    def replay(self) -> None:
        """Run the captured work on the same memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """The peaks since ``reset_peak_memory``, in bytes; None where a kind of device has no such figure."""

    allocated: int | None = None
    reserved: int | None = None
    active: int | None = None
    resident: int | None = None
    """Of the process, in host memory."""
    retries: int | None = None
    """How often the allocator freed its cache to find memory, since the process began."""


class Backend(ABC):
    """One device of a kind; ``backend_of`` returns it."""

    is_gpu: ClassVar[bool] = True
    """Whether operations return before the device is done, copies may overlap them, and memory is the device's own."""
    collectives: ClassVar[str]
    """The backend of ``torch.distributed``."""
    has_graphs: ClassVar[bool] = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def set_current(self) -> None:
        """Make the device the current one of this thread."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all queued work."""

    @abstractmethod
    def record_event(self, *, timing: bool = False) -> Event:
        """Return an event behind all work that is queued on the current stream."""

    @abstractmethod
    def spin(self, cycles: int) -> None:
        """Queue a wait of that many cycles of the GPU's clock."""

    @abstractmethod
    def side_stream(self) -> SideStream:
        """Return the device's side stream, the same each time: torch keeps freed memory by stream."""

    @abstractmethod
    def graph(self) -> Graph:
        """Return a graph with nothing captured yet."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the memory that the device has free, other processes' use deducted."""

    @abstractmethod
    def release_cached_memory(self) -> None:
        """Return memory that was freed, but kept for later allocations, to the system."""

    @abstractmethod
    def reset_peak_memory(self) -> bool:
        """Wait, release cached memory and begin new peaks; return False where the system cannot reset them."""

    @abstractmethod
    def peak_memory(self) -> PeakMemory:
        """Wait and return the peaks."""

    @abstractmethod
    def allocations(self) -> int:
        """Return how often memory was taken from the device so far; constant in a steady state."""

    @abstractmethod
    def rng_state(self) -> Tensor:
        """Return the state of the device's random generator, as bytes."""

    @abstractmethod
    def set_rng_state(self, state: Tensor) -> None:
        """Restore a state that ``rng_state`` returned."""

    @abstractmethod
    def fp32_switches(self) -> tuple[str, str, str]:
        """Return ``tf32``, ``ieee`` or another for matrix products, convolutions and recurrent layers, as in force."""

    @abstractmethod
    def missing_arithmetic(self, precision: Precision) -> str | None:
        """Return what a precision needs of the hardware that this device lacks; None if it lacks nothing."""

    @abstractmethod
    def unsupported_reason(self, precision: Precision) -> str | None:
        """Return why the device cannot run a precision; None if it can."""

    @abstractmethod
    def native_bf16(self) -> bool | None:
        """Return whether the device multiplies bfloat16 in hardware; None where that is unknown.

        On a GPU this may make a context, which takes memory.
        """

    def matrix_types(self) -> frozenset[torch.dtype]:
        """Return the types that a CPU has instructions to multiply; none for GPUs, whose kernels' names say it."""
        return frozenset()

    def fork_rng(self) -> AbstractContextManager[None]:
        """Return a context after which torch's generators of host and device are as before."""
        return torch.random.fork_rng(devices=[self.device] if self.is_gpu else [])


@cache
def backend_of(device: torch.device) -> Backend:
    """Return the backend of a device."""
    if device.type == "cuda":
        from bench.devices.cuda import Cuda

        return Cuda(device)
    from bench.devices.cpu import Cpu

    return Cpu(device)


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
    return any(sign in text for sign in OUT_OF_MEMORY) or (
        any(sign in text for sign in NO_WORKSPACE) and _nearly_full()
    )


def out_of_memory_behind(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error that this error is or was raised while handling; None if there is none."""
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
