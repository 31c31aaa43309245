"""GPUs that torch calls ``cuda``: NVIDIA's, and AMD's in a torch built with ROCm."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from bench.devices.amd import Amd
from bench.devices.backend import Backend, Event, PeakMemory
from bench.devices.capabilities import fp32_switches, missing_package
from bench.devices.monitor import monitor_problem
from bench.devices.nvidia import Nvidia
from bench.spec.errors import first_line
from bench.spec.precisions import Precision

Value = TypeVar("Value")


def vendor() -> Nvidia | Amd:
    """Return the vendor that torch is built for: what its device properties mean."""
    return Amd() if torch.version.hip else Nvidia()


class Cuda(Backend):
    """One GPU."""

    collectives = "cpu:gloo,cuda:nccl"
    has_graphs = True

    def set_current(self) -> None:
        torch.cuda.set_device(self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def record_event(self, *, timing: bool = False) -> Event:
        event = torch.cuda.Event(enable_timing=timing)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def spin(self, cycles: int) -> None:
        torch.cuda._sleep(cycles)

    @cached_property
    def _side(self) -> CudaStream:
        return CudaStream(self.device)

    def side_stream(self) -> CudaStream:
        return self._side

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
            return vendor().lacks("bf16", self._model()) is None
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
        missing = self.missing_arithmetic(precision) or vendor().missing_switch(precision.required)
        return f"{precision.name} needs {missing}" if missing else missing_package(precision)


class CudaStream:
    """A stream beside the current one."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def wait(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def use(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def join(self, tensors: Iterable[Tensor] = ()) -> None:
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in tensors:
            # Their memory may be reused on the side stream only after the current stream has used them.
            tensor.record_stream(current)


class CudaGraph:
    """A CUDA graph and the side stream that it is captured on."""

    def __init__(self, device: torch.device) -> None:
        self._side = CudaStream(device)
        self.graph = torch.cuda.CUDAGraph()

    def warm_up(self, work: Callable[[], Value]) -> Value:
        self._side.wait()
        with self._side.use():
            result = work()
        self._side.join()
        return result

    def capture(self, work: Callable[[], Value]) -> Value:
        """Capture work; other threads, such as a loader's that pins batches, may call CUDA meanwhile."""
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
        self.graph.replay()


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
    return hidden_by() or f"{vendor().runtime} sees no GPU"


def hidden_by() -> str:
    """Return the environment variable that hides GPUs and its value; empty if none is set."""
    return next((f"{name} is '{os.environ[name]}'" for name in vendor().visible if name in os.environ), "")
