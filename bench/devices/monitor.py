"""The interface to a GPU vendor's management library, without torch: telemetry, energy, throttling, processes.

Every reading ends in one of three ways: a value in the unit that its name says; None, because the driver or the card
does not offer it, this user may not read it, or the call failed while the GPU keeps working; or ``DeviceLostError``,
because the GPU or its driver is gone. GPUs go by UUID, because the library's order of GPUs is not the runtime's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import psutil

from bench.results.records import Device, Sample

NO_REASON = "none"
"""The throttle reason of a sample when none is active, to tell it from unknown."""
POLL_S = 0.005
"""How often an energy counter is polled."""
SILENT_S = 1.0
"""A counter that has not moved for this long does not tick."""

Source = Literal["counter", "power"]
"""What a GPU's energy is read from."""


class DeviceLostError(Exception):
    """The GPU or its driver does not answer any more, or there is no such GPU; the message says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU, or a part of one, as the library describes it; None is unknown."""

    index: int | None
    """The library's own index, of the whole board; the runtime may count otherwise."""
    uuid: str
    name: str | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    power_limit_w: float | None
    """The limit that is enforced now."""
    power_default_w: float | None
    model: str | None
    """A compute capability as major.minor, or a gfx name."""
    sm_clock_limit_mhz: int | None
    memory_clock_limit_mhz: int | None


class ThrottleTimes(Protocol):
    """How long each reason held the clocks down between two calls."""

    @property
    def counted(self) -> frozenset[str]:
        """The reasons whose time is counted."""

    def since(self, elapsed_s: float) -> dict[str, float]:
        """Return the seconds since the last call by reason, without those that did not hold."""


class Monitor(AbstractContextManager["Monitor"], ABC):
    """An initialised library; a context manager that shuts it down."""

    reasons: dict[tuple[str, str], str]
    """Why the last call of a function returned None, by UUID and function."""

    def __exit__(self, *_error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Shut the library down."""

    @abstractmethod
    def driver_version(self) -> str | None:
        """Return the driver's version."""

    @abstractmethod
    def gpus(self) -> list[Gpu]:
        """Describe every board that answers, in the library's order."""

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

    @abstractmethod
    def energy_problem(self, uuid: str) -> str:
        """Return why neither energy nor power is known."""

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
    def process_loads(self, uuid: str) -> Callable[[], dict[int, float] | None]:
        """Begin to watch which processes compute.

        Returns:
            What gives the share of the time since the last call that each process's kernels ran, in percent, without
            processes that ran none; None if unknown.
        """

    def no_energy(self, uuid: str, energy: str, power: str) -> str:
        """Say why the functions that read energy and power returned nothing."""
        silent = "the GPU answers, but not with a figure"
        no_energy, no_power = (self.reasons.get((uuid, function), silent) for function in (energy, power))
        return f"the GPU tells neither energy nor power (energy: {no_energy}; power: {no_power})"

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


def start_monitor() -> Monitor:
    """Start NVML, or else AMD SMI.

    Raises:
        RuntimeError: neither starts; the message says why NVML does not.
    """
    from bench.devices.amd import AmdSmi
    from bench.devices.nvidia import Nvml

    try:
        return Nvml()
    except RuntimeError as problem:
        try:
            return AmdSmi()
        except RuntimeError:
            raise problem from None


def open_monitor() -> Monitor | None:
    """Start NVML, or else AMD SMI; None where neither starts (``monitor_problem`` says why)."""
    try:
        return start_monitor()
    except RuntimeError:
        return None


def monitor_problem() -> str | None:
    """Return why ``open_monitor`` returns None; None when a library starts."""
    try:
        start_monitor().close()
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
