"""The self-tests: each runs probes, judges what they measured, and says what a failure means.

Without torch: the probes (bench/doctor/probes.py) run in fresh processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.spec.precisions import IEEE_ERROR
from bench.stats import Interval, student

# Steps of a known ratio: of so many equal parts.
KNOWN_PARTS = (3, 2)
RATIO_TOLERANCE = 0.01
# The differences that a report claims begin at 1 %, so the instrument may not make such ones.
NOISE = 0.01
# Fresh processes in which a step is timed against itself: processes differ by some tenths of a per
# cent (because of where their memory lies, for one), which three of them cannot tell from 1 %.
PROCESSES = 7
MIB = 2**20
HELD_BYTES = 256 * MIB
HELD_TOLERANCE = 0.02
BUSY = "unless other programs were busy on the same cores, "


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The outcome of one self-test."""

    measured: str
    """The measurement; why not, if it cannot be done."""
    passed: bool | None = None
    """None: it cannot be done here, which is no failure."""
    expected: str = ""
    meaning: str = ""
    """Consequence of a failure for the results."""

    @property
    def result(self) -> str:
        """The outcome in a word or two."""
        return {None: "not possible", True: "pass", False: "FAIL"}[self.passed]


# Runs a function of bench/doctor/probes.py, named first, on the device in a fresh process.
Probe = Callable[..., Any]


def arithmetic(probe: Probe) -> Check:
    """Check that fp32 is IEEE fp32."""
    error = probe("matmul_error")
    return Check(
        expected=f"matmul error ≤ {IEEE_ERROR:.0e}",
        measured=f"{error:.1e}",
        passed=error <= IEEE_ERROR,
        meaning="the baseline computes in less than fp32, so every speedup is too small",
    )


def known_ratio(probe: Probe) -> Check:
    """Check the ratio of two arms that take known times."""
    truth = KNOWN_PARTS[0] / KNOWN_PARTS[1]
    log = probe("known_ratio")
    return Check(
        expected=f"{truth:.2f} within {RATIO_TOLERANCE:.0%}",
        measured=_ratio(log),
        passed=abs(math.exp(log.center) / truth - 1) <= RATIO_TOLERANCE,
        meaning=(
            f"{BUSY}speedups are not measured as they are: the clock, the blocks or the machine "
            "distort them"
        ),
    )


def against_itself(probe: Probe) -> Check:
    """Check a step against itself, over processes."""
    log = student([probe("against_itself", process) for process in range(PROCESSES)])
    half = log.half_width
    assert half is not None  # of several processes
    noise = math.expm1(abs(log.center) + half)
    return Check(
        expected=f"1 inside the interval, or A/A noise ≤ {NOISE:.0%}",
        measured=f"{_ratio(log)}, A/A noise {noise:.2%}",
        passed=abs(log.center) <= half or noise <= NOISE,
        meaning=(
            f"{BUSY}two equal arms are not treated alike: believe no difference smaller than this "
            "noise"
        ),
    )


def memory(probe: Probe) -> Check:
    """Check that a peak rises by what a step holds."""
    before = probe("peak", 0)
    if before is None:
        return Check(measured="this system does not let a process's peak be read and reset")
    rise = probe("peak", HELD_BYTES) - before
    return Check(
        expected=f"+{HELD_BYTES / MIB:.0f} MiB within {HELD_TOLERANCE:.0%}",
        measured=f"{rise / MIB:+.1f} MiB",
        passed=abs(rise / HELD_BYTES - 1) <= HELD_TOLERANCE,
        meaning="peaks of memory are not what a step holds, nor are the savings computed from them",
    )


# Every device's checks, by their names.
CHECKS: dict[str, Callable[[Probe], Check]] = {
    "FP32 is FP32": arithmetic,
    "known ratio": known_ratio,
    "A/A": against_itself,
    "peak memory": memory,
}


def _ratio(log: Interval) -> str:
    center, low, high = log.exp().ends
    return f"{center:.4f} [{low:.4f}, {high:.4f}]"
