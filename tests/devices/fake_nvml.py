"""A fake NVIDIA driver under the real nvidia-ml-py.

What is faked is the machine: ``FakeDriver`` stands in for libnvidia-ml.so.1, the C library that
pynvml calls through ctypes. The pynvml above it is real (a fresh copy, so that nothing leaks from
test to test), and with it its errors, structs and version rules.

    clock = FakeClock()
    gpu = FakeGpu("GPU-a", power_w=lambda now_s: 300.0)
    FakeDriver([gpu], clock=clock).install(monkeypatch)  # ``import pynvml`` sees that machine
    clock.advance(5.0)                                   # its energy counter has moved on
    gpu.lost = True                                      # and now it has fallen off the bus
"""

# ruff: noqa: N802, N815 - its functions are called what NVML calls them.

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

Power = float | Callable[[float], float]
"""Watts: constant, or a function of the clock's time: spikes, ramps."""
GiB = 2**30
# NVML's return codes.
SUCCESS, UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 0, 1, 3, 4, 6
INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN = 7, 9, 15, 999
NOT_AVAILABLE = 2**64 - 1
POWER_INSTANT = 186
# The kind of clock of the multiprocessors; the other is the memory's.
SM_CLOCK = 1
UTILIZATION = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
DRIVER_470 = frozenset(
    {
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetProcessesUtilizationInfo",
    }
)
"""Functions that a driver of 2021 does not have; pass it as ``missing``."""


