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

Power = float | Callable[[float], float]
"""Watts: constant, or a function of the clock's time: spikes, ramps."""
GiB = 2**30
# NVML's return codes.
SUCCESS = 0
UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
UNKNOWN = 999
NOT_AVAILABLE = 2**64 - 1
POWER_INSTANT = 186
CLOCKS_MHZ = {1: 1500, 2: 2600}
"""By NVML's number of the kind of clock: of the multiprocessors, of the memory."""
CLOCK_LIMITS_MHZ = {1: 1980, 2: 2619}
UTILIZATION = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
DRIVER_470 = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetProcessesUtilizationInfo",
)
"""Functions that a driver of 2021 does not have; pass it as ``missing``."""


class FakeClock:
    """Time in seconds that moves only by ``advance``."""

    now_s = 0.0

    def __call__(self):
        return self.now_s

    def advance(self, seconds):
        self.now_s += seconds


@dataclass(eq=False)
class FakeGpu:
    """The state of a GPU; everything may change while it runs."""

    uuid: str
    name: str = "NVIDIA Fake"
    capability: tuple[int, int] = (9, 0)
    memory_used: int = 10 * GiB
    power_w: Power = 200.0
    counter_power_w: Power | None = None
    """The power that the energy counter adds up; None is the same as ``power_w``."""
    average_power_w: Power | None = None
    """The answer of nvmlDeviceGetPowerUsage; None is the same as ``power_w``."""
    power_limit_w: float = 700.0
    reasons: int = 0
    """Bits of the clock event reasons."""
    fields: dict = field(default_factory=dict)
    """Field values by number, such as cumulative throttle counters in nanoseconds."""
    work: list = field(default_factory=list)
    """Samples of processes (``UTILIZATION``): time in microseconds, process id, share of the time
    in percent."""
    processes: dict = field(default_factory=dict)
    """Process id to the memory that it holds, in bytes, or None."""
    graphics: dict = field(default_factory=dict)
    energy_start_j: float = 0.0
    energy_tick_s: float = 0.1
    energy_wraps_at_j: float = math.inf
    errors: dict = field(default_factory=dict)
    """C function to the code that it returns."""
    lost: bool = False
    memory_total = 80 * GiB
    memory_reserved = GiB
    power_default_w = 700.0
    temperature_c = 50
    utilization_pct = 90

    def __post_init__(self):
        self._used_mj = [0.0]
        if self.counter_power_w is None:
            self.counter_power_w = self.power_w
        if self.average_power_w is None:
            self.average_power_w = self.power_w

    def energy_mj(self, now_s):
        """Energy up to the last tick, by the midpoints of 10 ms."""
        ticks = math.floor(now_s / self.energy_tick_s + 1e-9)
        steps = round(ticks * self.energy_tick_s / 0.01)
        for step in range(len(self._used_mj) - 1, steps):
            power_mw = _mw(self.counter_power_w, (step + 0.5) * 0.01)
            self._used_mj.append(self._used_mj[step] + power_mw * 0.01)
        used_mj = 1000 * self.energy_start_j + self._used_mj[steps]
        return round(used_mj % (1000 * self.energy_wraps_at_j))


def _mw(power_w, now_s=0.0):
    return round(1000 * (power_w(now_s) if callable(power_w) else power_w))


