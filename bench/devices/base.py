"""The interface of a kind of device, with what torch's modules for accelerators have alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from bench.devices.capabilities import fp32_switches, missing_package
from bench.spec.precisions import Precision

MIB = 2**20


class Event(Protocol):
    """A point in the device's queue."""

    def query(self) -> bool:
        """Return whether the device has reached it."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return the milliseconds until a later one; both are reached, and recorded to be timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """The peaks since ``reset_peak_memory``, in bytes; None where a kind of device has none."""

    allocated: int | None = None
    reserved: int | None = None
    resident: int | None = None
    """Of the process, in host memory."""


class Backend(ABC):
    """One device of a kind; ``backend_of`` returns it.

    A kind is a class derived from this one, in a file of its own. It overrides what torch's module
    for it lacks, or does otherwise.
    """

    is_gpu: ClassVar[bool] = True
    """Whether operations return before the device is done, copies may overlap them, and memory is
    the device's own."""
    collectives: ClassVar[str]
    """The backend of ``torch.distributed``."""
    switches: ClassVar[tuple[str, str, str]]
    """Of ``capabilities.PARTS``, those of matrix products, convolutions and recurrent layers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @cached_property
    def module(self) -> Any:
        """The module of torch for the kind, such as ``torch.cuda``."""
        return torch.get_device_module(self.device.type)

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the fields of ``Device`` that torch knows without running anything on it."""

    @abstractmethod
    def missing_arithmetic(self, precision: Precision) -> str | None:
        """Return what a precision needs of the hardware that this device lacks; None if nothing."""

    def unsupported_reason(self, precision: Precision) -> str | None:
        """Return why the device cannot run a precision; None if it can."""
        missing = self.missing_arithmetic(precision)
        return f"{precision.name} needs {missing}" if missing else missing_package(precision)

    def kernels_problem(self) -> str:
        """Return why this torch build cannot run on the device; empty where it can."""
        return ""

    def matrix_types(self) -> frozenset[torch.dtype]:
        """Return the types that a CPU has instructions to multiply.

        Of a GPU the set is empty: the names of its kernels say which they multiply.
        """
        return frozenset()

    def fp32_switches(self) -> tuple[str, str, str]:
        """Return the fp32 switches in force, as ``capabilities.fp32_switches`` does."""
        return fp32_switches(*self.switches)

    def set_current(self) -> None:
        """Make the device the current one of this thread."""
        self.module.set_device(self.device)

    def synchronize(self) -> None:
        """Wait until the device has done all queued work."""
        self.module.synchronize(self.device)

    def record_event(self, *, timing: bool = False) -> Event:
        """Return an event behind all work that is queued on the current stream."""
        event: Event = self.module.Event(enable_timing=timing)
        self.module.current_stream(self.device).record_event(event)
        return event

    @cached_property
    def side_stream(self) -> SideStream:
        """The device's side stream, the same each time: torch keeps freed memory by stream."""
        return SideStream(self.device)

    def free_bytes(self) -> int:
        """Return the memory that the device has free, other processes' use deducted."""
        return int(self.module.mem_get_info(self.device)[0])

    def release_cached_memory(self) -> None:
        """Return memory that was freed, but kept for later allocations, to the system."""
        self.module.empty_cache()

    @abstractmethod
    def reset_peak_memory(self) -> bool:
        """Wait, release cached memory and begin new peaks; return False where it cannot."""

    @abstractmethod
    def peak_memory(self) -> PeakMemory:
        """Wait and return the peaks."""

    def allocations(self) -> int:
        """Return how often memory was taken from the device so far; constant in a steady state."""
        return int(self.module.memory_stats(self.device).get("num_device_alloc", 0))

    def rng_state(self) -> Tensor:
        """Return the state of the device's random generator, as bytes."""
        state: Tensor = self.module.get_rng_state(self.device)
        return state

    def set_rng_state(self, state: Tensor) -> None:
        """Restore a state that ``rng_state`` returned."""
        self.module.set_rng_state(state, self.device)

    def fork_rng(self) -> AbstractContextManager[None]:
        """Return a context after which torch's generators of host and device are as before."""
        return torch.random.fork_rng(devices=[self.device] if self.is_gpu else [])


class SideStream:
    """A queue of a device next to its current stream."""

    def __init__(self, device: torch.device) -> None:
        self._module: Any = torch.get_device_module(device.type)
        self.device = device
        self.stream = self._module.Stream(device)

    def wait(self) -> None:
        """Let what is queued here from now on wait for what is on the current stream."""
        self.stream.wait_stream(self._module.current_stream(self.device))

    def use(self) -> AbstractContextManager[object]:
        """Return a context in which operations are queued here."""
        context: AbstractContextManager[object] = self._module.stream(self.stream)
        return context

    def join(self, tensors: Iterable[Tensor] = ()) -> None:
        """Let the current stream wait for what is queued here, and use ``tensors`` from here."""
        current = self._module.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in tensors:
            # Their memory may be reused on the side stream only after the current stream has used
            # them.
            tensor.record_stream(current)
