"""NVIDIA's GPUs: what their generations can do, and NVML, through pynvml, as a ``Monitor``.

A MIG slice has a UUID of its own ("MIG-…"): its memory and processes are the slice's, its clocks, temperature and clock
event reasons those of its board, and its power and energy are unknown, because it shares the board's with other slices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from bench.devices.monitor import DeviceLostError, Gpu, Monitor, ProcessLoad, ThrottleTimes
from bench.spec.generations import NVIDIA
from bench.spec.precisions import Feature

FEATURES: dict[Feature, tuple[tuple[int, int], str]] = {
    "tf32": ((8, 0), "TF32 tensor cores"),
    "cudnn-tf32": ((8, 0), "cuDNN's TF32 (without it, it is the same as fp32)"),
    "fp16": ((5, 3), "float16 arithmetic"),
    "bf16": ((8, 0), "bfloat16 arithmetic"),
    "fp8": ((8, 9), "float8 tensor cores"),
    "mxfp8": ((10, 0), "MXFP8 tensor cores"),
}
"""The first compute capability with each feature (CUDA C++ Programming Guide, "Arithmetic Instructions")."""
NO_MXFP8 = 11
"""The major capability from which on torchao has no kernels for MXFP8 (docs/capabilities.md)."""
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
SAMPLED = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
"""Functions that read processes' samples; some Blackwell boards support the newer one alone
(github.com/Project-HAMi/HAMi-core/pull/218)."""
THROTTLE_FIELDS = {
    "NVML_FI_DEV_PERF_POLICY_POWER": "sw_power_cap",
    "NVML_FI_DEV_PERF_POLICY_THERMAL": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": "hw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": "hw_power_brake",
}
"""Field of nvml.h to the clock event reason (``REASONS``) whose time it counts, in nanoseconds."""
VIOLATIONS = {"NVML_PERF_POLICY_POWER": "sw_power_cap", "NVML_PERF_POLICY_THERMAL": "sw_thermal"}
"""The same of nvmlDeviceGetViolationStatus, for reasons that no field counts."""
_GONE = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
"""Return codes after which no call succeeds."""
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t in the order of nvmlValueType_t."""


class Nvidia:
    """The meaning of torch's device properties in a build with CUDA; ``rocm.Rocm`` is the same for ROCm."""

    runtime = "CUDA"
    library = "NVIDIA"
    """The vendor, for messages about its driver."""
    visible: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)
    """Environment variables that hide GPUs."""
    hint = "Install a build for it: Pascal and Volta need one for CUDA 12.6 or older."
    """Advice where a torch build has no kernels for a GPU."""

    def uuid(self, properties: Any) -> str:
        """Return what the management library finds the GPU by: the UUID, without NVML's prefix."""
        return str(properties.uuid)

    def model(self, properties: Any) -> str:
        """Return the name that torch's list of architectures gives the GPU."""
        return f"sm_{properties.major}{properties.minor}"

    def compute_capability(self, properties: Any) -> str | None:
        """Return CUDA's compute capability as major.minor."""
        return f"{properties.major}.{properties.minor}"

    def architecture(self, model: str) -> str:
        """Return the generation of a model such as sm_90, or of a compute capability such as 9.0."""
        generations = [name for first, name in NVIDIA.items() if first <= _capability(model)]
        return generations[-1] if generations else model

    def has_kernels(self, model: str, arch_list: Sequence[str]) -> bool:
        """Return whether a torch build runs on a GPU.

        It does if it holds a binary of the same major and no later minor version, or PTX of no later one
        (CUDA C++ Programming Guide, "Application Compatibility").
        """
        capability = _capability(model)
        return any(
            _capability(arch) <= capability and (arch.startswith("compute") or _capability(arch)[0] == capability[0])
            for arch in arch_list
        )

    def lacks(self, feature: Feature, model: str) -> str | None:
        """Return what a feature needs that a model lacks; None if it has it."""
        if not feature:
            return None
        (major, minor), what = FEATURES[feature]
        if _capability(model) < (major, minor):
            return f"{what}, from sm_{major}{minor} on; this GPU is {model}"
        if feature == "mxfp8" and _capability(model)[0] >= NO_MXFP8:
            return f"MXFP8 kernels of torchao, which are for sm_10x; this GPU is {model}"
        return None


