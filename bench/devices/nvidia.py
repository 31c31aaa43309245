"""NVIDIA's GPUs by ``torch.cuda``: what their generations can do, their memory, and CUDA graphs."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch

from bench.devices.base import Backend, PeakMemory, SideStream
from bench.spec.generations import NVIDIA
from bench.spec.precisions import Feature, Precision

Value = TypeVar("Value")
# The first compute capability with each feature (CUDA C++ Programming Guide, "Arithmetic
# Instructions").
FEATURES: dict[Feature, tuple[tuple[int, int], str]] = {
    "tf32": ((8, 0), "TF32 tensor cores"),
    "cudnn-tf32": ((8, 0), "cuDNN's TF32 (without it, it is the same as fp32)"),
    "fp16": ((5, 3), "float16 arithmetic"),
    "bf16": ((8, 0), "bfloat16 arithmetic"),
    "fp8": ((8, 9), "float8 tensor cores"),
}


class Cuda(Backend):
    """One GPU."""

    collectives = "cpu:gloo,cuda:nccl"
    switches = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
    hint = "Install a build for it: Pascal and Volta need one for CUDA 12.6 or older."
    """Advice where a torch build has no kernels for a GPU."""

    @property
    def properties(self) -> Any:
        """What torch knows of the GPU."""
        return torch.cuda.get_device_properties(self.device.index or 0)

    def model(self) -> str:
        """Return the name that torch's list of architectures gives the GPU."""
        return f"sm_{self.properties.major}{self.properties.minor}"

    def describe(self) -> dict[str, Any]:
        properties = self.properties
        return {
            "kind": "cuda",
            "name": properties.name,
            "architecture": generation(self.model()),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_total_bytes": properties.total_memory,
            "uuid": str(properties.uuid),
            "cores": properties.multi_processor_count,
            "native_bf16": lacks("bf16", self.model()) is None,
        }

    def missing_arithmetic(self, precision: Precision) -> str | None:
        return lacks(precision.needs, self.model())

    def has_kernels(self, built: Sequence[str]) -> bool:
        """Return whether a torch build with kernels for some architectures runs on the GPU."""
        return runs_on(self.model(), built)

    def kernels_problem(self) -> str:
        built = torch.cuda.get_arch_list()
        if self.has_kernels(built):
            return ""
        return (
            f"This torch build ({torch.__version__}) has no kernels for GPU {self.device.index} "
            f"({self.properties.name}, {self.model()}); it has {' '.join(built)}. {self.hint}"
        )

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
        )


class CudaGraph:
    """Work that is captured once, on a side stream, and then replayed with one launch."""

    def __init__(self, device: torch.device) -> None:
        self._side = SideStream(device)
        self.graph = torch.cuda.CUDAGraph()

    def warm_up(self, work: Callable[[], Value]) -> Value:
        """Run work on the capture's stream, so that libraries allocate what they need for it."""
        self._side.wait()
        with self._side.use():
            result = work()
        self._side.join()
        return result

    def capture(self, work: Callable[[], Value]) -> Value:
        """Capture work without running it.

        Other threads, such as a loader's that pins batches, may call CUDA.

        Raises:
            RuntimeError: it does what cannot be captured.
        """
        current = torch.cuda.current_stream(self._side.device)
        pool = torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(
                self.graph, pool, self._side.stream, capture_error_mode="thread_local"
            ):
                return work()
        except RuntimeError:
            # If ending a broken capture raises, torch leaves the side stream current; before 2.13
            # it also leaves the allocator recording, and emptying the cache fails from then on
            # (pytorch#180395).
            torch.cuda.set_stream(current)
            library: Any = torch._C
            end = getattr(library, "_cuda_endAllocateToPool", None)
            if end is None:  # up to 2.6
                end = library._cuda_endAllocateCurrentStreamToPool
            with suppress(RuntimeError):  # it has ended
                end(current.device_index, pool)
            raise

    def replay(self) -> None:
        """Run the captured work on the same memory."""
        self.graph.replay()


def generation(model: str) -> str:
    """Return the generation of a model such as sm_90."""
    return [name for first, name in NVIDIA.items() if first <= _capability(model)][-1]


def runs_on(model: str, built: Sequence[str]) -> bool:
    """Return whether a torch build with kernels for some architectures runs on a model.

    It does if it holds a binary of the same major and no later minor version, or PTX of no later
    one (CUDA C++ Programming Guide, "Application Compatibility").
    """
    major, minor = _capability(model)
    for architecture in built:
        oldest = _capability(architecture)
        if oldest <= (major, minor) and (architecture.startswith("compute") or oldest[0] == major):
            return True
    return False


def lacks(feature: Feature, model: str) -> str | None:
    """Return what a feature needs that a model lacks; None if it has it."""
    if not feature:
        return None
    (major, minor), what = FEATURES[feature]
    if _capability(model) < (major, minor):
        return f"{what}, from sm_{major}{minor} on; this GPU is {model}"
    return None


def _capability(name: str) -> tuple[int, int]:
    """Return the compute capability in names such as sm_90a and compute_90."""
    return divmod(int(re.sub(r"\D", "", name)), 10)
