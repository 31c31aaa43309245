"""The interface to a GPU vendor's management library, without torch: telemetry, energy, throttling, processes.

Every reading ends in one of three ways: a value in the unit that its name says; None, because the driver or the card
does not offer it, this user may not read it, or the call failed while the GPU keeps working; or ``DeviceLostError``,
because the GPU or its driver is gone. GPUs go by UUID, because the library's order of GPUs is not the runtime's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import psutil

from bench.results.records import Device, Sample

NO_REASON = "none"
"""The throttle reason of a sample when none is active, to tell it from unknown."""
POWER_CAP = "sw_power_cap"
"""The throttle reason that is the power limit."""
ENERGY_FUNCTIONS = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage")
"""Those of NVML that read energy and power."""
POLL_S = 0.005
"""How often an energy counter is polled."""
SILENT_S = 1.0
"""A counter that has not moved for this long does not tick."""
SAMPLE_S = 1.1
"""A sample of a process is known at most this long after it began."""
LAG_S = 2.0
"""More than the driver's counters may lag: they move in steps, of about 100 ms."""

Source = Literal["counter", "power"]
"""The reading that a GPU's energy comes from."""


class DeviceLostError(Exception):
    """The GPU or its driver does not answer any more, or there is no such GPU; the message says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU, or a part of one, as the library describes it; None is unknown."""

    uuid: str
    name: str | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    power_limit_w: float | None
    """The limit that is enforced now."""
    power_default_w: float | None
    model: str | None
    """The compute capability as major.minor."""
    sm_clock_limit_mhz: int | None
    memory_clock_limit_mhz: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLoad:
    """A sample of a process's kernels."""

    pid: int
    pct: float
    """The share of the sample's time that they ran."""


class ThrottleTimes:
    """How long each reason held the clocks down between two calls, by the library's counters.

    A counter that grew by more than the time since the last call is not read again: the numbers of some of NVML's
    fields differ between drivers, so that another quantity may answer.
    """

    def __init__(self, read: Callable[[Collection[str]], dict[str, float]], reasons: Mapping[str, str]) -> None:
        """Begin to count.

        Args:
            read: returns the values of the named counters in seconds, without those that do not answer.
            reasons: the reason whose time each counter counts, by the counter's name.
        """
        self._read, self._last = read, read(reasons)
        self._reasons = {name: reason for name, reason in reasons.items() if name in self._last}

    @property
    def counted(self) -> frozenset[str]:
        """The reasons whose time is counted."""
        return frozenset(self._reasons.values())

    def since(self, elapsed_s: float) -> dict[str, float]:
        """Return the seconds since the last call by reason, without those that did not hold."""
        now, last = self._read(self._reasons), self._last
        self._last = last | now
        held: dict[str, float] = {}
        for name, reason in list(self._reasons.items()):
            growth_s = now[name] - last.get(name, now[name]) if name in now else 0.0
            if growth_s > elapsed_s + LAG_S:
                del self._reasons[name]
            elif growth_s > 0:  # a counter that fell was reset
                held[reason] = max(held.get(reason, 0.0), growth_s)
        return held


