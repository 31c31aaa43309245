"""GPUs that torch calls ``cuda``: NVIDIA's, and AMD's in a torch built with ROCm."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from bench.devices.backend import Backend, Event, PeakMemory
from bench.devices.capabilities import fp32_switches

Value = TypeVar("Value")
NEARLY_FULL = 0.05
"""Share of a GPU's memory; with less free, libraries may lack their workspaces."""


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

    def fp32_switches(self) -> tuple[str, str]:
        return fp32_switches("cuda", "cudnn")


class CudaStream:
    """A stream beside the current one."""

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
    """A CUDA graph and the side stream that it is captured on."""

    def __init__(self, device: torch.device) -> None:
        self._side = CudaStream(device)
        self.graph = torch.cuda.CUDAGraph()

    def warm_up(self, work: Callable[[], Value]) -> Value:
        """Run work on the stream of the capture."""
        self._side.wait()
        with self._side.use():
            result = work()
        self._side.join()
        return result

    def capture(self, work: Callable[[], Value]) -> Value:
        """Capture work; other threads, such as a loader's that pins batches, may call CUDA meanwhile."""
        current = torch.cuda.current_stream(self._side.device)
        try:
            with torch.cuda.graph(self.graph, stream=self._side.stream, capture_error_mode="thread_local"):
                return work()
        except RuntimeError:
            torch.cuda.set_stream(current)  # torch leaves the side stream current if ending a broken capture raises
            raise

    def replay(self) -> None:
        """Run the captured work."""
        self.graph.replay()


def gpu_properties(index: int) -> Any:
    """Return the runtime's description of a GPU."""
    return torch.cuda.get_device_properties(index)


def nearly_full() -> bool:
    """Return whether the current GPU has little free memory; False where this process uses none."""
    if not torch.cuda.is_initialized():
        return False
    free, total = torch.cuda.mem_get_info()
    return free < NEARLY_FULL * total
