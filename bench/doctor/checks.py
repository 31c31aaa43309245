"""The self-tests: each runs its probes, judges what they measured, and explains what a failure means.

Without torch: the probes (bench/doctor/probes.py) run in fresh processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import active_children
from typing import Any

from bench.devices.monitor import open_monitor
from bench.measure.sampler import NAME, Sampler
from bench.results.records import Device
from bench.stats import Interval, student

IEEE_ERROR = 3e-5
"""The error of a 512×512 product is far below this in IEEE fp32, and above 1e-4 in TF32."""
RATIO_TOLERANCE = 0.01
NOISE = 0.01
"""The differences that a report claims begin at 1 %, so the instrument may not make such ones."""
PROCESSES = 7
"""Fresh processes in which a step is timed against itself: processes differ by some tenths of a per cent (because of
where their memory lies, for one), which three of them cannot tell from 1 %."""
MIB = 2**20
HELD_BYTES = 256 * MIB
HELD_TOLERANCE = 0.02
UNREAD = "this system does not let the peak of a process be read and reset"
BUSY = "unless other programs were busy on the same cores, "


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One row of the doctor's table."""

    name: str
    expected: str
    measured: str
    """The measurement; why not, if it cannot be done."""
    passed: bool | None
    """None: it cannot be done here, which is no failure."""
    meaning: str
    """Consequence of a failure for the results."""

    @property
    def result(self) -> str:
        """The outcome in a word or two."""
        return "not possible" if self.passed is None else "pass" if self.passed else "FAIL"


Probe = Callable[..., Any]
"""Runs a function of bench/doctor/probes.py, named first, on the device in a fresh process."""


def arithmetic(probe: Probe, _device: Device) -> Check:
    """Check that fp32 is IEEE fp32."""
    error = probe("matmul_error")
    return Check(
        name="FP32 is FP32",
        expected=f"matmul error ≤ {IEEE_ERROR:.0e}",
        measured=f"{error:.1e}",
        passed=error <= IEEE_ERROR,
        meaning="the baseline computes in less than fp32, so every speedup is too small",
    )


def known_ratio(probe: Probe, _device: Device) -> Check:
    """Check the ratio of two arms that take known times."""
    truth, log = probe("known_ratio")
    return Check(
        name=f"known ratio {truth:.2f}",
        expected=f"{truth:.2f} within {100 * RATIO_TOLERANCE:.0f} %",
        measured=_ratio(log),
        passed=abs(math.exp(log.center) / truth - 1) <= RATIO_TOLERANCE,
        meaning=f"{BUSY}speedups are not measured as they are: the clock, the blocks or the machine distort them",
    )


def against_itself(probe: Probe, _device: Device) -> Check:
    """Check a step against itself, over processes."""
    same = student([probe("against_itself", process) for process in range(PROCESSES)])
    noise = math.inf if same.half_width is None else math.expm1(abs(same.center) + same.half_width)
    return Check(
        name="A/A",
        expected=f"1 inside the interval, or A/A noise ≤ {100 * NOISE:.0f} %",
        measured=f"{_ratio(same)}, A/A noise {100 * noise:.2g} %",
        passed=noise <= NOISE or _includes_one(same),
        meaning=f"{BUSY}two equal arms are not treated alike: believe no difference smaller than this noise",
    )


def memory(probe: Probe, _device: Device) -> Check:
    """Check that a peak rises by what a step holds."""
    before, after = (probe("peak", held).headline_bytes for held in (0, HELD_BYTES))
    rise = None if before is None or after is None else after - before
    return Check(
        name="peak memory",
        expected=f"+{HELD_BYTES / MIB:.0f} MiB within {100 * HELD_TOLERANCE:.0f} %",
        measured=UNREAD if rise is None else f"{rise / MIB:+.1f} MiB",
        passed=None if rise is None else abs(rise / HELD_BYTES - 1) <= HELD_TOLERANCE,
        meaning="peaks of memory are not what a step holds, nor are the savings computed from them",
    )


def telemetry(probe: Probe, device: Device) -> Check:
    """Check that reading a GPU's clocks and power slows no step: the process that reads is stopped in one arm."""
    log: Interval | None = None
    monitor = open_monitor() if device.is_gpu else None
    if monitor is not None and device.uuid is not None:
        with monitor, Sampler(((device.placement, device.uuid),)):
            (reading,) = [child.pid for child in active_children() if child.name == NAME]
            log = probe("telemetry", reading)
    why = "no driver is read here" if device.is_gpu else "nothing is read of a CPU"
    return Check(
        name="telemetry costs nothing",
        expected=f"1 inside the interval, or within {100 * NOISE:.0f} %",
        measured=why if log is None else _ratio(log),
        passed=None if log is None else abs(math.expm1(log.center)) <= NOISE or _includes_one(log),
        meaning=f"{BUSY}reading clocks and power slows steps, in every arm of every run",
    )


def broken(name: str, error: str) -> Check:
    """Return the failed check one of whose processes failed."""
    return Check(
        name=name,
        expected="runs to its end",
        measured=error,
        passed=False,
        meaning="what this tests is unknown here, and trials may fail in the same way",
    )


CHECKS: dict[str, Callable[[Probe, Device], Check]] = {
    "fp32": arithmetic,
    "a known ratio": known_ratio,
    f"a step against itself, in {PROCESSES} processes": against_itself,
    "memory": memory,
    "telemetry": telemetry,
}
"""Every device's checks, by the line printed before they run."""


def _includes_one(log: Interval) -> bool:
    return log.low is not None and log.high is not None and log.low <= 0 <= log.high


def _ratio(log: Interval) -> str:
    ratio = log.exp()
    if ratio.low is None or ratio.high is None:
        return f"{ratio.center:.4f}"
    return f"{ratio.center:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
