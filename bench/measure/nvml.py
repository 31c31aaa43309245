"""What NVML says of the GPUs, converted once to this project's units.

The only file that imports pynvml, and only when it is called. Every reading ends in one of three ways:

- a value, in the unit that its name tells;
- None: it cannot be known here. The driver or the card does not offer it, this user may not read it, or the
  call failed oddly while the GPU goes on working. Why is kept in ``Nvml.reasons``;
- ``NvmlFailure``: the GPU or the driver is gone, so asking again is useless.

GPUs go by UUID, for CUDA's order of GPUs is not NVML's. A MIG slice has a UUID of its own ("MIG-…"): its memory and
processes are the slice's, its clocks, temperature and clock event reasons those of the board it is a part of, and its
power and energy are unknown, because the board's are shared with the other slices.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil

from bench.measure.nvml_calls import Calls, NvmlFailure, is_child
from bench.records import Sample

__all__ = ["NO_REASON", "REASONS", "Gpu", "Nvml", "NvmlFailure", "nvml_problem", "open_nvml"]

REASONS = {
    0x001: "idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Names of nvml.h's clock event reasons, by bit; they were called throttle reasons before driver 535."""
NO_REASON = "none"
"""What a sample says when no reason is active, so that this is not mistaken for unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU, or a MIG slice of one, as NVML describes it; None is unknown."""

    nvml_index: int | None
    """NVML's own index, of the whole board; CUDA may count otherwise."""
    uuid: str
    name: str | None
    memory_total_bytes: int | None
    power_limit_w: float | None
    """The limit that is enforced now; unknown for a MIG slice."""
    compute_capability: str | None
    """As major.minor."""
    processes: tuple[int, ...] | None
    """Process ids that compute on it."""
    memory_free_bytes: int | None = None
    power_default_w: float | None = None
    sm_clock_limit_mhz: int | None = None
    memory_clock_limit_mhz: int | None = None


def _start() -> tuple[Any, str]:
    """Return pynvml, initialised, and an empty text; or None and why not."""
    try:
        import pynvml
    except ImportError as error:
        return None, f"nvidia-ml-py cannot be imported: {error}"
    library: Any = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return None, f"NVML does not start: {error}"
    return library, ""


def open_nvml() -> Nvml | None:
    """Start NVML; None where there is no NVIDIA driver, or none that answers (``nvml_problem`` says why)."""
    pynvml, _ = _start()
    return None if pynvml is None else Nvml(pynvml)


def nvml_problem() -> str | None:
    """Say why ``open_nvml`` gives None; None when NVML starts."""
    pynvml, problem = _start()
    if pynvml is not None:
        Nvml(pynvml).close()
    return problem or None


