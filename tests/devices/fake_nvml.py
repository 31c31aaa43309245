"""A fake NVIDIA driver under the real nvidia-ml-py.

What is faked is the machine: ``FakeDriver`` stands in for libnvidia-ml.so.1, the C library that pynvml calls through
ctypes. The pynvml above it is real (a fresh copy, so that nothing leaks from test to test), and with it its errors,
structs and version rules.

    clock = FakeClock()
    gpu = FakeGpu("GPU-a", power_w=lambda now_s: 300.0)
    FakeDriver([gpu], clock=clock).install(monkeypatch)     # from here on ``import pynvml`` sees that machine
    clock.advance(5.0)                                      # its energy counter has moved on
    gpu.lost = True                                         # and now it has fallen off the bus
"""

# ruff: noqa: N802, N815 - its functions are called what NVML calls them.

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any

from tests.devices import fake_counters
from tests.devices.fake_counters import INSUFFICIENT_SIZE, NOT_FOUND, SUCCESS, Counters, put
from tests.devices.fake_gpu import FakeClock, FakeGpu

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, fake_counters.NOT_SUPPORTED, 4
DRIVER_NOT_LOADED, GPU_IS_LOST, MISMATCH, UNKNOWN = 9, 15, 18, 999
NOT_AVAILABLE = 2**64 - 1

DRIVER_470 = frozenset(
    {
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTemperatureV",
    }
)
"""Functions that a driver of 2021 does not have; pass it as ``missing``."""

# What NVML answers for the handle of a MIG slice; the rest is for boards only.
_FOR_SLICES = {"Name", "UUID", "MemoryInfo", "MemoryInfo_v2", "DeviceHandleFromMigDeviceHandle"}
_FOR_SLICES |= {"ComputeRunningProcesses_v2", "ComputeRunningProcesses_v3"}


