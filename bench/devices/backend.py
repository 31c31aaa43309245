"""One device of a kind: its interface, the CPU, and GPUs that torch calls ``cuda`` (NVIDIA's, and AMD's with ROCm).

Only ``bench.devices`` calls ``torch.cuda`` or asks what kind a device is. To support another kind, implement
``Backend`` and name it in ``backend_of``.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import psutil
import torch
from torch import Tensor

from bench.devices.capabilities import failure_on_cpu, fp32_switches, missing_package, no_tf32_on_cpu
from bench.devices.monitor import monitor_problem
from bench.devices.nvidia import Nvidia
from bench.devices.rocm import Rocm
from bench.spec.errors import first_line
from bench.spec.precisions import Feature, Precision

Value = TypeVar("Value")
MIB = 2**20
OUT_OF_MEMORY = ("defaultcpuallocator", "out of memory", "alloc_failed", "allocation_failed")
"""Parts of the messages, in lower case, of torch's allocators, CUDA's runtime and driver, Triton, cuBLAS and cuDNN."""
NO_WORKSPACE = ("unable to find an engine", "cublas_status_not_initialized", "cudnn_status_not_initialized")
"""Raised by cuBLAS and cuDNN (hipBLAS and MIOpen) for lack of a workspace, but also for other reasons."""
NEARLY_FULL = 0.05
"""Share of a GPU's memory; with less free, libraries may lack their workspaces."""
NO_QUEUE = "this kind of device has no queue: its operations are done when they return"
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""A container's limit and use, in version 2 and version 1 of control groups."""
CPU_LACKS: dict[Feature, str] = {
    "tf32": "",
    "cudnn-tf32": "cuDNN's TF32 (without it, it is the same as fp32), which is on GPUs",
    "fp16": "",
    "bf16": "",
    "fp8": "float8 tensor cores, which are on GPUs",
    "mxfp8": "MXFP8 tensor cores, which are on GPUs",
}
"""The hardware that CPUs lack for each feature; empty where torch is asked whether this one has it."""


class Event(Protocol):
    """A point in the device's queue."""

    def query(self) -> bool:
        """Return whether the device has reached it."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return the milliseconds until a later one; both were recorded with ``timing`` and have been reached."""


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

    @cached_property
    def cold_bytes(self) -> int:
        """Size of a buffer that the caches do not hold."""
        return 64 * MIB

    def evict(self) -> None:
        """Queue the overwriting of such a buffer, after which the caches hold nothing else."""
        raise NotImplementedError(NO_QUEUE)

    @cached_property
    def side_stream(self) -> CudaStream:
        """The device's side stream, the same each time: torch keeps freed memory by stream."""
        raise NotImplementedError(NO_QUEUE)

    def graph(self) -> CudaGraph:
        """Return a graph with nothing captured yet."""
        raise NotImplementedError(NO_QUEUE)

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


class Cpu(Backend):
    """The CPU."""

    is_gpu = False
    collectives = "gloo"

    def set_current(self) -> None:
        """Do nothing: there is one."""

    def synchronize(self) -> None:
        """Do nothing: all work is done."""

    def record_event(self, *, timing: bool = False) -> Event:
        return CpuEvent()

    def free_bytes(self) -> int:
        return available_bytes()

    def release_cached_memory(self) -> None:
        gc.collect()
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (OSError, AttributeError):
            return  # not glibc

    def reset_peak_memory(self) -> bool:
        # Source: proc(5), /proc/[pid]/clear_refs, value 5.
        self.release_cached_memory()
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def peak_memory(self) -> PeakMemory:
        status = Path("/proc/self/status")
        peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text() if status.exists() else "")
        return PeakMemory(resident=int(peak[1]) * 1024 if peak else None)

    def allocations(self) -> int:
        return 0

    def rng_state(self) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor) -> None:
        torch.set_rng_state(state)

    def fp32_switches(self) -> tuple[str, str, str]:
        return fp32_switches("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")

    def native_bf16(self) -> bool | None:
        return torch.bfloat16 in self.matrix_types() if hasattr(torch.cpu, "get_capabilities") else None

    def matrix_types(self) -> frozenset[torch.dtype]:
        has: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        types = {torch.bfloat16: ("amx_bf16", "avx512_bf16", "avx10_2", "bf16"), torch.float16: ("amx_fp16", "fp16")}
        return frozenset(dtype for dtype, flags in types.items() if any(has.get(flag) for flag in flags))

    def missing_arithmetic(self, precision: Precision) -> str | None:
        return CPU_LACKS[precision.required] or None if precision.required else None

    def unsupported_reason(self, precision: Precision) -> str | None:
        if missing := self.missing_arithmetic(precision):
            return f"{precision.name} needs {missing}"
        if reason := missing_package(precision):
            return reason
        return no_tf32_on_cpu() if precision.fp32 == "tf32" else failure_on_cpu(precision.compute)


class CpuEvent:
    """A moment: on a CPU, work is done when it has been queued."""

    def __init__(self) -> None:
        self.time_ns = time.perf_counter_ns()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: CpuEvent, /) -> float:
        return (end.time_ns - self.time_ns) / 1e6


