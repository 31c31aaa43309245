"""NVML, the library of NVIDIA's driver, without torch: telemetry, energy, throttling, processes.

Every reading ends in one of three ways: a value in the unit that its name says; None, because the
driver or the card does not offer it, this user may not read it, or the call failed while the GPU
keeps working; or ``DeviceLostError``, because the GPU or its driver is gone. GPUs go by UUID,
because NVML's order of GPUs is not CUDA's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from bench.results.records import Device, Sample

# The throttle reason of a sample when none is active, to tell it from unknown.
NO_REASON = "none"
# The throttle reason that is the power limit.
POWER_CAP = "sw_power_cap"
# Names of nvml.h's clock event reasons, by bit; they were called throttle reasons before driver
# 535.
REASONS = {
    0x001: "idle",
    0x002: "applications_clocks",
    0x004: POWER_CAP,
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
# Field of nvml.h to the clock event reason (``REASONS``) whose time it counts, in nanoseconds.
THROTTLE_FIELDS = {
    "NVML_FI_DEV_PERF_POLICY_POWER": POWER_CAP,
    "NVML_FI_DEV_PERF_POLICY_THERMAL": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": "hw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": "hw_power_brake",
}
# Functions that read processes' samples; some Blackwell boards support the newer one alone
# (github.com/Project-HAMi/HAMi-core/pull/218).
SAMPLED = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
POWER = "nvmlDeviceGetPowerUsage"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
# Version 2 is in all drivers; what pynvml's function without a version calls is not.
RUNNING = "nvmlDeviceGetComputeRunningProcesses_v2"
# Return codes after which no call succeeds.
GONE = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
# Members of nvmlValue_t in the order of nvmlValueType_t.
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# How often an energy counter is polled.
POLL_S = 0.005
# A counter that has not moved for this long does not tick.
SILENT_S = 1.0
# A sample of a process is known at most this long after it began.
SAMPLE_S = 1.1
# More than the driver's counters may lag: they move in steps, of about 100 ms.
LAG_S = 2.0

# The reading that a GPU's energy comes from.
Source = Literal["counter", "power"]


class DeviceLostError(Exception):
    """The GPU or its driver does not answer any more, or there is no such GPU."""


class Monitor(AbstractContextManager["Monitor"]):
    """NVML, initialised; a context manager that shuts it down.

    Raises:
        RuntimeError: there is no NVIDIA driver, or none that answers.
    """

    def __init__(self) -> None:
        import pynvml

        self.library: Any = pynvml
        try:
            self.library.nvmlInit()
        except pynvml.NVMLError as error:
            raise RuntimeError(f"NVML does not start: {error}") from error
        self._gone = {getattr(pynvml, f"NVML_ERROR_{name}", None) for name in GONE}
        self._handles: dict[str, Any] = {}
        self.reasons: dict[tuple[str, str], str] = {}
        """Why the last call of a function returned None, by UUID and function."""

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut the library down."""
        with suppress(self.library.NVMLError):  # A driver that is gone needs no shutting down.
            self.library.nvmlShutdown()

    def call(self, uuid: str, name: str, *arguments: Any) -> Any:
        """Call the function of that name; None if it fails or is missing (``reasons`` says why).

        Raises:
            DeviceLostError: the GPU, or its driver, is gone.
        """
        function = getattr(self.library, name, None)
        if function is None:  # a later version may drop what it calls deprecated
            self.reasons[uuid, name] = "this nvidia-ml-py does not offer it"
            return None
        try:
            value = function(*arguments)
        except self.library.NVMLError as error:
            self._raise_if_gone(f"{name} of {uuid or 'the driver'}", error)
            self.reasons[uuid, name] = str(error)
            return None
        self.reasons.pop((uuid, name), None)
        return value

    def _raise_if_gone(self, call: str, error: Any) -> None:
        """Raise DeviceLostError if the error of a call means that no later one succeeds."""
        if error.value in self._gone:
            raise DeviceLostError(f"{call}: {error}") from error

    def read(self, uuid: str, name: str, *arguments: Any) -> Any:
        """Call a function of a GPU, by its UUID with or without NVML's prefix: CUDA's have none."""
        if uuid not in self._handles:
            find = "nvmlDeviceGetHandleByUUID"
            handle = self.call(uuid, find, uuid) or self.call(uuid, find, f"GPU-{uuid}")
            if not handle:
                why = self.reasons[uuid, find]
                raise DeviceLostError(
                    f"NVML knows no GPU {uuid}: {why}. Slices of GPUs (MIG) are not read."
                )
            self._handles[uuid] = handle
        return self.call(uuid, name, self._handles[uuid], *arguments)

    def fields(self, uuid: str, names: Collection[str]) -> dict[str, Any]:
        """Return the values of fields by name, read in one call; those without one are left out."""
        # An older nvidia-ml-py lacks some.
        numbered = [name for name in names if hasattr(self.library, name)]
        numbers = [getattr(self.library, name) for name in numbered]
        values = self.read(uuid, "nvmlDeviceGetFieldValues", numbers) or ()
        known = {}
        for name, value in zip(numbered, values, strict=False):
            # Each field has a return code of its own.
            if value.nvmlReturn == self.library.NVML_SUCCESS:
                known[name] = getattr(value.value, MEMBERS[value.valueType])
            else:
                self._raise_if_gone(f"{name} of {uuid}", self.library.NVMLError(value.nvmlReturn))
        return known

    def driver_version(self) -> str | None:
        """Return the driver's version."""
        version: str | None = self.call("", "nvmlSystemGetDriverVersion")
        return version

    def describe(self, uuid: str) -> dict[str, Any]:
        """Return the fields of ``Device`` that NVML knows of a GPU.

        Raises:
            DeviceLostError: there is none of that UUID, or it is lost.
        """
        clock = "nvmlDeviceGetMaxClockInfo"
        return {
            "uuid": self.read(uuid, "nvmlDeviceGetUUID") or uuid,
            "power_limit_w": _watts(self.read(uuid, "nvmlDeviceGetEnforcedPowerLimit")),
            "power_default_w": _watts(self.read(uuid, "nvmlDeviceGetPowerManagementDefaultLimit")),
            "sm_clock_limit_mhz": self.read(uuid, clock, self.library.NVML_CLOCK_SM),
            "memory_clock_limit_mhz": self.read(uuid, clock, self.library.NVML_CLOCK_MEM),
            "energy": energy_source(GpuMeter(self, uuid)),
        }

    def memory(self, uuid: str) -> Any:
        """Return memory information: version 2, in which the driver's reserve is apart, or 1.

        None where the total is 0, as on a GPU that shares the system's memory
        (github.com/Syllo/nvtop/pull/411).
        """
        name = "nvmlDeviceGetMemoryInfo"
        memory = self.read(uuid, name, self.library.nvmlMemory_v2) or self.read(uuid, name)
        return memory if memory and memory.total else None

    def process_bytes(self, uuid: str) -> dict[int, int | None] | None:
        """Return the memory of each process that computes on the GPU, in bytes."""
        processes = self.read(uuid, RUNNING)
        if processes is None:
            return None
        return {process.pid: process.usedGpuMemory for process in processes}

    def power_w(self, uuid: str) -> float | None:
        """Return the power in watts: instantaneous where it is offered, else an average."""
        instant = "NVML_FI_DEV_POWER_INSTANT"
        instant_mw = self.fields(uuid, [instant]).get(instant)
        # Some cards answer 0 for a power that they do not know.
        return _watts(instant_mw or self.read(uuid, POWER))

    def energy_problem(self, uuid: str) -> str:
        """Return why neither energy nor power is known."""
        silent = "the GPU answers, but not with a figure"
        energy, power = (self.reasons.get((uuid, name), silent) for name in (ENERGY, POWER))
        return f"the GPU tells neither energy nor power (energy: {energy}; power: {power})"

    def clock_event_reasons(self, uuid: str) -> tuple[str, ...] | None:
        """Return the active reasons for the clocks, by the names of ``REASONS``."""
        # By the name that drivers before 535 have, too.
        bits = self.read(uuid, "nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None:
            return None
        return tuple(name for bit, name in REASONS.items() if bits & bit)

    def process_loads(self, uuid: str) -> Callable[[], dict[int, float]]:
        """Begin to watch which processes compute, by the driver's samples, each of 1/6 s to 1 s.

        Of each process the driver may give one sample, whose time stamp may lie seconds before the
        others' (github.com/NVIDIA/go-nvml/issues/51). None is given on some cards, and without the
        permission.

        Returns:
            A function that returns, of each process that was sampled since the last call, the
            largest share of a sample's time that its kernels ran, in per cent.
        """
        since_us = 0

        def read() -> dict[int, float]:
            nonlocal since_us
            older, newer = SAMPLED
            samples = self.read(uuid, older, since_us) or self.read(uuid, newer, since_us)
            loads: dict[int, float] = {}
            latest_us = since_us
            for entry in samples or ():
                # The driver may leave entries of its buffer unwritten or stale.
                if entry.timeStamp > since_us and entry.pid and 0 < entry.smUtil <= 100:
                    loads[entry.pid] = max(float(entry.smUtil), loads.get(entry.pid, 0.0))
                    latest_us = max(latest_us, entry.timeStamp)
            since_us = latest_us
            return loads

        read()  # passes over what was sampled before
        return read

    def sample(self, uuid: str, placement: str) -> Sample:
        """Read everything that telemetry holds."""
        rates = self.read(uuid, "nvmlDeviceGetUtilizationRates")
        memory = self.memory(uuid)
        # The newer function for the temperature is not in drivers of 2024.
        temperature = self.read(uuid, "nvmlDeviceGetTemperature", self.library.NVML_TEMPERATURE_GPU)
        clock = "nvmlDeviceGetClockInfo"
        reasons = self.clock_event_reasons(uuid)
        return Sample(
            time_s=time.time(),
            placement=placement,
            uuid=uuid,
            utilization_pct=rates.gpu if rates else None,
            memory_used_bytes=memory.used if memory else None,
            power_w=self.power_w(uuid),
            temperature_c=temperature,
            sm_clock_mhz=self.read(uuid, clock, self.library.NVML_CLOCK_SM),
            memory_clock_mhz=self.read(uuid, clock, self.library.NVML_CLOCK_MEM),
            throttle_reasons=None if reasons is None else "+".join(reasons) or NO_REASON,
        )


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts else None


class ThrottleTimes:
    """How long each reason held the clocks down between two calls, by ``THROTTLE_FIELDS``.

    A counter that grew by more than the time since the last call is not read again: the numbers of
    some of NVML's fields differ between drivers, so that another quantity may answer.
    """

    def __init__(self, monitor: Monitor, uuid: str) -> None:
        self._monitor = monitor
        self._uuid = uuid
        self._last_ns = monitor.fields(uuid, THROTTLE_FIELDS)

    @property
    def counted(self) -> frozenset[str]:
        """The reasons whose time is counted."""
        return frozenset(THROTTLE_FIELDS[name] for name in self._last_ns)

    def since(self, elapsed_s: float) -> dict[str, float]:
        """Return the seconds since the last call by reason, without those that did not hold."""
        before_ns = self._last_ns
        now_ns = self._monitor.fields(self._uuid, THROTTLE_FIELDS)
        self._last_ns = {}
        held: dict[str, float] = {}
        for name, last_ns in before_ns.items():
            next_ns = now_ns.get(name, last_ns)
            growth_s = (next_ns - last_ns) / 1e9
            if growth_s > elapsed_s + LAG_S:
                continue
            self._last_ns[name] = next_ns
            if growth_s > 0:  # a counter that fell was reset
                reason = THROTTLE_FIELDS[name]
                held[reason] = max(held.get(reason, 0.0), growth_s)
        return held


def open_monitor() -> Monitor | None:
    """Start NVML; None where it does not start (``monitor_problem`` says why)."""
    try:
        return Monitor()
    except RuntimeError:
        return None


def monitor_problem() -> str | None:
    """Return why ``open_monitor`` returns None; None when NVML starts."""
    try:
        Monitor().close()
    except RuntimeError as problem:
        return str(problem)
    return None


@dataclass(frozen=True, slots=True)
class GpuMeter:
    """Energy and power of one GPU; raises ``DeviceLostError`` when it is lost."""

    monitor: Monitor
    uuid: str

    def energy_j(self) -> float | None:
        """Return the energy counter, in joules from any beginning; it moves every 100 ms or so."""
        energy_mj = self.monitor.read(self.uuid, ENERGY)
        return None if energy_mj is None else energy_mj / 1000

    def power_w(self) -> float | None:
        """Return the power now, in watts; None or 0 is unknown."""
        return self.monitor.power_w(self.uuid)


def meters(monitor: Monitor, device: Device) -> tuple[GpuMeter, ...]:
    """Return the meter of a device's GPU, or of each that train together; none for a CPU."""
    return tuple(GpuMeter(monitor, uuid) for uuid in device.uuids or (device.uuid,) if uuid)


def energy_source(meter: GpuMeter) -> Source | None:
    """Return ``counter`` where the counter ticks, ``power`` where only that is known, or None."""
    first = meter.energy_j()
    until_s = time.monotonic() + SILENT_S
    while first is not None and time.monotonic() < until_s:
        time.sleep(POLL_S)
        now = meter.energy_j()
        if now is None or now < first:
            break
        if now > first:
            return "counter"
    return "power" if meter.power_w() else None
