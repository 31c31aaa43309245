"""The CPU."""

from __future__ import annotations

import ctypes
import gc
import platform
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from bench.devices.base import Backend, Event, PeakMemory
from bench.devices.capabilities import no_tf32_on_cpu
from bench.spec.precisions import Feature, Precision

# A container's limit and use, in version 2 and version 1 of control groups.
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
# The hardware that all CPUs lack for each feature; of other features, torch is asked whether this
# one has it.
LACKS: dict[Feature, str] = {
    "cudnn-tf32": "cuDNN's TF32 (without it, it is the same as fp32), which is on GPUs",
    "fp8": "float8 tensor cores, which are on GPUs",
}
# Instructions that multiply a type, as ``torch.cpu.get_capabilities`` calls them.
MATRIX_FLAGS = {
    torch.bfloat16: ("amx_bf16", "avx512_bf16", "avx10_2", "bf16"),
    torch.float16: ("amx_fp16", "fp16"),
}
# Instruction sets, the widest first, and what ``torch.cpu`` calls the question whether it may use
# them.
WIDEST = {
    "AMX": "_is_amx_tile_supported",
    "AVX512-BF16": "_is_avx512_bf16_supported",
    "AVX512": "_is_avx512_supported",
    "AVX2": "_is_avx2_supported",
}


class Cpu(Backend):
    """The CPU, on which an operation is done when it returns."""

    is_gpu = False
    collectives = "gloo"
    switches = ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")

    def describe(self) -> dict[str, Any]:
        native_bf16 = None
        if hasattr(torch.cpu, "get_capabilities"):
            native_bf16 = torch.bfloat16 in self.matrix_types()
        return {
            "kind": "cpu",
            "name": cpu_name(),
            "architecture": _architecture(),
            "memory_total_bytes": psutil.virtual_memory().total,
            "cores": psutil.cpu_count(logical=False),
            "threads": torch.get_num_threads(),
            "native_bf16": native_bf16,
        }

    def missing_arithmetic(self, precision: Precision) -> str | None:
        return LACKS.get(precision.needs)

    def unsupported_reason(self, precision: Precision) -> str | None:
        reason = super().unsupported_reason(precision)
        if reason is None and precision.fp32 == "tf32":
            reason = no_tf32_on_cpu()
        return reason

    def matrix_types(self) -> frozenset[torch.dtype]:
        has: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        types = set[torch.dtype]()
        for dtype, flags in MATRIX_FLAGS.items():
            if any(has.get(flag) for flag in flags):
                types.add(dtype)
        return frozenset(types)

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
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return PeakMemory(resident=int(peak[1]) * 1024 if peak else None)

    def allocations(self) -> int:
        return 0  # those of the host are not counted

    def rng_state(self) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor) -> None:
        torch.set_rng_state(state)


class CpuEvent:
    """A moment: on a CPU, work is done when it has been queued."""

    def __init__(self) -> None:
        self.time_ns = time.perf_counter_ns()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: CpuEvent, /) -> float:
        return (end.time_ns - self.time_ns) / 1e6


def available_bytes(cgroups: tuple[tuple[str, str], ...] = CGROUPS) -> int:
    """Return what can be taken without swapping, of the machine or its container if that is less.

    A container's use counts its file cache too, which could be dropped, so this is rather too
    little than too much.
    """
    free = int(psutil.virtual_memory().available)
    for limit, used in cgroups:
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
        except (OSError, ValueError):  # there is none, or "max", which is no limit
            continue
        free = min(free, max(left, 0))
    return free


def cpu_name() -> str:
    """Return the CPU's model name; a run is only resumed on one of the same name."""
    with suppress(FileNotFoundError):  # on other systems than Linux
        facts = Path("/proc/cpuinfo").read_text()
        model = re.search(r"^model name\s*:\s*(.+)$", facts, re.MULTILINE)
        if model:
            return model[1].strip()
    return platform.processor() or platform.machine()


def _architecture() -> str:
    """Name the widest instruction set that torch may use; it decides whether bf16 is faster."""
    machine = "CPU " + platform.machine().replace("_", "-")
    for name, check in WIDEST.items():
        if getattr(torch.cpu, check, lambda: False)():
            return f"{machine}, {name}"
    return machine
