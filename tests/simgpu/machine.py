"""A machine with simulated GPUs: which, and the faults that befall them in the middle of a run."""

import ctypes
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.simgpu.build import built, preloaded

MAX_GPUS, MAX_PROCESSES = 8, 256
THERMAL = 0x60
"""Those of which the driver counts the time as heat's."""


@dataclass(frozen=True, slots=True)
class Model:
    """Properties by which a GPU is known."""

    architecture: str
    name: str
    capability: str
    memory_mib: int
    multiprocessors: int
    power_w: int
    nvml_lacks: str = ""
    """Readings that its NVML lacks: words of SIM_NVML_OFF."""

    @property
    def sm(self) -> str:
        """Its compute capability as torch calls it, such as sm_80."""
        return "sm_" + self.capability.replace(".", "")


MODELS = {
    "P100": Model("Pascal", "Tesla P100-PCIE-16GB", "6.0", 16384, 56, 250, nvml_lacks="energy"),
    "V100": Model("Volta", "Tesla V100-SXM2-16GB", "7.0", 16384, 80, 300),
    "T4": Model("Turing", "Tesla T4", "7.5", 15360, 40, 70),
    "A100": Model("Ampere", "NVIDIA A100-SXM4-40GB", "8.0", 40960, 108, 400),
    "H100": Model("Hopper", "NVIDIA H100 80GB HBM3", "9.0", 81559, 132, 700),
    "B200": Model("Blackwell", "NVIDIA B200", "10.0", 183359, 148, 1000),
}
"""Names and memory as NVML tells them; energy is counted from Volta on
(nvmlDeviceGetTotalEnergyConsumption)."""


class Process(ctypes.Structure):
    """One process among those on the machine; as in native/machine.h."""

    _fields_ = (
        ("pid", ctypes.c_int),
        ("has_context", ctypes.c_int * MAX_GPUS),
        ("allocated_bytes", ctypes.c_uint64 * MAX_GPUS),
        ("busy_ns", ctypes.c_uint64 * MAX_GPUS),
        ("done_ns", ctypes.c_uint64 * MAX_GPUS),
    )


class Power(ctypes.Structure):
    """A GPU's energy counter; as in native/machine.h."""

    _fields_ = (
        ("tick", ctypes.c_uint64),
        ("energy_mj", ctypes.c_uint64),
        ("power_mw", ctypes.c_uint64),
    )


class Shared(ctypes.Structure):
    """State that all processes on the machine share; as in native/machine.h."""

    _fields_ = (
        ("processes", Process * MAX_PROCESSES),
        ("busy_ns", ctypes.c_uint64 * MAX_GPUS),
        ("power", Power * MAX_GPUS),
        ("holder", ctypes.c_int * MAX_GPUS),
        ("clock_reasons", ctypes.c_uint64 * MAX_GPUS),
        ("thermal_ns", ctypes.c_uint64 * MAX_GPUS),
        ("thermal_since_ns", ctypes.c_uint64 * MAX_GPUS),
        ("taken_bytes", ctypes.c_uint64 * MAX_GPUS),
        ("lost", ctypes.c_int * MAX_GPUS),
        ("nvml_error", ctypes.c_int * MAX_GPUS),
        ("sticky_error", ctypes.c_int * MAX_GPUS),
    )


class Machine:
    """The state of a machine's GPUs, in the file that SIM_SHM names. GPUs go by CUDA's number."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a machine's file, or make it."""
        self.path = Path(path)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        size = ctypes.sizeof(Shared)
        os.ftruncate(file, size)
        self.shared = Shared.from_buffer(mmap.mmap(file, size))
        os.close(file)

    def poke(self, what: str, gpu: int, value: int) -> None:
        """Set a field of ``Shared`` for one GPU."""
        getattr(self.shared, what)[gpu] = value

    def throttle(self, gpu: int, reasons: int) -> None:
        """Let the clocks be held down for reasons, of which heat's time is counted."""
        self.poke("thermal_since_ns", gpu, time.monotonic_ns() if reasons & THERMAL else 0)
        self.poke("clock_reasons", gpu, reasons)

    def computing(self) -> list[int]:
        """Return the processes that still have a context on a GPU."""
        pids = []
        for process in self.shared.processes:
            # A process that was killed leaves its slot as it was.
            if any(process.has_context) and psutil.pid_exists(process.pid):
                pids.append(process.pid)
        return pids


def environment(**settings: object) -> dict[str, str]:
    """Return this process's environment with what a process on simulated GPUs needs.

    Args:
        settings: more variables, such as ``SIM_COUNT=1``.

    Raises:
        UnavailableError: simulated GPUs cannot be built here.
    """
    folder = built()
    libraries = [f"{folder}/{name}" for name in preloaded()]
    variables = os.environ | {
        "LD_PRELOAD": ":".join(libraries),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": f"{folder}/preload:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
    }
    for name, value in settings.items():
        variables[name] = str(value)
    return variables


def settings(model: Model, count: int = 1) -> dict[str, str]:
    """Return the variables that make a machine's GPUs a model's."""
    return {
        "SIM_COUNT": str(count),
        "SIM_NAME": model.name,
        "SIM_CC": model.capability,
        "SIM_MEM_MB": str(model.memory_mib),
        "SIM_CORES": str(model.multiprocessors),
        "SIM_POWER_W": str(model.power_w),
        "SIM_NVML_OFF": model.nvml_lacks,
    }