class FakeDriver(Counters):
    """The C library: a method for each function, with ctypes arguments, that returns NVML's code."""

    def __init__(
        self,
        gpus: Iterable[FakeGpu] = (),
        *,
        clock: Callable[[], float] | None = None,
        missing: Iterable[str] = (),
        init_code: int = SUCCESS,
        version: str = "580.65.06",
    ) -> None:
        self.gpus, self.clock, self.missing = list(gpus), clock or FakeClock(), set(missing)
        self.init_code, self.version = init_code, version
        self.running = 0
        """Times that it was initialised, less times that it was shut down."""
        self.asked: Counter[str] = Counter()
        """How often each function was called."""
        self._handles: dict[int, tuple[Any, FakeGpu, FakeGpu]] = {}

    def load(self) -> ModuleType:
        """Return a fresh copy of the real pynvml that has this as its library, and put it in sys.modules."""
        source = importlib.metadata.distribution("nvidia-ml-py").locate_file("pynvml.py")
        spec: Any = importlib.util.spec_from_file_location("pynvml", source)
        self.pynvml: Any = importlib.util.module_from_spec(spec)
        sys.modules["pynvml"] = self.pynvml
        spec.loader.exec_module(self.pynvml)
        self.pynvml.nvmlLib = _Library(self)
        for board in self.gpus:
            for gpu in (board, *board.slices):
                struct = self.pynvml.struct_c_nvmlDevice_t()
                self._handles[ctypes.addressof(struct)] = (struct, gpu, board)
        return self.pynvml

    def install(self, monkeypatch: Any) -> FakeDriver:
        """Make ``import pynvml`` see this machine, until the end of the test."""
        forget(monkeypatch)
        self.load()
        return self

    def answer(self, name: str, *arguments: Any) -> int:
        """Call a function as the driver would: in order of what goes wrong first."""
        self.asked[name] += 1
        if not self.running and not name.startswith("nvmlInit"):
            return UNINITIALIZED
        if not arguments or not isinstance(arguments[0], self.pynvml.c_nvmlDevice_t):
            return getattr(self, name)(*arguments)
        _, gpu, board = self._handles[ctypes.addressof(arguments[0].contents)]
        if gpu.lost or board.lost:
            return GPU_IS_LOST
        if name in gpu.errors:
            return gpu.errors[name]
        if gpu is not board and name.removeprefix("nvmlDeviceGet") not in _FOR_SLICES:
            return INVALID_ARGUMENT
        return getattr(self, name)(gpu, *arguments[1:])

    def nvmlInitWithFlags(self, flags: int) -> int:
        self.running += self.init_code == SUCCESS
        return self.init_code

    def nvmlShutdown(self) -> int:
        self.running -= 1
        return SUCCESS

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = self.version.encode()
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        return put(count, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        return self._point(device, self.gpus[index.value])

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> int:
        found = [gpu for _, gpu, _ in self._handles.values() if gpu.uuid == uuid.value.decode()]
        return self._point(device, found[0]) if found else NOT_FOUND

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, gpu: FakeGpu, device: Any) -> int:
        return self._point(device, next(board for board in self.gpus if gpu in board.slices))

    def nvmlDeviceGetIndex(self, gpu: FakeGpu, index: Any) -> int:
        return put(index, self.gpus.index(gpu))

    def nvmlDeviceGetUUID(self, gpu: FakeGpu, buffer: Any, size: Any) -> int:
        buffer.value = gpu.uuid.encode()
        return SUCCESS

    def nvmlDeviceGetName(self, gpu: FakeGpu, buffer: Any, size: Any) -> int:
        buffer.value = gpu.name.encode()
        return SUCCESS

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu, major: Any, minor: Any) -> int:
        return put(major, gpu.capability[0]) or put(minor, gpu.capability[1])

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, info: Any) -> int:
        # The first version counts the driver's own reserve as used.
        info._obj.total, info._obj.used = gpu.memory_total, gpu.memory_used + gpu.memory_reserved
        info._obj.free = gpu.memory_total - info._obj.used
        return SUCCESS

    def nvmlDeviceGetMemoryInfo_v2(self, gpu: FakeGpu, info: Any) -> int:
        info._obj.total, info._obj.used, info._obj.reserved = gpu.memory_total, gpu.memory_used, gpu.memory_reserved
        info._obj.free = gpu.memory_total - gpu.memory_used - gpu.memory_reserved
        return SUCCESS

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu, power: Any) -> int:
        average = gpu.average_power_w
        return put(power, gpu.power_mw(self.clock()) if average is None else round(1000 * average))

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu, limit: Any) -> int:
        return put(limit, round(1000 * gpu.power_limit_w))

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: FakeGpu, limit: Any) -> int:
        return put(limit, round(1000 * gpu.power_default_w))

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, kind: Any, clock: Any) -> int:
        return put(clock, {1: gpu.sm_clock_limit_mhz, 2: gpu.memory_clock_limit_mhz}[kind.value])

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: Any, celsius: Any) -> int:
        return put(celsius, gpu.temperature_c)

    def nvmlDeviceGetTemperatureV(self, gpu: FakeGpu, info: Any) -> int:
        info._obj.temperature = gpu.temperature_c
        return SUCCESS

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: Any, clock: Any) -> int:
        return put(clock, {1: gpu.sm_clock_mhz, 2: gpu.memory_clock_mhz}[kind.value])

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu, rates: Any) -> int:
        rates._obj.gpu = gpu.utilization_pct
        return SUCCESS

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu, reasons: Any) -> int:
        return put(reasons, gpu.reasons)

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu, count: Any, found: Any) -> int:
        return _list(gpu.processes, count, found)

    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: FakeGpu, count: Any, found: Any) -> int:
        return _list(gpu.graphics, count, found)

    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3

    def _point(self, device: Any, gpu: FakeGpu) -> int:
        device._obj.contents = next(struct for struct, other, _ in self._handles.values() if other is gpu)
        return GPU_IS_LOST if gpu.lost else SUCCESS


class _Library:
    """What pynvml looks functions up in, by attribute, as in a ctypes library."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in self._driver.missing or not hasattr(FakeDriver, name):
            raise AttributeError(name)
        return partial(self._driver.answer, name)


def forget(monkeypatch: Any) -> None:
    """Unload pynvml and gpustat until the end of the test, so that what the test imports is fresh."""
    gpustat = [name for name in sys.modules if name.startswith("gpustat.")]
    for name in {"pynvml", "gpustat", "gpustat.cli", "gpustat.core", "gpustat.nvml", "gpustat.util", *gpustat}:
        # Set before it is taken out, so that monkeypatch also unloads what the test is about to import.
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


def without_driver(monkeypatch: Any) -> None:
    """Make ``import pynvml`` see a machine that has no NVIDIA library, whatever this one has."""
    pynvml: Any = FakeDriver().install(monkeypatch).pynvml
    pynvml.nvmlLib = None
    pynvml.CDLL = _no_library


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def _list(processes: dict[int, int | None], count: Any, found: Any) -> int:
    count._obj.value = len(processes)
    if found is None:
        return INSUFFICIENT_SIZE if processes else SUCCESS
    for entry, (pid, memory) in zip(found, processes.items(), strict=False):
        entry.pid, entry.usedGpuMemory = pid, NOT_AVAILABLE if memory is None else memory
    return SUCCESS
