"""AMD's GPUs under ROCm: what their architectures can do, and AMD SMI, through amdsmi, as a ``Monitor``.

amdsmi comes with ROCm and is optional: without it, telemetry, energy and throttling are unknown.
Source of the readings' units: the AMD SMI Python API reference, rocm.docs.amd.com/projects/amdsmi.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from bench.devices.monitor import CLOCK, DeviceLostError, Gpu, Monitor, ThrottleTimes
from bench.spec.generations import AMD
from bench.spec.precisions import Feature

FEATURES: dict[Feature, tuple[tuple[str, ...], str]] = {
    "fp16": (("gfx9", "gfx10", "gfx11", "gfx12"), "float16 arithmetic"),
    "bf16": (("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"), "bfloat16 matrix instructions"),
    "tf32": (("gfx942",), "TF32 (xf32) matrix instructions"),
    "cudnn-tf32": ((), "cuDNN's TF32 (without it, it is the same as fp32)"),
    "fp8": (("gfx942", "gfx95", "gfx12"), "float8 matrix instructions"),
    "nvfp4": ((), "kernels of torchao for NVFP4, which are NVIDIA's"),
    "triton": (("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"), "a GPU that Triton compiles for"),
    "triton-fp8": (("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"), "a GPU that Triton compiles for"),
    "mxfp8": ((), "kernels of torchao for MXFP8, which are NVIDIA's"),
}
"""The gfx names, by how they begin, with each feature (rocm.docs.amd.com, "Data types and precision support")."""
REASONS = {
    "ppt_pwr": "sw_power_cap",
    "socket_thrm": "sw_thermal",
    "vr_thrm": "hw_thermal",
    "hbm_thrm": "hw_thermal",
    "prochot_thrm": "hw_slowdown",
}
"""Violations of amdsmi_get_violation_status by the reason of ``nvidia.REASONS`` that means the same."""
_GONE = ("DRIVER_NOT_LOADED", "NOT_INIT", "NO_DRV", "AMDGPU_RESTART_ERR")


class Amd:
    """The meaning of torch's device properties in a build with ROCm; ``nvidia.Nvidia`` is the same for CUDA."""

    runtime = "ROCm"
    library = "AMD"
    visible: tuple[str, ...] = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    hint = "Install a build of torch, or of ROCm, that supports it."

    def uuid(self, properties: Any) -> str:
        """Return the PCI address, which the runtime and AMD SMI have in common; else the UUID."""
        if (bus := getattr(properties, "pci_bus_id", None)) is None:
            return str(properties.uuid)
        return f"{properties.pci_domain_id:04x}:{bus:02x}:{properties.pci_device_id:02x}.0"

    def model(self, properties: Any) -> str:
        """Return the gfx name without its modes, such as gfx90a for gfx90a:sramecc+:xnack-."""
        return str(properties.gcnArchName).partition(":")[0]

    def compute_capability(self, properties: Any) -> str | None:
        return None

    def architecture(self, model: str) -> str:
        return next((name for start, name in AMD.items() if model.startswith(start)), model)

    def has_kernels(self, model: str, arch_list: Sequence[str]) -> bool:
        """Return whether a torch build runs on a GPU: code objects run on the gfx name that they were built for."""
        return model in {arch.partition(":")[0] for arch in arch_list}

    def lacks(self, feature: Feature, model: str) -> str | None:
        if not feature:
            return None
        starts, what = FEATURES[feature]
        if not model.startswith(starts):
            models = f", of {', '.join(start.ljust(6, 'x') for start in starts)}" if starts else ""
            return f"{what}{models}; this GPU is {model}"
        return None

    def missing_switch(self, feature: Feature) -> str | None:
        if feature == "tf32" and not _torch_offers_tf32():
            return "a TF32 switch, which this torch does not offer (some builds: HIPBLASLT_ALLOW_TF32=1)"
        return None


