"""NVIDIA's GPUs: what their generations can do, and NVML, through pynvml, as a ``Monitor``.

pynvml is imported only when NVML is started. A MIG slice has a UUID of its own ("MIG-…"): its memory and processes are
the slice's, its clocks, temperature and clock event reasons those of its board, and its power and energy are unknown,
because the board's are shared with the other slices.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bench.devices.monitor import DeviceLostError, Gpu, Monitor
from bench.spec.precisions import Feature

GENERATIONS = {
    (3, 0): "Kepler",
    (5, 0): "Maxwell",
    (6, 0): "Pascal",
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
    (13, 0): "newer than Blackwell",
}
"""The first compute capability of each generation (CUDA C++ Programming Guide, "Compute Capabilities")."""
FEATURES: dict[Feature, tuple[tuple[int, int], str]] = {
    "tf32": ((8, 0), "TF32 tensor cores"),
    "fp16": ((5, 3), "float16 arithmetic"),
    "bf16": ((8, 0), "bfloat16 arithmetic"),
    "fp8": ((8, 9), "float8 tensor cores"),
}
"""The first compute capability with each feature (CUDA C++ Programming Guide, "Arithmetic Instructions")."""


class Nvidia:
    """What torch's CUDA device properties mean; a ``Vendor``."""

    runtime = "CUDA"
    library = "NVIDIA"
    visible: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)
    hint = "Install a build for it: Pascal and Volta need one for CUDA 12.6 or older."

    def uuid(self, properties: Any) -> str:
        """Return the UUID, without NVML's prefix."""
        return str(properties.uuid)

    def model(self, properties: Any) -> str:
        """Return the name of the architecture as torch's builds list it."""
        return f"sm_{properties.major}{properties.minor}"

    def compute_capability(self, properties: Any) -> str | None:
        """Return the compute capability as major.minor."""
        return f"{properties.major}.{properties.minor}"

    def architecture(self, model: str) -> str:
        """Return the generation of a model such as sm_90, or of a compute capability such as 9.0."""
        capability = _capability(model)
        older = [name for first, name in sorted(GENERATIONS.items()) if capability is not None and first <= capability]
        return older[-1] if older else model

    def has_kernels(self, model: str, arch_list: Sequence[str]) -> bool:
        """Return whether a torch build runs on a GPU.

        It does if it holds a binary of the same major and no later minor version, or PTX of no later one
        (CUDA C++ Programming Guide, "Application Compatibility").
        """
        capability = _capability(model)
        for arch in arch_list:
            built = _capability(arch)
            if capability is None or built is None or built > capability:
                continue
            if arch.startswith("compute") or built[0] == capability[0]:
                return True
        return False

    def lacks(self, feature: Feature, model: str) -> str | None:
        """Return the hardware that a feature needs and this GPU lacks; None if it has it."""
        capability = _capability(model)
        if not feature or capability is None:
            return None
        need, what = FEATURES[feature]
        return None if capability >= need else f"{what}, from sm_{need[0]}{need[1]} on; this GPU is {model}"