@dataclass
class FakeDriver:
    """The C library: a method for each function, of ctypes arguments, that returns NVML's code."""

    gpus: Sequence[FakeGpu] = ()
    clock: Callable[[], float] = field(default_factory=FakeClock)
    missing: Collection[str] = ()
    init_code: int = SUCCESS
    version: str = "580.65.06"
    running = 0
    """Times that it was initialised, less times that it was shut down."""

    def load(self):
        """Put a fresh copy of the real pynvml with this as its library in sys.modules."""
        source = importlib.metadata.distribution("nvidia-ml-py").locate_file("pynvml.py")
        spec = importlib.util.spec_from_file_location("pynvml", source)
        self.pynvml = importlib.util.module_from_spec(spec)
        sys.modules["pynvml"] = self.pynvml
        spec.loader.exec_module(self.pynvml)
        self.pynvml.nvmlLib = _Library(self)
        self._structs = [self.pynvml.struct_c_nvmlDevice_t() for _ in self.gpus]
        self._by_address = dict(zip(map(ctypes.addressof, self._structs), self.gpus, strict=True))

    def install(self, monkeypatch):
        """Make ``import pynvml`` see this machine, until the end of the test."""
        forget(monkeypatch)
        self.load()
        return self

    def answer(self, name, *arguments):
        """Call a function as the driver would: in order of what goes wrong first."""
        if not self.running and not name.startswith("nvmlInit"):
            return UNINITIALIZED
        function = getattr(self, name)
        if not arguments or not isinstance(arguments[0], self.pynvml.c_nvmlDevice_t):
            return function(*arguments)
        device, *others = arguments
        gpu = self._by_address[ctypes.addressof(device.contents)]
        if gpu.lost:
            return GPU_IS_LOST
        if name in gpu.errors:
            return gpu.errors[name]
        return function(gpu, *others)

    def nvmlInitWithFlags(self, flags):
        self.running += self.init_code == SUCCESS
        return self.init_code

    def nvmlShutdown(self):
        self.running -= 1
        return SUCCESS

    def nvmlSystemGetDriverVersion(self, buffer, size):
        buffer.value = self.version.encode()
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count):
        return _put(count, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index, device):
        device._obj.contents = self._structs[index.value]
        return GPU_IS_LOST if self.gpus[index.value].lost else SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid, device):
        for number, gpu in enumerate(self.gpus):
            if gpu.uuid == uuid.value.decode():
                return self.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), device)
        return NOT_FOUND

    def nvmlDeviceGetIndex(self, gpu, index):
        return _put(index, self.gpus.index(gpu))

    def nvmlDeviceGetName(self, gpu, buffer, size):
        buffer.value = gpu.name.encode()
        return SUCCESS

    def nvmlDeviceGetUUID(self, gpu, buffer, size):
        buffer.value = gpu.uuid.encode()
        return SUCCESS

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu, limit):
        return _put(limit, _mw(gpu.power_limit_w))

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu, limit):
        return _put(limit, _mw(gpu.power_default_w))

    def nvmlDeviceGetPowerUsage(self, gpu, power):
        return _put(power, _mw(gpu.average_power_w, self.clock()))

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu, energy):
        return _put(energy, gpu.energy_mj(self.clock()))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu, reasons):
        return _put(reasons, gpu.reasons)

    def nvmlDeviceGetMaxClockInfo(self, gpu, kind, clock):
        return _put(clock, CLOCK_LIMITS_MHZ[kind.value])

    def nvmlDeviceGetClockInfo(self, gpu, kind, clock):
        return _put(clock, CLOCKS_MHZ[kind.value])

    def nvmlDeviceGetTemperature(self, gpu, sensor, temperature):
        return _put(temperature, gpu.temperature_c)

    def nvmlDeviceGetMemoryInfo(self, gpu, info):
        # The first version counts the driver's own reserve as used.
        return _fill_memory(info, gpu, gpu.memory_used + gpu.memory_reserved)

    def nvmlDeviceGetMemoryInfo_v2(self, gpu, info):
        info._obj.reserved = gpu.memory_reserved
        return _fill_memory(info, gpu, gpu.memory_used)

    def nvmlDeviceGetUtilizationRates(self, gpu, rates):
        rates._obj.gpu = gpu.utilization_pct
        return SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu, count, entries):
        return _list(gpu.processes, count, entries)

    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu, count, entries):
        return _list(gpu.graphics, count, entries)

    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3

    def nvmlDeviceGetFieldValues(self, gpu, count, values):
        for value in values._obj:
            value.nvmlReturn = SUCCESS
            if value.fieldId == POWER_INSTANT:
                value.valueType = 1  # an unsigned int
                value.value.uiVal = _mw(gpu.power_w, self.clock())
            elif value.fieldId in gpu.fields:
                value.valueType = 3  # an unsigned long long
                value.value.ullVal = gpu.fields[value.fieldId]
            else:
                value.nvmlReturn = NOT_SUPPORTED
        return SUCCESS

    def nvmlDeviceGetProcessUtilization(self, gpu, samples, count, since):
        fresh = [work for work in gpu.work if work[0] > since.value]
        count._obj.value = len(fresh)
        if not fresh:
            return NOT_FOUND
        if not samples:
            return INSUFFICIENT_SIZE
        for sample, work in zip(samples, fresh, strict=False):
            sample.timeStamp, sample.pid, sample.smUtil = work
        return SUCCESS

    def nvmlDeviceGetProcessesUtilizationInfo(self, gpu, info):
        asked = info._obj
        count = ctypes.c_uint()
        since = ctypes.c_ulonglong(asked.lastSeenTimeStamp)
        code = self.nvmlDeviceGetProcessUtilization(
            gpu, asked.procUtilArray, ctypes.byref(count), since
        )
        asked.processSamplesCount = count.value
        return code


class _Library:
    """The object in which pynvml looks functions up by attribute, as in a ctypes library."""

    def __init__(self, driver):
        self._driver = driver

    def __getattr__(self, name):
        if name in self._driver.missing or not hasattr(FakeDriver, name):
            raise AttributeError(name)
        return partial(self._driver.answer, name)


def forget(monkeypatch):
    """Unload pynvml and gpustat until the end of the test, so that a test imports them fresh."""
    for name in ("pynvml", "gpustat", "gpustat.core", "gpustat.nvml", "gpustat.util"):
        # Set before it is taken out, so that monkeypatch also unloads what the test is about to
        # import.
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


def without_driver(monkeypatch):
    """Make ``import pynvml`` see a machine that has no NVIDIA library, whatever this one has."""
    pynvml = FakeDriver().install(monkeypatch).pynvml
    pynvml.nvmlLib = None
    pynvml.CDLL = _no_library


def _no_library(name):
    raise OSError(f"{name}: cannot open shared object file")


def _list(processes, count, entries):
    count._obj.value = len(processes)
    if entries is None:
        return INSUFFICIENT_SIZE if processes else SUCCESS
    for entry, (pid, memory) in zip(entries, processes.items(), strict=False):
        entry.pid = pid
        entry.usedGpuMemory = NOT_AVAILABLE if memory is None else memory
    return SUCCESS


def _fill_memory(info, gpu, used):
    memory = info._obj
    memory.total = gpu.memory_total
    memory.used = used
    memory.free = gpu.memory_total - gpu.memory_used - gpu.memory_reserved
    return SUCCESS


def _put(pointer, value):
    pointer._obj.value = value
    return SUCCESS
