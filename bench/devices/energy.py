"""A device's energy meters, and whether they offer a counter or only power."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from bench.devices.monitor import Monitor
from bench.results.records import Device

POLL_S = 0.005
"""How often a meter or an event is polled."""
SILENT_S = 1.0
"""A counter that has not moved for this long does not tick."""

Source = Literal["counter", "power"]


class Meter(Protocol):
    """Energy and power of one device; None is unknown, and so is a power of zero."""

    def energy_j(self) -> float | None:
        """Return the energy counter, in joules from any beginning."""

    def power_w(self) -> float | None:
        """Return the power now, in watts."""


@dataclass(frozen=True, slots=True)
class GpuMeter:
    """A GPU's meter; raises ``DeviceLostError`` when the GPU is lost."""

    monitor: Monitor
    uuid: str

    def energy_j(self) -> float | None:
        """Return the energy counter."""
        return self.monitor.total_energy_j(self.uuid)

    def power_w(self) -> float | None:
        """Return the power now."""
        return self.monitor.power_w(self.uuid)


def meters(monitor: Monitor, device: Device) -> tuple[GpuMeter, ...]:
    """Return the meter of a device's GPU, or of each of those that train together; none for a CPU."""
    uuids = device.uuids or ((device.uuid,) if device.uuid else ())
    return tuple(GpuMeter(monitor, uuid) for uuid in dict.fromkeys(uuids))


def energy_source(
    meter: Meter, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
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