class Nvml:
    """NVML, initialised; a context manager that shuts it down. Made by ``open_nvml``."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml, self._open = pynvml, True
        self.calls = Calls(pynvml)
        """For readings that have a module of their own."""
        self._call, self._target = self.calls.call, self.calls.target

    @property
    def reasons(self) -> dict[tuple[str, str], str]:
        """Why a reading is None: (uuid, NVML function or field) to NVML's words for it."""
        return self.calls.reasons

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Shut NVML down; a second time does nothing."""
        if self._open:
            self._open = False
            with suppress(self._pynvml.NVMLError):  # A driver that is gone needs no shutting down.
                self._pynvml.nvmlShutdown()

    def driver_version(self) -> str | None:
        """Return the driver's version, such as 580.65.06."""
        version = self._call("", "nvmlSystemGetDriverVersion")
        return None if version is None else str(version)

    def gpus(self) -> list[Gpu]:
        """Describe every board that answers, in NVML's order. MIG slices are not listed: ask ``gpu``."""
        found = []
        for index in range(self._call("", "nvmlDeviceGetCount") or 0):
            try:
                handle = self._call("", "nvmlDeviceGetHandleByIndex", index)
                uuid = None if handle is None else self._call("", "nvmlDeviceGetUUID", handle)
                if uuid is not None:
                    found.append(self.gpu(uuid))
            except NvmlFailure:
                continue  # One lost GPU must not hide the others.
        return found

    def gpu(self, uuid: str) -> Gpu:
        """Describe one GPU or MIG slice; ``NvmlFailure`` where there is none of that UUID, or it is lost."""
        target = self._target(uuid)
        memory = self.calls.memory(uuid)
        limit_mw = None if target.is_slice else self._call(uuid, "nvmlDeviceGetEnforcedPowerLimit", target.handle)
        default_mw = limit_mw and self._call(uuid, "nvmlDeviceGetPowerManagementDefaultLimit", target.handle)
        capability = self._call(uuid, "nvmlDeviceGetCudaComputeCapability", target.board)
        return Gpu(
            nvml_index=self._call(uuid, "nvmlDeviceGetIndex", target.board),
            uuid=self._call(uuid, "nvmlDeviceGetUUID", target.handle) or uuid,
            name=self._call(uuid, "nvmlDeviceGetName", target.handle),
            memory_total_bytes=None if memory is None else memory.total,
            power_limit_w=limit_mw / 1000 if limit_mw else None,
            compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
            processes=self.process_pids(uuid),
            memory_free_bytes=None if memory is None else memory.free,
            power_default_w=default_mw / 1000 if default_mw else None,
            sm_clock_limit_mhz=self._clock_mhz(uuid, self._pynvml.NVML_CLOCK_SM, "MaxClockInfo"),
            memory_clock_limit_mhz=self._clock_mhz(uuid, self._pynvml.NVML_CLOCK_MEM, "MaxClockInfo"),
        )

    def memory_used_bytes(self, uuid: str) -> int | None:
        """Return what the driver says is used, in bytes; without its own reserve where the driver tells that apart."""
        memory = self.calls.memory(uuid)
        return None if memory is None else memory.used

    def power_w(self, uuid: str) -> float | None:
        """Return the power in watts: instantaneous where the driver offers it, else as nvidia-smi averages it."""
        target = self._target(uuid)
        if target.is_slice:
            return None
        # Some cards answer 0 for a power that they do not know, so 0 falls through, and ends as unknown.
        instant = self.calls.field(uuid, "NVML_FI_DEV_POWER_INSTANT")
        power_mw = instant or self._call(uuid, "nvmlDeviceGetPowerUsage", target.handle)
        return power_mw / 1000 if power_mw else None

    def total_energy_j(self, uuid: str) -> float | None:
        """Return the energy counter in joules, counted since the driver was loaded; it ticks about every 100 ms."""
        target = self._target(uuid)
        if target.is_slice:
            return None
        energy_mj = self._call(uuid, "nvmlDeviceGetTotalEnergyConsumption", target.handle)
        return None if energy_mj is None else energy_mj / 1000

    def temperature_c(self, uuid: str) -> float | None:
        """Return the temperature of the GPU's die in degrees Celsius."""
        board, sensor = self._target(uuid).board, self._pynvml.NVML_TEMPERATURE_GPU
        celsius = self._call(uuid, "nvmlDeviceGetTemperatureV", board, sensor)
        if celsius is None:
            celsius = self._call(uuid, "nvmlDeviceGetTemperature", board, sensor)
        return None if celsius is None else float(celsius)

    def sm_clock_mhz(self, uuid: str) -> int | None:
        """Return the current clock of the multiprocessors in MHz."""
        return self._clock_mhz(uuid, self._pynvml.NVML_CLOCK_SM)

    def memory_clock_mhz(self, uuid: str) -> int | None:
        """Return the current clock of the memory in MHz."""
        return self._clock_mhz(uuid, self._pynvml.NVML_CLOCK_MEM)

    def utilization_pct(self, uuid: str) -> float | None:
        """Return the share of the driver's last sample period in which a kernel ran, in percent."""
        rates = self._call(uuid, "nvmlDeviceGetUtilizationRates", self._target(uuid).handle)
        return None if rates is None else float(rates.gpu)

    def clock_event_reasons(self, uuid: str) -> tuple[str, ...] | None:
        """Name why the clocks are where they are (values of ``REASONS``, in the order of their bits)."""
        board = self._target(uuid).board
        bits = self._call(uuid, "nvmlDeviceGetCurrentClocksEventReasons", board)
        if bits is None:
            bits = self._call(uuid, "nvmlDeviceGetCurrentClocksThrottleReasons", board)
        if bits is None:
            return None
        names = tuple(name for bit, name in REASONS.items() if bits & bit)
        return names if not bits & ~sum(REASONS) else (*names, "other")

    def process_pids(self, uuid: str) -> tuple[int, ...] | None:
        """Return the ids of the processes that compute on the GPU, each once, ascending."""
        handle = self._target(uuid).handle
        # By version, for the function without one raises what is no NVMLError on drivers before 510.
        found = self._call(uuid, "nvmlDeviceGetComputeRunningProcesses_v3", handle)
        if found is None:
            found = self._call(uuid, "nvmlDeviceGetComputeRunningProcesses_v2", handle)
        return None if found is None else tuple(sorted({process.pid for process in found}))

    def foreign_processes(self, uuid: str, own_pids: Collection[int]) -> int | None:
        """Count the processes on the GPU that are neither in ``own_pids`` nor children of those.

        None where it cannot be told, which is also the case when NVML names a process that does not exist here: in a
        container it may give the host's ids, and ours would be counted as foreign.
        """
        pids = self.process_pids(uuid)
        others = None if pids is None else set(pids).difference(own_pids)
        if others is None or not all(psutil.pid_exists(pid) for pid in others):
            return None
        return sum(not is_child(pid, own_pids) for pid in others)

    def sample(self, uuid: str, placement: str, own_pids: Collection[int] | None = None) -> Sample:
        """Read everything that telemetry holds; ``own_pids`` None leaves foreign processes unknown."""
        reasons = self.clock_event_reasons(uuid)
        return Sample(
            time_s=time.time(),
            placement=placement,
            uuid=uuid,
            utilization_pct=self.utilization_pct(uuid),
            memory_used_bytes=self.memory_used_bytes(uuid),
            power_w=self.power_w(uuid),
            temperature_c=self.temperature_c(uuid),
            sm_clock_mhz=self.sm_clock_mhz(uuid),
            memory_clock_mhz=self.memory_clock_mhz(uuid),
            throttle_reasons=None if reasons is None else "+".join(reasons) or NO_REASON,
            foreign_processes=None if own_pids is None else self.foreign_processes(uuid, own_pids),
        )

    def _clock_mhz(self, uuid: str, kind: int, which: str = "ClockInfo") -> int | None:
        clock: int | None = self._call(uuid, f"nvmlDeviceGet{which}", self._target(uuid).board, kind)
        return clock
