"""The CPU: operations are done when they return, and memory is the process's resident set."""

from __future__ import annotations

import ctypes
import gc
import re
import time
from pathlib import Path
from typing import NoReturn

import psutil
import torch
from torch import Tensor

from bench.devices.backend import Backend, Event, PeakMemory
from bench.devices.capabilities import failure_on_cpu, fp32_switches, missing_package, no_tf32_on_cpu
from bench.spec.precisions import TE_FEATURES, Feature, Precision

CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Where version 2 and version 1 of control groups tell a container's limit and use."""


FEATURES: dict[Feature, str] = {
    "tf32": "",
    "cudnn-tf32": "cuDNN's TF32 (without it, it is the same as fp32), which is on GPUs",
    "fp16": "",
    "bf16": "",
    "fp8": "float8 tensor cores, which are on GPUs",
    "triton": "",
    "triton-fp8": "",
    "nvfp4": "NVFP4 tensor cores, which are on GPUs",
    "mxfp8": "MXFP8 tensor cores, which are on GPUs",
    **dict.fromkeys(TE_FEATURES, "Transformer Engine, which is for GPUs"),
}
"""What CPUs lack for each feature; empty where torch is asked whether it does it on this one."""


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

    def spin(self, cycles: int) -> NoReturn:
        raise NotImplementedError("a CPU does not queue waits")

    def side_stream(self) -> NoReturn:
        raise NotImplementedError("a CPU has no streams")

    def graph(self) -> NoReturn:
        raise NotImplementedError("a CPU has no graphs")

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
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text() if status.exists() else "")
        return PeakMemory(resident=int(found[1]) * 1024 if found else None)

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
        return FEATURES[precision.required] or None if precision.required else None

    def unsupported_reason(self, precision: Precision) -> str | None:
        if missing := self.missing_arithmetic(precision):
            return f"{precision.name} needs {missing}"
        if reason := missing_package(precision):
            return reason
        return no_tf32_on_cpu() if precision.fp32 == "tf32" else failure_on_cpu(precision.compute)


class CpuEvent:
    """A moment, since work is done when it has been queued."""

    def __init__(self) -> None:
        self.time_ns = time.perf_counter_ns()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: CpuEvent, /) -> float:
        return (end.time_ns - self.time_ns) / 1e6


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