def _capability(text: str) -> tuple[int, int]:
    """Return the compute capability in words such as 9.0, sm_90a and compute_90; (0, 0) if there is none."""
    match = re.fullmatch(r"(?:(?:sm|compute)_)?(\d+)\.?(\d)[a-z]?", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


class Target(NamedTuple):
    """The handles of a UUID."""

    handle: Any
    board: Any
    """Handle of the whole board; the same as ``handle`` unless this is a MIG slice."""
    is_slice: bool


class Nvml(Monitor):
    """NVML.

    Raises:
        RuntimeError: there is no NVIDIA driver, or none that answers.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise RuntimeError(f"nvidia-ml-py cannot be imported: {error}") from error
        library: Any = pynvml
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            raise RuntimeError(f"NVML does not start: {error}") from error
        super().__init__(library, library.NVMLError, {getattr(library, f"NVML_ERROR_{name}", None) for name in _GONE})
        self._targets: dict[str, Target] = {}

    def close(self) -> None:
        with suppress(self.library.NVMLError):  # A driver that is gone needs no shutting down.
            self.library.nvmlShutdown()

    def target(self, uuid: str) -> Target:
        """Find a GPU or MIG slice by its UUID, with or without NVML's prefix, which CUDA's UUIDs lack."""
        if uuid not in self._targets:
            for name in (uuid, f"GPU-{uuid}", f"MIG-{uuid}"):
                handle = self.call(uuid, "nvmlDeviceGetHandleByUUID", name)
                if handle is not None:
                    break
            else:
                raise DeviceLostError(f"NVML knows no GPU {uuid}: {self.reasons[uuid, 'nvmlDeviceGetHandleByUUID']}.")
            is_slice = name.startswith("MIG-")
            board = self.call(uuid, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if is_slice else handle
            self._targets[uuid] = Target(handle, board or handle, is_slice)
        return self._targets[uuid]

    def _newest(self, uuid: str, names: Iterable[str], *arguments: Any) -> Any:
        """Return the value of the first function that has one: older drivers lack the newer functions."""
        values = (self.call(uuid, name, *arguments) for name in names)
        return next((value for value in values if value is not None), None)

    def fields(self, uuid: str, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of the board's fields of those names, read in one call; those without one are left out."""
        numbers = {name: getattr(self.library, name) for name in names if hasattr(self.library, name)}
        board = self.target(uuid).board
        values = self.call(uuid, "nvmlDeviceGetFieldValues", board, list(numbers.values())) if numbers else None
        known = {}
        for name, value in zip(numbers, values or (), strict=False):
            if value.nvmlReturn == self.library.NVML_SUCCESS:  # Each field has a return code of its own.
                known[name] = getattr(value.value, _MEMBERS[value.valueType])
            else:
                self.raise_if_gone(f"{name} of {uuid}", self.library.NVMLError(value.nvmlReturn))
        return known

    def driver_version(self) -> str | None:
        version: str | None = self.call("", "nvmlSystemGetDriverVersion")
        return version

    def gpu(self, uuid: str) -> Gpu:
        handle, board, is_slice = self.target(uuid)
        memory = self._memory(uuid)
        limits = ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit")
        enforced_w, default_w = (None if is_slice else _watts(self.call(uuid, name, handle)) for name in limits)
        capability = self.call(uuid, "nvmlDeviceGetCudaComputeCapability", board)
        return Gpu(
            uuid=self.call(uuid, "nvmlDeviceGetUUID", handle) or uuid,
            name=self.call(uuid, "nvmlDeviceGetName", handle),
            memory_total_bytes=memory and memory.total,
            memory_free_bytes=memory and memory.free,
            power_limit_w=enforced_w,
            power_default_w=default_w,
            model=capability and f"{capability[0]}.{capability[1]}",
            sm_clock_limit_mhz=self.call(uuid, "nvmlDeviceGetMaxClockInfo", board, self.library.NVML_CLOCK_SM),
            memory_clock_limit_mhz=self.call(uuid, "nvmlDeviceGetMaxClockInfo", board, self.library.NVML_CLOCK_MEM),
        )

    def _memory(self, uuid: str) -> Any:
        """Return memory information, version 2 (the driver's reserve apart) where there is one, else version 1.

        None where the total is 0, as on a GPU that shares the system's memory (github.com/Syllo/nvtop/pull/411).
        """
        handle, name = self.target(uuid).handle, "nvmlDeviceGetMemoryInfo"
        memory = self.call(uuid, name, handle, self.library.nvmlMemory_v2) or self.call(uuid, name, handle)
        return memory if memory and memory.total else None

    def memory_used_bytes(self, uuid: str) -> int | None:
        memory = self._memory(uuid)
        return None if memory is None else memory.used

    def process_bytes(self, uuid: str) -> dict[int, int | None] | None:
        # By version: on drivers before 510 the function without one raises an error that is no NVMLError.
        names = (f"nvmlDeviceGetComputeRunningProcesses_v{version}" for version in (3, 2))
        processes = self._newest(uuid, names, self.target(uuid).handle)
        return None if processes is None else {process.pid: process.usedGpuMemory for process in processes}

    def power_w(self, uuid: str) -> float | None:
        handle, _, is_slice = self.target(uuid)
        if is_slice:
            return None
        # Some cards answer 0 for a power that they do not know.
        instant_mw = self.fields(uuid, ["NVML_FI_DEV_POWER_INSTANT"]).get("NVML_FI_DEV_POWER_INSTANT")
        return _watts(instant_mw or self.call(uuid, "nvmlDeviceGetPowerUsage", handle))

    def total_energy_j(self, uuid: str) -> float | None:
        """Return the energy in joules since the driver was loaded; the counter moves about every 100 ms."""
        handle, _, is_slice = self.target(uuid)
        energy_mj = None if is_slice else self.call(uuid, "nvmlDeviceGetTotalEnergyConsumption", handle)
        return None if energy_mj is None else energy_mj / 1000

    def energy_problem(self, uuid: str) -> str:
        if self.target(uuid).is_slice:
            return "a MIG slice shares its board's power with the others, so its own energy is unknown"
        return super().energy_problem(uuid)

    def temperature_c(self, uuid: str) -> float | None:
        names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        celsius = self._newest(uuid, names, self.target(uuid).board, self.library.NVML_TEMPERATURE_GPU)
        return None if celsius is None else float(celsius)

    def clocks_mhz(self, uuid: str) -> tuple[int | None, int | None]:
        board, kinds = self.target(uuid).board, (self.library.NVML_CLOCK_SM, self.library.NVML_CLOCK_MEM)
        sm, memory = (self.call(uuid, "nvmlDeviceGetClockInfo", board, kind) for kind in kinds)
        return sm, memory

    def utilization_pct(self, uuid: str) -> float | None:
        rates = self.call(uuid, "nvmlDeviceGetUtilizationRates", self.target(uuid).handle)
        return None if rates is None else float(rates.gpu)

    def clock_event_reasons(self, uuid: str) -> tuple[str, ...] | None:
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        bits = self._newest(uuid, names, self.target(uuid).board)
        if bits is None:
            return None
        known = tuple(name for bit, name in REASONS.items() if bits & bit)
        return known if not bits & ~sum(REASONS) else (*known, "other")

    def throttle_times(self, uuid: str) -> ThrottleTimes:
        by_field = {THROTTLE_FIELDS[name] for name in self._throttle_seconds(uuid, THROTTLE_FIELDS)}
        others = {name: reason for name, reason in VIOLATIONS.items() if reason not in by_field}
        return ThrottleTimes(partial(self._throttle_seconds, uuid), THROTTLE_FIELDS | others)

    def _throttle_seconds(self, uuid: str, names: Collection[str]) -> dict[str, float]:
        """Return the values of the named counters that answer; they count nanoseconds."""
        seconds = {name: value / 1e9 for name, value in self.fields(uuid, THROTTLE_FIELDS.keys() & names).items()}
        for name in VIOLATIONS.keys() & names:
            policy = getattr(self.library, name)
            if violation := self.call(uuid, "nvmlDeviceGetViolationStatus", self.target(uuid).board, policy):
                seconds[name] = violation.violationTime / 1e9
        return seconds

    def _samples(self, uuid: str, handle: Any, since_us: int) -> list[Any] | None:
        """Return the samples of processes after a time stamp; None if no function reads them."""
        for name in filter(partial(hasattr, self.library), SAMPLED):
            try:
                samples: list[Any] = getattr(self.library, name)(handle, since_us)
                return samples
            except self.library.NVMLError as error:
                self.raise_if_gone(f"{name} of {uuid}", error)
                # nvidia-ml-py raises "success" where the driver answers at once that the list has no entries.
                if error.value in (self.library.NVML_ERROR_NOT_FOUND, self.library.NVML_SUCCESS):
                    return []
        return None

    def process_loads(self, uuid: str) -> Callable[[], list[ProcessLoad] | None]:
        """Watch by the driver's samples, each of 1/6 s to 1 s.

        Of each process the driver may give one sample, whose time stamp may lie seconds before the others'
        (github.com/NVIDIA/go-nvml/issues/51). Unknown on a MIG slice, on some cards, and without the permission.
        """
        # A slice's handle, so that NVML refuses, rather than the board's, whose processes compute elsewhere.
        handle, since_us = self.target(uuid).handle, 0

        def read() -> list[ProcessLoad] | None:
            nonlocal since_us
            samples = self._samples(uuid, handle, since_us)
            if samples is None:
                return None
            # The driver may leave entries of its buffer unwritten or stale.
            fresh = [entry for entry in samples if entry.timeStamp > since_us and entry.pid and entry.smUtil <= 100]
            since_us = max([since_us, *(entry.timeStamp for entry in fresh)])
            return [ProcessLoad(pid=entry.pid, pct=float(entry.smUtil)) for entry in fresh if entry.smUtil]

        read()  # passes over what was sampled before
        return read


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts else None