class Monitor(AbstractContextManager["Monitor"], ABC):
    """An initialised library; a context manager that shuts it down."""

    def __init__(self, library: Any, error: type[Exception], gone: Collection[object]) -> None:
        """Take the Python module, the exception that its functions raise, and codes after which no call succeeds."""
        self.library, self._error, self._gone = library, error, gone
        self.reasons: dict[tuple[str, str], str] = {}
        """Why the last call of a function returned None, by UUID and function."""

    def __exit__(self, *_error: object) -> None:
        self.close()

    def call(self, uuid: str, name: str, *arguments: Any) -> Any:
        """Call the function of that name; None if it fails or this package lacks it (``reasons`` says why).

        Raises:
            DeviceLostError: the GPU, or its driver, is gone.
        """
        function = getattr(self.library, name, None)
        if function is None:
            self.reasons[uuid, name] = "this nvidia-ml-py does not offer it"
            return None
        try:
            value = function(*arguments)
        except self._error as error:
            self.raise_if_gone(f"{name} of {uuid or 'the driver'}", error)
            self.reasons[uuid, name] = " ".join(str(error).split())
            return None
        self.reasons.pop((uuid, name), None)
        return value

    def raise_if_gone(self, call: str, error: Any) -> None:
        """Raise DeviceLostError if the error of a call means that no later one succeeds."""
        if getattr(error, "value", getattr(error, "err_code", None)) in self._gone:
            raise DeviceLostError(f"{call}: {error}") from error

    @abstractmethod
    def close(self) -> None:
        """Shut the library down."""

    @abstractmethod
    def driver_version(self) -> str | None:
        """Return the driver's version."""

    @abstractmethod
    def gpu(self, uuid: str) -> Gpu:
        """Describe one GPU; raise DeviceLostError if there is none of that UUID, or it is lost."""

    @abstractmethod
    def memory_used_bytes(self, uuid: str) -> int | None:
        """Return the used memory in bytes, without the driver's reserve where that is known."""

    @abstractmethod
    def process_bytes(self, uuid: str) -> dict[int, int | None] | None:
        """Return the memory of each process that computes on the GPU, in bytes."""

    @abstractmethod
    def power_w(self, uuid: str) -> float | None:
        """Return the power in watts: instantaneous where it is offered, else an average. 0 is unknown."""

    @abstractmethod
    def total_energy_j(self, uuid: str) -> float | None:
        """Return the energy counter in joules."""

    def energy_problem(self, uuid: str) -> str:
        """Return why neither energy nor power is known."""
        silent = "the GPU answers, but not with a figure"
        energy, power = (self.reasons.get((uuid, function), silent) for function in ENERGY_FUNCTIONS)
        return f"the GPU tells neither energy nor power (energy: {energy}; power: {power})"

    @abstractmethod
    def temperature_c(self, uuid: str) -> float | None:
        """Return the temperature of the die in degrees Celsius."""

    @abstractmethod
    def clocks_mhz(self, uuid: str) -> tuple[int | None, int | None]:
        """Return the current clocks of the multiprocessors and of the memory in MHz."""

    @abstractmethod
    def utilization_pct(self, uuid: str) -> float | None:
        """Return the share of the last sample period in which a kernel ran, in percent."""

    @abstractmethod
    def clock_event_reasons(self, uuid: str) -> tuple[str, ...] | None:
        """Return the active reasons for the clocks, by the names of ``nvidia.REASONS``."""

    @abstractmethod
    def throttle_times(self, uuid: str) -> ThrottleTimes:
        """Begin to count how long the clocks are held down."""

    @abstractmethod
    def process_loads(self, uuid: str) -> Callable[[], list[ProcessLoad] | None]:
        """Begin to watch which processes compute.

        Returns:
            A function that returns the samples since its last call, without those in which no kernel ran; None if
            unknown.
        """

    def foreign_processes(self, uuid: str, own_pids: Collection[int]) -> int | None:
        """Return the number of processes on the GPU that are neither in ``own_pids`` nor children of those.

        None if it is unknown, also where the library names a process that does not exist here: in a container it may
        give the host's ids, and ours would count as foreign.
        """
        processes = self.process_bytes(uuid)
        if processes is None:
            return None
        others = processes.keys() - own_pids
        if not all(psutil.pid_exists(pid) for pid in others):
            return None
        return sum(not _is_child(pid, own_pids) for pid in others)

    def sample(self, uuid: str, placement: str, own_pids: Collection[int] | None = None) -> Sample:
        """Read everything that telemetry holds; ``own_pids`` None leaves foreign processes unknown."""
        reasons = self.clock_event_reasons(uuid)
        sm_clock_mhz, memory_clock_mhz = self.clocks_mhz(uuid)
        return Sample(
            time_s=time.time(),
            placement=placement,
            uuid=uuid,
            utilization_pct=self.utilization_pct(uuid),
            memory_used_bytes=self.memory_used_bytes(uuid),
            power_w=self.power_w(uuid),
            temperature_c=self.temperature_c(uuid),
            sm_clock_mhz=sm_clock_mhz,
            memory_clock_mhz=memory_clock_mhz,
            throttle_reasons=None if reasons is None else "+".join(reasons) or NO_REASON,
            foreign_processes=None if own_pids is None else self.foreign_processes(uuid, own_pids),
        )


def _is_child(pid: int, parents: Collection[int]) -> bool:
    """Return whether a process descends from one of some others, as those that train together do from their worker."""
    try:
        return any(parent.pid in parents for parent in psutil.Process(pid).parents())
    except psutil.Error:  # it has just ended, or hides from us
        return False


def open_monitor() -> Monitor | None:
    """Start NVML; None where it does not start (``monitor_problem`` says why)."""
    from bench.devices.nvidia import Nvml

    try:
        return Nvml()
    except RuntimeError:
        return None


def monitor_problem() -> str | None:
    """Return why ``open_monitor`` returns None; None when NVML starts."""
    from bench.devices.nvidia import Nvml

    try:
        Nvml().close()
    except RuntimeError as problem:
        return str(problem)
    return None


@dataclass(frozen=True, slots=True)
class GpuMeter:
    """Energy and power of one GPU; raises ``DeviceLostError`` when it is lost."""

    monitor: Monitor
    uuid: str

    def energy_j(self) -> float | None:
        """Return the energy counter, in joules from any beginning."""
        return self.monitor.total_energy_j(self.uuid)

    def power_w(self) -> float | None:
        """Return the power now, in watts; None or 0 is unknown."""
        return self.monitor.power_w(self.uuid)

    def is_capped(self) -> bool:
        """Return whether the power limit holds the clocks down now; False if unknown."""
        return POWER_CAP in (self.monitor.clock_event_reasons(self.uuid) or ())


def meters(monitor: Monitor, device: Device) -> tuple[GpuMeter, ...]:
    """Return the meter of a device's GPU, or of each of those that train together; none for a CPU."""
    uuids = device.uuids or ((device.uuid,) if device.uuid else ())
    return tuple(GpuMeter(monitor, uuid) for uuid in dict.fromkeys(uuids))


def energy_source(
    meter: GpuMeter, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> Source | None:
    """Return ``counter`` where the energy counter ticks, ``power`` where only power is known, else None."""
    first, until_s = meter.energy_j(), clock() + SILENT_S
    while first is not None and clock() < until_s:
        sleep(POLL_S)
        now = meter.energy_j()
        if now is None or now < first:
            break
        if now > first:
            return "counter"
    return "power" if meter.power_w() else None


def joint_source(sources: Collection[str | None]) -> Source | None:
    """Return the source for GPUs that train together: the counters if each GPU has one, else power.

    Where only some of them have a source it is ``power`` all the same, so that the energy trial names those without.
    """
    return "counter" if set(sources) == {"counter"} else "power" if any(sources) else None