class Cuda(Backend):
    """One GPU."""

    collectives = "cpu:gloo,cuda:nccl"

    def set_current(self) -> None:
        torch.cuda.set_device(self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def record_event(self, *, timing: bool = False) -> Event:
        event = torch.cuda.Event(enable_timing=timing)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @cached_property
    def cold_bytes(self) -> int:
        # An MI300X has a cache of 256 MB behind the 4 MB that torch reports.
        reported: int = torch.cuda.get_device_properties(self.device).L2_cache_size
        return max(4 * reported, (1024 if torch.version.hip else 256) * MIB)

    @cached_property
    def _buffer(self) -> Tensor:
        return torch.empty(self.cold_bytes, dtype=torch.uint8, device=self.device)

    def evict(self) -> None:
        self._buffer.zero_()

    @cached_property
    def side_stream(self) -> CudaStream:
        return CudaStream(self.device)

    def graph(self) -> CudaGraph:
        return CudaGraph(self.device)

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def release_cached_memory(self) -> None:
        torch.cuda.empty_cache()

    def reset_peak_memory(self) -> bool:
        torch.cuda.synchronize(self.device)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        return True

    def peak_memory(self) -> PeakMemory:
        torch.cuda.synchronize(self.device)
        statistics = torch.cuda.memory_stats(self.device)
        return PeakMemory(
            allocated=statistics["allocated_bytes.all.peak"],
            reserved=statistics["reserved_bytes.all.peak"],
            active=statistics["active_bytes.all.peak"],
            retries=statistics["num_alloc_retries"],
        )

    def allocations(self) -> int:
        return int(torch.cuda.memory_stats(self.device).get("num_device_alloc", 0))

    def rng_state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device)

    def set_rng_state(self, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, self.device)

    def fp32_switches(self) -> tuple[str, str, str]:
        return fp32_switches("cuda.matmul", "cudnn.conv", "cudnn.rnn")

    def native_bf16(self) -> bool | None:
        if torch.version.hip:  # torch says yes of every AMD GPU
            return None
        try:
            with torch.cuda.device(self.device):
                return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        except RuntimeError as error:
            print(f"Whether {self.device} multiplies bfloat16 itself is unknown: {first_line(error)}")
            return None

    def _model(self) -> str:
        return vendor().model(torch.cuda.get_device_properties(self.device.index or 0))

    def missing_arithmetic(self, precision: Precision) -> str | None:
        return vendor().lacks(precision.required, self._model())

    def unsupported_reason(self, precision: Precision) -> str | None:
        missing = self.missing_arithmetic(precision)
        return f"{precision.name} needs {missing}" if missing else missing_package(precision)


class CudaStream:
    """A queue of a GPU next to its current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def wait(self) -> None:
        """Let what is queued here from now on wait for what is on the current stream."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def use(self) -> AbstractContextManager[object]:
        """Return a context in which operations are queued here."""
        return torch.cuda.stream(self.stream)

    def join(self, tensors: Iterable[Tensor] = ()) -> None:
        """Let the current stream wait for what is queued here, and use ``tensors`` that were allocated here."""
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in tensors:
            # Their memory may be reused on the side stream only after the current stream has used them.
            tensor.record_stream(current)


class CudaGraph:
    """Work that is captured once, on a side stream, and then replayed with one launch."""

    def __init__(self, device: torch.device) -> None:
        self._side = CudaStream(device)
        self.graph = torch.cuda.CUDAGraph()

    def warm_up(self, work: Callable[[], Value]) -> Value:
        """Run work on the stream of the capture, so that what libraries allocate for a stream exists by then."""
        self._side.wait()
        with self._side.use():
            result = work()
        self._side.join()
        return result

    def capture(self, work: Callable[[], Value]) -> Value:
        """Capture work without running it; other threads, such as a loader's that pins batches, may call CUDA.

        Raises:
            RuntimeError: it does what cannot be captured.
        """
        current, pool = torch.cuda.current_stream(self._side.device), torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(self.graph, pool, self._side.stream, capture_error_mode="thread_local"):
                return work()
        except RuntimeError:
            # If ending a broken capture raises, torch leaves the side stream current; before 2.13 it also leaves the
            # allocator recording, and emptying the cache fails from then on (pytorch#180395).
            torch.cuda.set_stream(current)
            names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")  # the second one up to 2.6
            end = next(getattr(torch._C, name) for name in names if hasattr(torch._C, name))
            with suppress(RuntimeError):  # it has ended
                end(current.device_index, pool)
            raise

    def replay(self) -> None:
        """Run the captured work on the same memory."""
        self.graph.replay()


def vendor() -> Nvidia:
    """Return the vendor that torch is built for: what its device properties mean."""
    return Rocm() if torch.version.hip else Nvidia()


@cache
def backend_of(device: torch.device) -> Backend:
    """Return the backend of a device."""
    return Cuda(device) if device.type == "cuda" else Cpu(device)


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


def available_bytes(cgroups: tuple[tuple[str, str], ...] = CGROUPS) -> int:
    """Return what can be taken without swapping: of the machine, or of the container if that is less.

    A container's use counts its file cache too, which could be dropped, so this is rather too little than too much.
    """
    free = int(psutil.virtual_memory().available)
    for limit, used in cgroups:
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
        except (OSError, ValueError):  # there is none, or "max", which is no limit
            continue
        free = min(free, max(left, 0))
    return free


def kernels_problem(index: int) -> str:
    """Return why this torch build cannot run on a GPU; empty where it can."""
    properties, built = torch.cuda.get_device_properties(index), torch.cuda.get_arch_list()
    model = vendor().model(properties)
    if vendor().has_kernels(model, built):
        return ""
    return (
        f"This torch build ({torch.__version__}) has no kernels for GPU {index} ({properties.name}, {model}); "
        f"it has {' '.join(built)}. {vendor().hint}"
    )


def runtime_problem() -> str:
    """Return why torch sees no GPU."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    if problem := monitor_problem():
        return f"no {vendor().library} driver answers ({problem})"
    hiding = (f"{name} is '{os.environ[name]}'" for name in vendor().visible if name in os.environ)
    return next(hiding, f"{vendor().runtime} sees no GPU")
