"""Disturbances of a device between two polls, so that what was measured meanwhile can be discarded.

On a GPU: clocks held down by temperature or by the hardware, other processes that computed, a GPU that is lost.
A power cap disturbs nothing: it is part of real speed. On a CPU nothing is discarded; the load of other programs is one
figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from bench.devices.monitor import POWER_CAP, SAMPLE_S, DeviceLostError, Monitor, open_monitor
from bench.results.records import Device

CAUSES = {
    "sw_thermal": "thermal slowdown",
    "hw_thermal": "hardware thermal slowdown",
    "hw_power_brake": "hardware power brake",
    "hw_slowdown": "hardware slowdown",
}
"""The clock event reasons that disturb, in words."""
SPECIFIC = ("hw_thermal", "hw_power_brake")
"""The causes of a hardware slowdown. Where both are counted, the bare reason adds nothing but changes of clocks."""
PROCESSES_S = 0.1
"""Processes are polled no more often than this."""
LATE_S = 0.1
"""The throttle counters advance this much late."""
GUARD_S = 0.05
"""The ends of a process's sample are known to within this."""
FOREIGN_PCT = 5.0
"""Another process disturbs when its kernels ran this share of the time: more than the drawing of a desktop."""

Gather = Callable[[Any], tuple[Any, ...]]
"""Returns the values of all processes that train together, in the order of their ranks."""


def alone(value: Any) -> tuple[Any, ...]:
    """Gather from a process that trains alone."""
    return (value,)


class Watch:
    """Watches one device. This one sees nothing, and so claims nothing."""

    window_s = (0.0, 0.0)
    """How long before the last poll that which it named began and ended."""
    capped = False
    """Whether a power limit held the clocks down at any poll, which disturbs nothing."""

    def poll(self) -> str:
        """Return what disturbed the device since the last call, or an empty text. Never raises."""
        return ""

    def wait(self) -> None:
        """Return when a poll can name what disturbs the device now."""

    def foreign_load_pct(self) -> float | None:
        """Return the share of the machine's cores that others took since the watch was opened; None on a GPU."""
        return None


@contextmanager
def open_watch(
    device: Device, clock: Callable[[], float] = time.monotonic, *, gather: Gather = alone, rank: int = 0
) -> Iterator[Watch]:
    """Watch a device from now on; a GPU that the driver's library does not know is never called disturbed.

    Of processes that train together each watches its own, the one of its ``rank``; all of them call ``gather`` alike.
    """
    if not device.is_gpu:
        yield CpuWatch(gather)
        return
    own_pids = gather(os.getpid())
    uuid = device.uuid_of(rank, len(own_pids))
    monitor = open_monitor() if uuid else None
    watch = Watch()
    if monitor is None or uuid is None:
        yield watch
        return
    with monitor:
        try:
            watch = GpuWatch(monitor, uuid, clock, own_pids)
        except DeviceLostError as failure:
            print(f"Throttling and other processes are not watched: {failure}")
        yield watch


class CpuWatch(Watch):
    """Compares all programs' time on the CPU with that of this process, its loader and its other ranks."""

    def __init__(self, gather: Gather = alone) -> None:
        self._gather = gather
        self._busy_s, self._total_s = _machine_times()
        self._own_s = self._own_time()

    def foreign_load_pct(self) -> float | None:
        """Return the others' share of the cores' time, stolen time included, from the system's own accounts.

        They count in ticks of 10 ms on many systems, so the share is rough in less than a second.
        """
        busy_s, total_s = _machine_times()
        if total_s <= self._total_s:
            return None
        foreign_s = (busy_s - self._busy_s) - (self._own_time() - self._own_s)
        return min(100.0, max(0.0, 100 * foreign_s / (total_s - self._total_s)))

    def _own_time(self) -> float:
        return sum(self._gather(_family_time(psutil.Process())))


def _machine_times() -> tuple[float, float]:
    """Return the seconds that all cores were busy or stolen, and the seconds there were, since boot."""
    times = psutil.cpu_times()._asdict()
    # Guests' time is in user's already (proc_stat(5)).
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total_s - times["idle"] - times.get("iowait", 0.0), total_s