def _torch_offers_tf32() -> bool:
    """Return whether torch keeps its TF32 switch set: some builds with ROCm ignore it."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = True
    offered = bool(matmul.allow_tf32)
    matmul.allow_tf32 = before
    return offered


class AmdSmi(Monitor):
    """AMD SMI.

    Raises:
        RuntimeError: amdsmi is not installed, or does not start.
    """

    package = "amdsmi"
    energy_functions = ("amdsmi_get_energy_count", "amdsmi_get_power_info")

    def __init__(self) -> None:
        try:
            import amdsmi  # type: ignore[import-not-found,unused-ignore]

            amdsmi.amdsmi_init()
        except Exception as error:  # an ImportError, a missing library (OSError, KeyError), or AMD SMI's own
            raise RuntimeError(f"AMD SMI does not start: {type(error).__name__}: {error}") from error
        wrapper = getattr(amdsmi, "amdsmi_wrapper", None)
        gone = {getattr(wrapper, f"AMDSMI_STATUS_{name}", None) for name in _GONE} - {None}
        super().__init__(amdsmi, amdsmi.AmdSmiException, gone)
        self._boards: list[Any] = self.call("", "amdsmi_get_processor_handles") or []
        self._handles: dict[str, Any] = {}
        """By UUID and by PCI address."""
        for handle in self._boards:
            for name in ("amdsmi_get_gpu_device_uuid", "amdsmi_get_gpu_device_bdf"):
                if known := self.call("", name, handle):
                    self._handles[known.lower()] = handle

    def close(self) -> None:
        with suppress(self.library.AmdSmiException):
            self.library.amdsmi_shut_down()

    def _ask(self, uuid: str, name: str, *arguments: Any) -> Any:
        return self.call(uuid, name, self._handle(uuid), *arguments)

    def _number(self, uuid: str, name: str, field: str, *arguments: Any) -> float | None:
        """Return a field of a reading; None for what AMD SMI calls N/A."""
        value = (self._ask(uuid, name, *arguments) or {}).get(field)
        return float(value) if isinstance(value, int | float) else None

    def _handle(self, uuid: str) -> Any:
        try:
            return self._handles[uuid.lower()]
        except KeyError:
            raise DeviceLostError(f"AMD SMI knows no GPU {uuid}.") from None

    def driver_version(self) -> str | None:
        info = self.call("", "amdsmi_get_gpu_driver_info", self._boards[0]) if self._boards else None
        return None if info is None else str(info["driver_version"])

    def gpus(self) -> list[Gpu]:
        uuids = {id(handle): uuid for uuid, handle in self._handles.items()}
        return [self.gpu(uuid) for uuid in uuids.values()]

    def gpu(self, uuid: str) -> Gpu:
        asic = self._ask(uuid, "amdsmi_get_gpu_asic_info") or {}
        total, used = (self._memory(uuid, field) for field in ("vram_total", "vram_used"))
        limit_w, default_w = (
            microwatts / 1e6 if (microwatts := self._number(uuid, "amdsmi_get_power_cap_info", field)) else None
            for field in ("power_cap", "default_power_cap")
        )
        model = str(asic.get("target_graphics_version", "")).removeprefix("gfx")
        return Gpu(
            uuid=str(self._ask(uuid, "amdsmi_get_gpu_device_uuid") or uuid),
            name=asic.get("market_name"),
            memory_total_bytes=total,
            memory_free_bytes=None if total is None or used is None else total - used,
            power_limit_w=limit_w,
            power_default_w=default_w,
            model=f"gfx{model}" if model else None,
            sm_clock_limit_mhz=self._clock_mhz(uuid, "GFX", "max_clk"),
            memory_clock_limit_mhz=self._clock_mhz(uuid, "MEM", "max_clk"),
        )

    def _memory(self, uuid: str, field: str) -> int | None:
        mib = self._number(uuid, "amdsmi_get_gpu_vram_usage", field)
        return None if mib is None else int(mib * 2**20)

    def memory_used_bytes(self, uuid: str) -> int | None:
        return self._memory(uuid, "vram_used")

    def process_bytes(self, uuid: str) -> dict[int, int | None] | None:
        processes = self._ask(uuid, "amdsmi_get_gpu_process_list")
        return None if processes is None else {entry["pid"]: entry["memory_usage"]["vram_mem"] for entry in processes}

    def power_w(self, uuid: str) -> float | None:
        # Which of the two is known depends on the generation; N/A and 0 are unknown.
        current, average = (
            self._number(uuid, "amdsmi_get_power_info", f"{which}_socket_power") for which in ("current", "average")
        )
        return current or average or None

    def total_energy_j(self, uuid: str) -> float | None:
        count = self._ask(uuid, "amdsmi_get_energy_count")
        if not count:
            return None
        ticks = count.get("energy_accumulator", count.get("power"))  # called power before ROCm 6.3
        return None if ticks is None else float(ticks * count["counter_resolution"] / 1e6)  # in microjoules a tick

    def temperature_c(self, uuid: str) -> float | None:
        kind, now = self.library.AmdSmiTemperatureType.HOTSPOT, self.library.AmdSmiTemperatureMetric.CURRENT
        celsius = self._ask(uuid, "amdsmi_get_temp_metric", kind, now)
        return None if celsius is None else float(celsius)

    def clocks_mhz(self, uuid: str) -> tuple[int | None, int | None]:
        return self._clock_mhz(uuid, "GFX", "clk"), self._clock_mhz(uuid, "MEM", "clk")

    def _clock_mhz(self, uuid: str, kind: str, field: str) -> int | None:
        clock = self._number(uuid, "amdsmi_get_clock_info", field, getattr(self.library.AmdSmiClkType, kind))
        return None if clock is None else int(clock)

    def utilization_pct(self, uuid: str) -> float | None:
        return self._number(uuid, "amdsmi_get_gpu_activity", "gfx_activity")

    def clock_event_reasons(self, uuid: str) -> tuple[str, ...] | None:
        status = self._ask(uuid, "amdsmi_get_violation_status")
        if status is None:
            return None
        return tuple(dict.fromkeys(reason for name, reason in REASONS.items() if status.get(f"active_{name}") is True))

    def throttle_times(self, uuid: str) -> ThrottleTimes:
        def accumulators(names: Collection[str]) -> dict[str, float]:
            status = self._ask(uuid, "amdsmi_get_violation_status") or {}
            known = {name: status.get(f"acc_{name}") for name in (CLOCK, *names)}
            return {name: value for name, value in known.items() if isinstance(value, int)}

        return ThrottleTimes(accumulators, REASONS)

    def process_loads(self, uuid: str) -> Callable[[], None]:
        """Return a function that returns None: AMD SMI does not say how much of the time a process computes."""
        self._handle(uuid)
        return lambda: None
