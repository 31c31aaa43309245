"""What a fake GPU is like: plain values that a test sets, and its energy counter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

GiB = 2**30


class FakeClock:
    """Time in seconds that moves only when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(eq=False)
class FakeGpu:
    """What one GPU, or a MIG slice of one, is like; everything may change while it runs."""

    uuid: str
    name: str = "NVIDIA Fake"
    capability: tuple[int, int] = (9, 0)
    memory_total: int = 80 * GiB
    memory_used: int = 10 * GiB
    memory_reserved: int = GiB
    power_w: float | Callable[[float], float] = 200.0
    """Constant, or a function of the clock's time: spikes, ramps."""
    average_power_w: float | None = None
    """What nvmlDeviceGetPowerUsage says; None is the same as ``power_w``."""
    has_power_instant: bool = True
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
    field_code: int = 3
    """What a field without a value returns: not supported."""
    violations: dict[int, int] = field(default_factory=dict)
    """Nanoseconds of nvmlDeviceGetViolationStatus by policy."""
    work: list[tuple[int, int, int]] = field(default_factory=list)
    """Samples of nvmlDeviceGetProcessUtilization: time in microseconds, process id, share of the time in percent."""
    repeats_work: bool = False
    """Whether the driver gives samples again that were asked for before."""
    processes: dict[int, int | None] = field(default_factory=dict)
    """Process id to the memory that it holds, in bytes."""
    graphics: dict[int, int | None] = field(default_factory=dict)
    energy_start_j: float = 0.0
    energy_tick_s: float = 0.1
    energy_wraps_at_j: float | None = None
    errors: dict[str, int] = field(default_factory=dict)
    """C function to the code that it returns."""
    lost: bool = False
    slices: list[FakeGpu] = field(default_factory=list)
    _used_mj: list[float] = field(default_factory=lambda: [0.0])

    def power_mw(self, now_s: float) -> int:
        return round(1000 * (self.power_w(now_s) if callable(self.power_w) else self.power_w))

    def energy_mj(self, now_s: float) -> int:
        """Energy up to the last tick, by the midpoints of 10 ms, each at the power that it had when first looked at."""
        steps = round(math.floor(now_s / self.energy_tick_s + 1e-9) * self.energy_tick_s / 0.01)
        for step in range(len(self._used_mj) - 1, steps):
            self._used_mj.append(self._used_mj[step] + self.power_mw((step + 0.5) * 0.01) * 0.01)
        used_j = self.energy_start_j + self._used_mj[steps] / 1000
        return round(1000 * (used_j % self.energy_wraps_at_j if self.energy_wraps_at_j else used_j))