class FakeClock:
    """Time in seconds that moves only by ``advance``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(eq=False)
class FakeGpu:
    """The state of a GPU; everything may change while it runs."""

    uuid: str
    name: str = "NVIDIA Fake"
    capability: tuple[int, int] = (9, 0)
    memory_total: int = 80 * GiB
    memory_used: int = 10 * GiB
    memory_reserved: int = GiB
    power_w: Power = 200.0
    counter_power_w: Power | None = None
    """The power that the energy counter adds up; None is the same as ``power_w``."""
    average_power_w: Power | None = None
    """The answer of nvmlDeviceGetPowerUsage; None is the same as ``power_w``."""
    power_limit_w: float = 700.0
    power_default_w: float = 700.0
    sm_clock_limit_mhz: int = 1980
    memory_clock_limit_mhz: int = 2619
    temperature_c: int = 50
    sm_clock_mhz: int = 1500
    memory_clock_mhz: int = 2600
    utilization_pct: int = 90
    reasons: int = 0
    """Bits of the clock event reasons."""
    fields: dict[int, int] = field(default_factory=dict)
    """Field values by number, such as cumulative throttle counters in nanoseconds."""
    work: list[tuple[int, int, int]] = field(default_factory=list)
    """Samples of processes (``UTILIZATION``): time in microseconds, process id, share of the time
    in percent."""
    processes: dict[int, int | None] = field(default_factory=dict)
    """Process id to the memory that it holds, in bytes."""
    graphics: dict[int, int | None] = field(default_factory=dict)
    energy_start_j: float = 0.0
    energy_tick_s: float = 0.1
    energy_wraps_at_j: float = math.inf
    errors: dict[str, int] = field(default_factory=dict)
    """C function to the code that it returns."""
    lost: bool = False
    _used_mj: list[float] = field(default_factory=lambda: [0.0])

    def power_mw(self, now_s: float) -> int:
        return _mw(self.power_w, now_s)

    def average_power_mw(self, now_s: float) -> int:
        return _mw(_or(self.average_power_w, self.power_w), now_s)

    def clock_mhz(self, _now_s: float, kind: Any) -> int:
        return self.sm_clock_mhz if kind.value == SM_CLOCK else self.memory_clock_mhz

    def clock_limit_mhz(self, _now_s: float, kind: Any) -> int:
        return self.sm_clock_limit_mhz if kind.value == SM_CLOCK else self.memory_clock_limit_mhz

    def energy_mj(self, now_s: float) -> int:
        """Energy up to the last tick, by the midpoints of 10 ms, each at the power that it had when
        first looked at.
        """
        power_w = _or(self.counter_power_w, self.power_w)
        ticks = math.floor(now_s / self.energy_tick_s + 1e-9)
        steps = round(ticks * self.energy_tick_s / 0.01)
        for step in range(len(self._used_mj) - 1, steps):
            power_mw = _mw(power_w, (step + 0.5) * 0.01)
            self._used_mj.append(self._used_mj[step] + power_mw * 0.01)
        used_mj = 1000 * self.energy_start_j + self._used_mj[steps]
        return round(used_mj % (1000 * self.energy_wraps_at_j))


def _or(power_w: Power | None, usual_w: Power) -> Power:
    return usual_w if power_w is None else power_w


def _mw(power_w: Power, now_s: float) -> int:
    return round(1000 * (power_w(now_s) if callable(power_w) else power_w))


_READINGS: dict[str, Callable[..., Any]] = {
    "Name": lambda gpu, *_: gpu.name.encode(),
    "UUID": lambda gpu, *_: gpu.uuid.encode(),
    "EnforcedPowerLimit": lambda gpu, now_s: _mw(gpu.power_limit_w, now_s),
    "PowerManagementDefaultLimit": lambda gpu, now_s: _mw(gpu.power_default_w, now_s),
    "CurrentClocksEventReasons": lambda gpu, *_: gpu.reasons,
    "CurrentClocksThrottleReasons": lambda gpu, *_: gpu.reasons,
    "PowerUsage": FakeGpu.average_power_mw,
    "TotalEnergyConsumption": FakeGpu.energy_mj,
    "MaxClockInfo": FakeGpu.clock_limit_mhz,
    "ClockInfo": FakeGpu.clock_mhz,
    "Temperature": lambda gpu, *_: gpu.temperature_c,
}
"""Results of functions with one result, without ``nvmlDeviceGet``: of the GPU, the time and an
argument."""


@dataclass
class FakeDriver:
    """The C library: a method for each function, of ctypes arguments, that returns NVML's code."""

    gpus: Sequence[FakeGpu] = ()
    clock: Callable[[], float] = field(default_factory=FakeClock)
    missing: Collection[str] = ()
    init_code: int = SUCCESS
    version: str = "580.65.06"
    running: int = 0
    """Times that it was initialised, less times that it was shut down."""
    _handles: dict[int, tuple[Any, FakeGpu]] = field(default_factory=dict)

    def load(self) -> ModuleType:
        """Return a fresh copy of the real pynvml with this as its library, and put it in
        sys.modules.
        """
        source = importlib.metadata.distribution("nvidia-ml-py").locate_file("pynvml.py")
        spec: Any = importlib.util.spec_from_file_location("pynvml", source)
        self.pynvml: Any = importlib.util.module_from_spec(spec)
        sys.modules["pynvml"] = self.pynvml
        spec.loader.exec_module(self.pynvml)
        self.pynvml.nvmlLib = _Library(self)
        for gpu in self.gpus:
            struct = self.pynvml.struct_c_nvmlDevice_t()
            self._handles[ctypes.addressof(struct)] = (struct, gpu)
        return self.pynvml

    def install(self, monkeypatch: Any) -> FakeDriver:
        """Make ``import pynvml`` see this machine, until the end of the test."""
        forget(monkeypatch)
        self.load()
        return self

    def answer(self, name: str, *arguments: Any) -> int:
        """Call a function as the driver would: in order of what goes wrong first."""
        if not self.running and not name.startswith("nvmlInit"):
            return UNINITIALIZED
        if not arguments or not isinstance(arguments[0], self.pynvml.c_nvmlDevice_t):
            return getattr(self, name)(*arguments)
        _, gpu = self._handles[ctypes.addressof(arguments[0].contents)]
        if gpu.lost:
            return GPU_IS_LOST
        if name in gpu.errors:
            return gpu.errors[name]
        reading = _READINGS.get(name.removeprefix("nvmlDeviceGet"))
        if reading is None:
            return getattr(self, name)(gpu, *arguments[1:])
        # The last argument takes the result, but for a buffer's, whose size comes after it.
        given = arguments[1:2] if name.endswith(("Name", "UUID")) else arguments[1:]
        return _put(given[-1], reading(gpu, self.clock(), *given[:-1]))

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
        return _put(count, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        return self._point(device, self.gpus[index.value])

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> int:
        for gpu in self.gpus:
            if gpu.uuid == uuid.value.decode():
                return self._point(device, gpu)
        return NOT_FOUND

    def nvmlDeviceGetIndex(self, gpu: FakeGpu, index: Any) -> int:
        return _put(index, self.gpus.index(gpu))

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, info: Any) -> int:
        # The first version counts the driver's own reserve as used.
        return _fill_memory(info, gpu, gpu.memory_used + gpu.memory_reserved)

    def nvmlDeviceGetMemoryInfo_v2(self, gpu: FakeGpu, info: Any) -> int:
        info._obj.reserved = gpu.memory_reserved
        return _fill_memory(info, gpu, gpu.memory_used)

    def nvmlDeviceGetTemperatureV(self, gpu: FakeGpu, info: Any) -> int:
        info._obj.temperature = gpu.temperature_c
        return SUCCESS

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu, rates: Any) -> int:
        rates._obj.gpu = gpu.utilization_pct
        return SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu, *result: Any) -> int:
        return _list(gpu.processes, *result)

    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: FakeGpu, *result: Any) -> int:
        return _list(gpu.graphics, *result)

    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, count: Any, values: Any) -> int:
        for value in values._obj:
            value.nvmlReturn = SUCCESS
            if value.fieldId == POWER_INSTANT:
                value.valueType, value.value.uiVal = 1, gpu.power_mw(self.clock())
            elif value.fieldId in gpu.fields:
                value.valueType, value.value.ullVal = 3, gpu.fields[value.fieldId]
            else:
                value.nvmlReturn = NOT_SUPPORTED
        return SUCCESS

    def nvmlDeviceGetProcessUtilization(
        self, gpu: FakeGpu, samples: Any, count: Any, since: Any
    ) -> int:
        fresh = [work for work in gpu.work if work[0] > since.value]
        count._obj.value = len(fresh)
        if not fresh:
            return NOT_FOUND
        if not samples:
            return INSUFFICIENT_SIZE
        for sample, work in zip(samples, fresh, strict=False):
            sample.timeStamp, sample.pid, sample.smUtil = work
        return SUCCESS

    def nvmlDeviceGetProcessesUtilizationInfo(self, gpu: FakeGpu, info: Any) -> int:
        asked, count = info._obj, ctypes.c_uint()
        since = ctypes.c_ulonglong(asked.lastSeenTimeStamp)
        code = self.nvmlDeviceGetProcessUtilization(
            gpu, asked.procUtilArray, ctypes.byref(count), since
        )
        asked.processSamplesCount = count.value
        return code

    def _point(self, device: Any, gpu: FakeGpu) -> int:
        for struct, other in self._handles.values():
            if other is gpu:
                device._obj.contents = struct
        return GPU_IS_LOST if gpu.lost else SUCCESS


