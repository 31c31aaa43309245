"""Disturbances of a device while a process is timed.

They are evidence by which a process does not count while others do.

On a GPU: clocks held down by temperature or by the hardware, other processes that computed, a GPU
that is lost. A power cap disturbs nothing: it is part of real speed. On a CPU: the load of other
programs, as a figure.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import psutil

from bench.devices.monitor import (
    POWER_CAP,
    SAMPLE_S,
    DeviceLostError,
    Monitor,
    ThrottleTimes,
    open_monitor,
)
from bench.results.records import Device

# The clock event reasons that disturb, in words. A bare hardware slowdown is none of them: a change
# of clocks is one, too.
CAUSES = {
    "sw_thermal": "thermal slowdown",
    "hw_thermal": "hardware thermal slowdown",
    "hw_power_brake": "hardware power brake",
}
# The throttle counters advance this much late.
LATE_S = 0.1
# A cause disturbs when it held for more than this share of the time: a program that draws a desktop
# computes for less.
LEAST_SHARE = 0.05

# Returns the values of all processes that train together, in the order of their ranks.
Gather = Callable[[Any], tuple[Any, ...]]


def alone(value: Any) -> tuple[Any, ...]:
    """Gather from a process that trains alone."""
    return (value,)


class Watch:
    """Watches one device. This one watches nothing: no GPU that the driver's library knows."""

    capped = False
    """Whether a power limit held the clocks down at any poll, which disturbs nothing."""

    def poll(self) -> None:
        """Read what the driver counts; called now and then. Never raises."""

    def disturbance(self) -> str:
        """Name what disturbed the device since the watch was opened, or return an empty text.

        Waits until the driver's counters and samples, which are late, can tell. Never raises.
        """
        return ""

    def foreign_load_pct(self) -> float | None:
        """Return the share of the cores that others took since the watch was opened.

        None on a GPU.
        """
        return None


@contextmanager
def open_watch(
    device: Device,
    clock: Callable[[], float] = time.monotonic,
    *,
    gather: Gather = alone,
    rank: int = 0,
) -> Iterator[Watch]:
    """Watch a device from now on.

    Of processes that train together each watches its own, the one of its ``rank``; all of them call
    ``gather`` alike. A GPU that the driver's library does not know is never called disturbed.
    """
    if not device.is_gpu:
        yield CpuWatch(gather)
        return
    own_pids = gather(os.getpid())
    uuid = device.uuid_of(rank, len(own_pids))
    monitor = open_monitor()
    watch = Watch()
    with monitor or nullcontext():
        if monitor and uuid:
            # A GPU that is lost by now is not watched; the run's telemetry notes why.
            with suppress(DeviceLostError):
                watch = GpuWatch(monitor, uuid, clock, own_pids)
        yield watch


class CpuWatch(Watch):
    """Compares all programs' time on the CPU with that of this process, its children and ranks."""

    def __init__(self, gather: Gather = alone) -> None:
        self._gather = gather
        self._busy_s, self._total_s = _machine_times()
        self._own_s = self._own_time()

    def foreign_load_pct(self) -> float | None:
        """Return the others' share of the cores' time, stolen time included.

        The system's own accounts count in ticks of 10 ms on many systems, so the share is rough in
        less than a second.
        """
        busy_s, total_s = _machine_times()
        passed_s = total_s - self._total_s
        if passed_s <= 0:
            return None
        foreign_s = (busy_s - self._busy_s) - (self._own_time() - self._own_s)
        return min(100.0, max(0.0, 100 * foreign_s / passed_s))

    def _own_time(self) -> float:
        return sum(self._gather(_family_time(psutil.Process())))


def _machine_times() -> tuple[float, float]:
    """Return the seconds since boot that cores were busy or stolen, and those that there were."""
    times = psutil.cpu_times()._asdict()
    # Guests' time is in user's already (proc_stat(5)).
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total_s - times["idle"] - times.get("iowait", 0.0), total_s


def _family_time(process: psutil.Process) -> float:
    """Return the seconds that a process and its children, such as a loader's, have taken.

    Children that have ended count, too.
    """
    times = process.cpu_times()
    total_s = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            total_s += _family_time(child)
    return total_s


class GpuWatch(Watch):
    """Adds up one GPU's throttle times and other processes' loads."""

    def __init__(
        self,
        monitor: Monitor,
        uuid: str,
        clock: Callable[[], float],
        own_pids: Collection[int],
    ) -> None:
        """Begin now; raise DeviceLostError if the library does not know the GPU, or it is lost."""
        self._monitor = monitor
        self._uuid = uuid
        self._clock = clock
        self._own_pids = set(own_pids)
        self._throttle = ThrottleTimes(monitor, uuid)
        self._loads = monitor.process_loads(uuid)
        self._began_s = self._polled_s = clock()
        self._held_s: defaultdict[str, float] = defaultdict(float)
        """Seconds for which each reason held the clocks down."""
        self._busy_s: defaultdict[int, float] = defaultdict(float)
        """Seconds for which each process computed."""
        self._seen_s: dict[int, float] = {}
        """When each process's last sample was read."""
        self._lost = ""

    def poll(self) -> None:
        """Add what was counted since the last poll."""
        if self._lost:
            return
        try:
            self._add_throttling()
            self._add_loads()
        except DeviceLostError as failure:
            self._lost = f"the GPU was lost to NVML: {failure}"

    def disturbance(self) -> str:
        """Name the causes that held for more than a twentieth of the time, joined by "; "."""
        # NVML does not list those that only draw, which have samples all the same.
        present = set(self._busy_s)
        with suppress(DeviceLostError):
            present.update(self._monitor.process_bytes(self._uuid) or ())
        time.sleep(SAMPLE_S if present - self._own_pids else LATE_S)
        self.poll()
        if self._lost:
            return self._lost
        causes = []
        for reason, held_s in self._held_s.items():
            if held_s > LEAST_SHARE * (self._polled_s - self._began_s):
                causes.append(f"{CAUSES[reason]} for {held_s:.2g} s")
        # In a container NVML may give the host's ids, and what looks foreign would be this very
        # process.
        if os.getpid() in present.union(self._busy_s):
            for pid in sorted(self._busy_s.keys() - self._own_pids):
                share = self._busy_s[pid] / (max(self._seen_s.values()) - self._began_s)
                if share > LEAST_SHARE:
                    causes.append(
                        f"another process used the GPU (pid {pid}, {share:.0%} of the time)"
                    )
        return "; ".join(causes)

    def _add_throttling(self) -> None:
        now_s = self._clock()
        elapsed_s = now_s - self._polled_s
        self._polled_s = now_s
        held_s = self._throttle.since(elapsed_s)
        active = self._monitor.clock_event_reasons(self._uuid) or ()
        self.capped |= POWER_CAP in active or POWER_CAP in held_s
        for reason in CAUSES:
            if reason in self._throttle.counted:
                self._held_s[reason] += held_s.get(reason, 0.0)
            elif reason in active:  # as far as is known, since the last poll
                self._held_s[reason] += elapsed_s

    def _add_loads(self) -> None:
        now_s = self._clock()
        for pid, pct in self._loads().items():
            # A process's sample stands for the time since its last one, and for no longer than
            # samples take.
            since_s = max(self._seen_s.get(pid, self._began_s), now_s - SAMPLE_S)
            self._busy_s[pid] += (now_s - since_s) * pct / 100
            self._seen_s[pid] = now_s