def _capability(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(?:(?:sm|compute)_)?(\d+)\.?(\d)[a-z]?", text)
    return (int(match[1]), int(match[2])) if match else None


# Codes after which no later call can succeed.
_GONE = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
# Members of nvmlValue_t in the order of nvmlValueType_t.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

TOO_OLD = "this nvidia-ml-py does not offer it"


@dataclass(frozen=True, slots=True)
class Target:
    """What a UUID stands for."""

    handle: Any
    board: Any
    """Handle of the whole board; the same as ``handle`` unless this is a MIG slice."""
    is_slice: bool


class Calls:
    """Calls of an initialised pynvml module: each returns a value, or None with a reason, or raises DeviceLostError."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml
        self.reasons: dict[tuple[str, str], str] = {}
        """Why a reading is None: (uuid, NVML function) to NVML's words for it; the UUID is empty for the driver."""
        self._targets: dict[str, Target] = {}
        self._gone = {getattr(pynvml, f"NVML_ERROR_{name}", None) for name in _GONE}

    def target(self, uuid: str) -> Target:
        """Find a GPU or MIG slice by its UUID, with or without NVML's prefix.

        Raises:
            DeviceLostError: there is none, or it is lost.
        """
        if uuid not in self._targets:
            # CUDA's libraries print UUIDs without the prefix that NVML wants.
            for name in (uuid, f"GPU-{uuid}", f"MIG-{uuid}"):
                handle = self.call(uuid, "nvmlDeviceGetHandleByUUID", name)
                if handle is not None:
                    break
            else:
                raise DeviceLostError(f"NVML knows no GPU {uuid}: {self.reasons[uuid, 'nvmlDeviceGetHandleByUUID']}.")
            is_slice = name.startswith("MIG-")
            board = self.call(uuid, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if is_slice else handle
            self._targets[uuid] = Target(handle, handle if board is None else board, is_slice)
        return self._targets[uuid]

    def call(self, uuid: str, name: str, *arguments: Any) -> Any:
        """Call the function of that name; None where this nvidia-ml-py is too old to have it."""
        function = getattr(self.pynvml, name, None)
        if function is None:
            self.reasons[uuid, name] = TOO_OLD
            return None
        return self._try(uuid, name, function, *arguments)

    def memory(self, uuid: str) -> Any:
        """Return memory information, version 2 (the driver's reserve apart) where there is one, else version 1."""
        # gpustat, once imported, has replaced this function by one without the version argument.
        function = inspect.unwrap(self.pynvml.nvmlDeviceGetMemoryInfo)
        handle, name = self.target(uuid).handle, "nvmlDeviceGetMemoryInfo"
        memory = self._try(uuid, f"{name}_v2", function, handle, self.pynvml.nvmlMemory_v2)
        return self._try(uuid, name, function, handle) if memory is None else memory

    def field(self, uuid: str, name: str) -> Any:
        """Return the value of the board's field of that name."""
        return self.fields(uuid, (name,)).get(name)

    def fields(self, uuid: str, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of the board's fields of those names, read in one call; those without one are left out."""
        known = [name for name in names if hasattr(self.pynvml, name)]
        self.reasons |= {(uuid, name): TOO_OLD for name in names if name not in known}
        numbers = [getattr(self.pynvml, name) for name in known]
        values = self.call(uuid, "nvmlDeviceGetFieldValues", self.target(uuid).board, numbers) if known else None
        found = {}
        for name, value in zip(known, values or (), strict=False):
            code = value.nvmlReturn  # Each field has a return code of its own.
            if code in self._gone:
                raise DeviceLostError(f"{name} of {uuid}: {self.pynvml.NVMLError(code)}")
            if code == self.pynvml.NVML_SUCCESS:
                found[name] = getattr(value.value, _MEMBERS[value.valueType])
                self.reasons.pop((uuid, name), None)
            else:
                self.reasons[uuid, name] = str(self.pynvml.NVMLError(code))
        return found

    def listing(self, uuid: str, name: str, *arguments: Any) -> list[Any] | None:
        """Call a function that lists something: empty where NVML says that there is nothing, None as in ``call``."""
        function = getattr(self.pynvml, name, None)
        if function is None:
            self.reasons[uuid, name] = TOO_OLD
            return None
        # nvidia-ml-py raises "success" where the driver answers at once that the list has no entries.
        nothing = (self.pynvml.NVML_ERROR_NOT_FOUND, self.pynvml.NVML_SUCCESS)

        def found() -> list[Any]:
            try:
                return list(function(*arguments))
            except self.pynvml.NVMLError as error:
                if error.value in nothing:
                    return []
                raise

        listed: list[Any] | None = self._try(uuid, name, found)
        return listed

    def _try(self, uuid: str, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            value = function(*arguments)
        except self.pynvml.NVMLError as error:
            if error.value in self._gone:
                raise DeviceLostError(f"{name} of {uuid or 'the driver'}: {error}") from error
            self.reasons[uuid, name] = str(error)
            return None
        self.reasons.pop((uuid, name), None)
        return value


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


class Nvml(Monitor):
    """NVML, initialised; a context manager that shuts it down. Made by ``open_nvml``."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml, self._open = pynvml, True
        self.calls = Calls(pynvml)
        self.reasons = self.calls.reasons
        self._call, self._target = self.calls.call, self.calls.target

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
            except DeviceLostError:
                continue  # One lost GPU must not hide the others.
        return found

    def gpu(self, uuid: str) -> Gpu:
        """Describe one GPU or MIG slice; ``DeviceLostError`` where there is none of that UUID, or it is lost."""
        target = self._target(uuid)
        memory = self.calls.memory(uuid)
        limit_mw = None if target.is_slice else self._call(uuid, "nvmlDeviceGetEnforcedPowerLimit", target.handle)
        default_mw = limit_mw and self._call(uuid, "nvmlDeviceGetPowerManagementDefaultLimit", target.handle)
        capability = self._call(uuid, "nvmlDeviceGetCudaComputeCapability", target.board)
        return Gpu(
            index=self._call(uuid, "nvmlDeviceGetIndex", target.board),
            uuid=self._call(uuid, "nvmlDeviceGetUUID", target.handle) or uuid,
            name=self._call(uuid, "nvmlDeviceGetName", target.handle),
            memory_total_bytes=None if memory is None else memory.total,
            power_limit_w=limit_mw / 1000 if limit_mw else None,
            model=None if capability is None else f"{capability[0]}.{capability[1]}",
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

    def process_bytes(self, uuid: str) -> dict[int, int | None] | None:
        handle = self._target(uuid).handle
        # By version: on drivers before 510 the function without one raises an error that is no NVMLError.
        processes = self._call(uuid, "nvmlDeviceGetComputeRunningProcesses_v3", handle)
        if processes is None:
            processes = self._call(uuid, "nvmlDeviceGetComputeRunningProcesses_v2", handle)
        return None if processes is None else {process.pid: process.usedGpuMemory for process in processes}

    def canonical_uuid(self, uuid: str) -> str:
        return str(self._call(uuid, "nvmlDeviceGetUUID", self._target(uuid).handle))

    def energy_problem(self, uuid: str) -> str:
        if self._target(uuid).is_slice:
            return "a MIG slice shares its board's power with the others, so its own energy is unknown"
        called = {"energy": "nvmlDeviceGetTotalEnergyConsumption", "power": "nvmlDeviceGetPowerUsage"}
        why = [
            f"{what}: {self.reasons.get((uuid, name), 'the GPU answers, but not with a figure')}"
            for what, name in called.items()
        ]
        return f"the GPU tells neither energy nor power ({'; '.join(why)})"

    def throttle_times(self, uuid: str) -> ThrottleTimes:
        return ThrottleTimes(self, uuid)

    def process_loads(self, uuid: str) -> ProcessLoads:
        return ProcessLoads(self, uuid)

    def _clock_mhz(self, uuid: str, kind: int, which: str = "ClockInfo") -> int | None:
        clock: int | None = self._call(uuid, f"nvmlDeviceGet{which}", self._target(uuid).board, kind)
        return clock


THROTTLE_COUNTERS = {
    "NVML_FI_DEV_PERF_POLICY_POWER": "sw_power_cap",
    "NVML_FI_DEV_PERF_POLICY_THERMAL": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": "hw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": "hw_power_brake",
}
"""Field of nvml.h to the clock event reason (``REASONS``) whose time it counts, in nanoseconds."""
VIOLATIONS = {"NVML_PERF_POLICY_POWER": "sw_power_cap", "NVML_PERF_POLICY_THERMAL": "sw_thermal"}
"""The same of nvmlDeviceGetViolationStatus, asked where no field tells."""
LAG_S = 2.0
"""More than the driver's counters may lag: they move in steps, of about 100 ms."""


class ThrottleTimes:
    """How long each reason held the clocks down between two calls. What answers is found out once."""

    def __init__(self, nvml: Nvml, uuid: str) -> None:
        """Take the first reading; a MIG slice has its board's."""
        self._nvml, self._uuid = nvml, uuid
        self._fields, self._violations = tuple(THROTTLE_COUNTERS), tuple(VIOLATIONS)
        self._last = self._read()
        self._fields = tuple(name for name in THROTTLE_COUNTERS if name in self._last)
        told = {THROTTLE_COUNTERS[name] for name in self._fields}
        self._violations = tuple(
            name for name, reason in VIOLATIONS.items() if name in self._last and reason not in told
        )

    @property
    def told(self) -> frozenset[str]:
        """The reasons whose time is counted here."""
        counters = {**THROTTLE_COUNTERS, **VIOLATIONS}
        return frozenset(counters[name] for name in (*self._fields, *self._violations))

    def since(self, elapsed_s: float) -> dict[str, float]:
        """Return the seconds since the last call by reason; a reason that did not hold is left out.

        Args:
            elapsed_s: time since the last call. A counter that grew by more is none of time: the numbers of some fields
                are not the same in every driver, so another quantity may answer. It is not asked again.
        """
        now, most_ns = self._read(), 1e9 * (elapsed_s + LAG_S)
        grown = {name: value - self._last.get(name, value) for name, value in now.items()}
        self._last |= now
        odd = {name for name, growth in grown.items() if growth > most_ns}
        self._fields = tuple(name for name in self._fields if name not in odd)
        self._violations = tuple(name for name in self._violations if name not in odd)
        held: dict[str, float] = {}
        for name, growth in grown.items():
            if growth > 0 and name not in odd:  # a counter that fell was reset
                reason = {**THROTTLE_COUNTERS, **VIOLATIONS}[name]
                held[reason] = max(held.get(reason, 0.0), growth / 1e9)
        return held

    def _read(self) -> dict[str, int]:
        calls = self._nvml.calls
        found: dict[str, int] = calls.fields(self._uuid, self._fields) if self._fields else {}
        for name in self._violations:
            board, policy = calls.target(self._uuid).board, getattr(calls.pynvml, name)
            violation = calls.call(self._uuid, "nvmlDeviceGetViolationStatus", board, policy)
            if violation is not None:
                found[name] = violation.violationTime
        return found


class ProcessLoads:
    """Which processes computed on a GPU between two calls."""

    def __init__(self, nvml: Nvml, uuid: str) -> None:
        """Pass over what was sampled before."""
        self._nvml, self._uuid, self._since_us = nvml, uuid, 0
        self.read()

    def read(self) -> dict[int, float] | None:
        """Return process id to the share of the time that its kernels ran, in percent, since the last call.

        Returns:
            The largest of the driver's samples, which cover 1/6 s to 1 s each. Processes without a kernel are left out.
            None where it is not told: on a MIG slice, on some cards, or without the permission.
        """
        # A slice's handle, so that NVML refuses, rather than the board's, whose processes compute elsewhere.
        handle = self._nvml.calls.target(self._uuid).handle
        samples = self._nvml.calls.listing(self._uuid, "nvmlDeviceGetProcessUtilization", handle, self._since_us)
        if samples is None:
            return None
        # The driver may leave entries of its buffer unwritten or stale.
        fresh = [one for one in samples if one.timeStamp > self._since_us and one.pid and one.smUtil <= 100]
        self._since_us = max((one.timeStamp for one in fresh), default=self._since_us)
        loads: dict[int, float] = {}
        for one in fresh:
            loads[one.pid] = max(loads.get(one.pid, 0.0), float(one.smUtil))
        return {pid: load for pid, load in loads.items() if load}