class _Library:
    """The object in which pynvml looks functions up by attribute, as in a ctypes library."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Callable[..., int]:
        known = hasattr(FakeDriver, name) or name.removeprefix("nvmlDeviceGet") in _READINGS
        if name in self._driver.missing or not known:
            raise AttributeError(name)
        return partial(self._driver.answer, name)


def forget(monkeypatch: Any) -> None:
    """Unload pynvml and gpustat until the end of the test, so that a test imports them fresh."""
    for name in ("pynvml", "gpustat", "gpustat.core", "gpustat.nvml", "gpustat.util"):
        # Set before it is taken out, so that monkeypatch also unloads what the test is about to
        # import.
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


def without_driver(monkeypatch: Any) -> None:
    """Make ``import pynvml`` see a machine that has no NVIDIA library, whatever this one has."""
    pynvml: Any = FakeDriver().install(monkeypatch).pynvml
    pynvml.nvmlLib = None
    pynvml.CDLL = _no_library


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def _list(processes: dict[int, int | None], count: Any, entries: Any) -> int:
    count._obj.value = len(processes)
    if entries is None:
        return INSUFFICIENT_SIZE if processes else SUCCESS
    for entry, (pid, memory) in zip(entries, processes.items(), strict=False):
        entry.pid, entry.usedGpuMemory = pid, NOT_AVAILABLE if memory is None else memory
    return SUCCESS


def _fill_memory(info: Any, gpu: FakeGpu, used: int) -> int:
    memory = info._obj
    memory.total, memory.used = gpu.memory_total, used
    memory.free = gpu.memory_total - gpu.memory_used - gpu.memory_reserved
    return SUCCESS


def _put(reference: Any, value: Any) -> int:
    getattr(reference, "_obj", reference).value = value  # a pointer, or a buffer of characters
    return SUCCESS