def _family_time(process: psutil.Process) -> float:
    """Return the seconds that a process and its children have taken, such as a loader's: those that ended, too."""
    times = process.cpu_times()
    total_s = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            total_s += _family_time(child)
    return total_s


class GpuWatch(Watch):
    """Reads one GPU's throttle counters and process loads."""

    def __init__(self, monitor: Monitor, uuid: str, clock: Callable[[], float], own_pids: Collection[int]) -> None:
        """Begin now; raise DeviceLostError if the library does not know the GPU, or it is lost."""
        self._monitor, self._uuid, self._clock, self._own_pids = monitor, uuid, clock, own_pids
        self._throttle, self._loads = monitor.throttle_times(uuid), monitor.process_loads(uuid)
        self._last_s = self._polled_s = clock()
        self._windows: list[tuple[float, float]] = []
        self._disturbers: set[int] = set()
        self._lost = ""

    def poll(self) -> str:
        """Name the causes since the last call, joined by "; "; ``window_s`` says when they held.

        A cause may be named up to a second after it began: the driver's throttle counters move about every 100 ms, and
        its samples of processes cover up to a second.
        """
        self._windows = [(self._clock() - self._last_s + LATE_S, 0.0)]
        if not self._lost:
            try:
                throttling, others = self._throttling(), self._others()
                windows = self._windows[0 if throttling else 1 :] or [(0.0, 0.0)]
                self.window_s = max(began for began, _ in windows), min(ended for _, ended in windows)
                return "; ".join([*throttling, *others])
            except DeviceLostError as failure:
                self._lost = f"the GPU was lost to NVML: {failure}"
        self.window_s = self._windows[0]
        return self._lost

    def wait(self) -> None:
        """Sleep for as long as the driver's counters are behind, and its samples if another process could compute."""
        with suppress(DeviceLostError):
            # NVML does not list those that only draw, which have samples all the same.
            others = self._disturbers.union(self._monitor.process_bytes(self._uuid) or ()).difference(self._own_pids)
            time.sleep(SAMPLE_S if others else LATE_S)

    def _throttling(self) -> list[str]:
        now_s = self._clock()
        held_s = self._throttle.since(now_s - self._last_s)
        self._last_s = now_s
        active = set(self._monitor.clock_event_reasons(self._uuid) or ())
        self.capped |= POWER_CAP in active or POWER_CAP in held_s
        if self._throttle.counted.issuperset(SPECIFIC) or active.intersection(SPECIFIC):
            active.discard("hw_slowdown")
        return [
            f"{cause} for {1000 * held_s[reason]:.3g} ms" if reason in held_s else cause
            for reason, cause in CAUSES.items()
            if reason in held_s or reason in active
        ]

    def _others(self) -> list[str]:
        since_s = self._clock() - self._polled_s
        if since_s < PROCESSES_S:
            return []
        self._polled_s += since_s
        loads = self._loads() or []
        foreign = [load for load in loads if load.pid not in self._own_pids and load.pct >= FOREIGN_PCT]
        # In a container NVML may give the host's ids, and what looks foreign would be this very process.
        listed = (self._monitor.process_bytes(self._uuid) or {}).keys() if foreign else ()
        if os.getpid() not in {load.pid for load in loads}.union(listed):
            return []
        busy: dict[int, float] = {}
        self._disturbers.update(load.pid for load in foreign)
        for load in foreign:
            busy[load.pid] = max(load.pct, busy.get(load.pid, 0.0))
            began_s, ended_s = (
                (since_s + SAMPLE_S, 0.0) if load.began_s is None else (load.began_s, load.ended_s or 0.0)
            )
            self._windows.append((began_s + GUARD_S, ended_s - GUARD_S))
        if not busy:
            return []
        names = ", ".join(f"pid {pid}, {load:.0f} % of its time" for pid, load in sorted(busy.items()))
        return [f"{'another process' if len(busy) == 1 else 'other processes'} used the GPU ({names})"]
