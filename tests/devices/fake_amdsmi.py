"""AMD SMI without AMD GPUs: a module like amdsmi, whose readings a test sets."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any


class AmdSmiException(Exception):  # noqa: N818 - amdsmi's own name
    def __init__(self, err_code: int) -> None:
        super().__init__(f"Error code:\n\t{err_code}")
        self.err_code = err_code


@dataclass(eq=False)
class AmdGpu:
    uuid: str = "5cff74a1-0000-1000-80da-6b9c8ff2a101"
    bdf: str = "0000:c1:00.0"
    readings: dict[str, Any] = field(default_factory=dict)
    """By function, without ``amdsmi_``; an exception is raised."""


def reading(gpu: AmdGpu, name: str) -> Any:
    known: dict[str, Any] = {
        "get_gpu_device_uuid": gpu.uuid,
        "get_gpu_device_bdf": gpu.bdf,
        "get_gpu_driver_info": {"driver_version": "6.12.12"},
        "get_gpu_asic_info": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
        "get_power_cap_info": {"power_cap": 750_000_000, "default_power_cap": 700_000_000},
        "get_gpu_vram_usage": {"vram_total": 196_592, "vram_used": 592},
        "get_gpu_process_list": [{"pid": 1, "memory_usage": {"vram_mem": 2**30}}],
        "get_power_info": {"current_socket_power": "N/A", "average_socket_power": 140},
        "get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1},
        "get_temp_metric": 47,
        "get_clock_info": {"clk": 2100, "max_clk": 2400},
        "get_gpu_activity": {"gfx_activity": 98},
        "get_violation_status": AmdSmiException(2),
    }
    value = {**known, **gpu.readings}[name]
    if isinstance(value, Exception):
        raise value
    return value


def install(monkeypatch, *gpus: AmdGpu) -> SimpleNamespace:
    """Let amdsmi be imported, with these GPUs; return the module."""
    module = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        AmdSmiClkType=Enum("AmdSmiClkType", "GFX MEM"),
        AmdSmiTemperatureType=Enum("AmdSmiTemperatureType", "HOTSPOT"),
        AmdSmiTemperatureMetric=Enum("AmdSmiTemperatureMetric", "CURRENT"),
        amdsmi_wrapper=SimpleNamespace(AMDSMI_STATUS_DRIVER_NOT_LOADED=34),
        running=0,
    )
    module.amdsmi_init = lambda: setattr(module, "running", module.running + 1)
    module.amdsmi_shut_down = lambda: setattr(module, "running", module.running - 1)
    module.amdsmi_get_processor_handles = lambda: list(gpus)
    for name in ["device_uuid", "device_bdf", "driver_info", "asic_info", "vram_usage", "process_list", "activity"]:
        setattr(module, f"amdsmi_get_gpu_{name}", lambda gpu, _name=f"get_gpu_{name}": reading(gpu, _name))
    for name in ["power_cap_info", "power_info", "energy_count", "temp_metric", "clock_info", "violation_status"]:
        setattr(module, f"amdsmi_get_{name}", lambda gpu, *_kind, _name=f"get_{name}": reading(gpu, _name))
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module
