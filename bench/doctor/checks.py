"""The self-tests: each runs its probes, judges what they measured, and explains what a failure means.

Without torch: the probes (bench/doctor/probes.py) run in fresh processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from bench.measure.warmup import CLOCK_SHARE, SHORTEST_BLOCK_S
from bench.results.records import Device
from bench.spec.precisions import PRECISIONS
from bench.stats import Interval, student_interval

IEEE_ERROR = 3e-5
TF32_ERROR = (1e-4, 1e-3)
"""The error of a 512×512 product: far below the first figure in IEEE fp32, between the other two in TF32."""
GPU_BLOCK_S = 0.05
"""On a GPU synchronizing alone takes some microseconds; blocks may be this long to make up for it."""
RATIO_TOLERANCE = 0.01
NOISE = 0.01
PROCESSES = 7
"""Fresh processes in which a step is timed against itself: processes differ by some tenths of a per cent (because of
where their memory lies, for one), which three of them cannot tell from 1 %."""
BUSY_PCT = 10.0
"""Share of the cores' time that other programs may take before a failed comparison of times is put down to them."""
MIB = 2**20
HELD_BYTES = 256 * MIB
NO_NVML = "there is no NVML here"


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
    timed: bool = False
    """Whether it compares times, which other programs on the same cores disturb."""

    @property
    def result(self) -> str:
        """The outcome in a word or two."""
        return "not possible" if self.passed is None else "pass" if self.passed else "FAIL"

    def under_load(self, foreign_pct: float | None) -> Check:
        """Return the check with a busy machine as the likely reason of its failure; a load of None is unknown."""
        if not self.timed or self.passed is not False or foreign_pct is None or foreign_pct < BUSY_PCT:
            return self
        reason = f"the machine was busy: other programs took {foreign_pct:.0f} % of its cores. Repeat it when they rest"
        return replace(self, meaning=f"{reason}; if it fails then, too: {self.meaning}")


_YES_OR_NO = {True: "yes", False: "no, it is emulated", None: "unknown"}
Probe = Callable[..., Any]
"""Runs a function of bench/doctor/probes.py, named first, on the device in a fresh process."""
Checks = Callable[[Probe, Device], Iterator[Check]]


def identity(probe: Probe, device: Device) -> Iterator[Check]:
    """Check that CUDA's index and NVML's UUID name one GPU."""
    why = "NVML does not start, or does not know this GPU" if device.is_gpu else NO_NVML
    measured, same = (probe("identify") if device.is_gpu else None) or (why, None)
    yield Check(
        name="CUDA and NVML mean one GPU",
        expected="name and memory agree, and the UUID leads back to the index",
        measured=measured,
        passed=same,
        meaning="power, clocks and memory may be another GPU's",
    )


def arithmetic(probe: Probe, device: Device) -> Iterator[Check]:
    """Check that fp32 is IEEE fp32, and that TF32 would have been noticed."""
    error = probe("matmul_error", "fp32")
    yield Check(
        name="FP32 is FP32",
        expected=f"matmul error ≤ {IEEE_ERROR:.0e}",
        measured=f"{error:.1e}",
        passed=error <= IEEE_ERROR,
        meaning="the baseline computes in less than fp32, so every speedup is too small",
    )
    why = (device.unsupported or {}).get("tf32")
    error = math.nan if why else probe("matmul_error", "tf32")
    low, high = TF32_ERROR
    yield Check(
        name="TF32 is seen",
        expected=f"matmul error {low:.0e} to {high:.0e}",
        measured=why or f"{error:.1e}",
        passed=None if why else low <= error <= high,
        meaning="the probe does not tell TF32 from fp32, or the switch does nothing, so fp32 may be TF32 too",
    )


def autocast(probe: Probe, device: Device) -> Iterator[Check]:
    """Check which types a model's products are computed in, the largest share of the FLOPs first, and who does bf16."""
    unsupported = device.unsupported or {}
    mixed = next((name for name in ("amp-bf16", "amp-fp16") if name not in unsupported), "amp-bf16")
    wanted = PRECISIONS[mixed].autocast
    plain, types = (probe("compute_dtypes", name) for name in ("fp32", mixed))
    fp32_alone = [word.partition(":")[0] for word in plain.split()] == ["float32"]
    yield Check(
        name="mixed precision reaches the model",
        expected=f"fp32: float32 alone; mixed: {wanted} most",
        measured=f"fp32: {plain or 'nothing'}; mixed: {types or 'nothing'}",
        passed=fp32_alone and types.startswith(f"{wanted}:"),
        meaning="the arms differ in less, or in more, than precision: their speedups mean nothing",
    )
    native, refused = device.native_bf16, "amp-bf16" in unsupported
    if device.is_gpu:
        passed = None if native is None else native != refused
    else:  # one that emulates it may be measured for accuracy and memory
        passed = True if native and not refused else None
    yield Check(
        name="bfloat16 is native",
        expected="yes, or no bfloat16 precision on a GPU",
        measured=f"{_YES_OR_NO[native]}; amp-bf16 is {'unsupported' if refused else 'supported'}",
        passed=passed,
        meaning="bfloat16 is emulated here and measured all the same, or native and refused",
    )


def timing(probe: Probe, device: Device) -> Iterator[Check]:
    """Check the time of a block without steps, and the ratio of two arms that take known times."""
    empty_us = probe("empty_block") / 1e3
    limit_us = 1e6 * CLOCK_SHARE * (GPU_BLOCK_S if device.is_gpu else SHORTEST_BLOCK_S)
    yield Check(
        name="the clock costs nothing",
        expected=f"empty block ≤ {limit_us:.3g} µs",
        measured=f"{empty_us:.2f} µs",
        passed=empty_us <= limit_us,
        meaning="blocks must be long to hide the clock, and long blocks see more of the machine's drift",
        timed=True,
    )
    truth, log = probe("known_ratio")
    yield Check(
        name=f"known ratio {truth:.2f}",
        expected=f"{truth:.2f} within {100 * RATIO_TOLERANCE:.0f} %",
        measured=_ratio(log),
        passed=abs(math.exp(log.center) / truth - 1) <= RATIO_TOLERANCE,
        meaning="speedups are not measured as they are: the clock, the blocks or the machine distort them",
        timed=True,
    )


def against_itself(probe: Probe, _device: Device) -> Iterator[Check]:
    """Check a step against itself, and against itself with 1 % added, over processes."""
    centers = [probe("against_itself", process) for process in range(PROCESSES)]
    same, longer = (student_interval(values) for values in zip(*centers, strict=True))
    noise = math.expm1(same.reach)
    yield Check(
        name="A/A",
        expected=f"1 inside the interval, or A/A noise ≤ {100 * NOISE:.0f} %",
        measured=f"{_ratio(same)}, A/A noise {100 * noise:.2g} %",
        passed=noise <= NOISE or (same.low is not None and same.high is not None and same.low <= 0 <= same.high),
        meaning="two equal arms are not treated alike: believe no difference smaller than this noise",
        timed=True,
    )
    yield Check(
        name="A/A + 1 %",
        expected="about 0.990, interval below 1",
        measured=_ratio(longer),
        passed=longer.high is not None and longer.high < 0,
        meaning="differences of 1 % cannot be shown on this machine now, not even with --rigorous",
        timed=True,
    )


def memory(probe: Probe, device: Device) -> Iterator[Check]:
    """Check that a peak rises by what a step holds."""
    small, large = (probe("peak", held) for held in (0, HELD_BYTES))
    kind = "allocated" if device.is_gpu else "resident"
    why = "this system does not let the peak of a process be read and reset"
    yield _rise(f"{kind} memory", small.headline_bytes, large.headline_bytes, tolerance=0.02, why=why)
    if device.is_gpu:
        unknown = "the driver does not tell how much memory is used"
        used = (small.driver_used_bytes, large.driver_used_bytes)
        yield _rise("the driver's memory", *used, tolerance=0.1, why=unknown)


def energy(probe: Probe, device: Device) -> Iterator[Check]:
    """Check that the energy of a step does not depend on the length of the window, nor on what it is read from."""
    joules = probe("energy_windows") if device.energy else None
    why = NO_NVML if device.kind == "cpu" else "this GPU tells neither energy nor power"
    yield Check(
        name="energy",
        expected="5-s and 10-s windows agree within 5 %",
        measured=f"{joules[0]:.4g} and {joules[1]:.4g} J/step" if joules else why,
        passed=abs(joules[0] / joules[1] - 1) <= 0.05 if joules else None,
        meaning="joules per step depend on the length of the window: believe no difference of energy below 5 %",
    )
    yield Check(
        name="counter and power agree",
        expected="within 10 %, and no more than the power limit",
        measured=(joules[2] or "nothing speaks against the energy") if joules else why,
        passed=not joules[2] if joules else None,
        meaning="one of the two is wrong, so every energy may be",
    )


def broken(name: str, error: str) -> Check:
    """Return the failed check of a group one of whose processes failed."""
    return Check(
        name=name,
        expected="runs to its end",
        measured=error,
        passed=False,
        meaning="what this tests is unknown here, and trials may fail in the same way",
    )


GROUPS: dict[str, Checks] = {
    "which GPU this is": identity,
    "FP32 and TF32": arithmetic,
    "mixed precision": autocast,
    "clock and a known ratio": timing,
    f"a step against itself, in {PROCESSES} processes": against_itself,
    "memory": memory,
    "energy": energy,
}
"""Every device's checks, by the line printed before they run."""


def _rise(name: str, before: int | None, after: int | None, *, tolerance: float, why: str) -> Check:
    """Check how far holding ``HELD_BYTES`` more raised a peak."""
    rise = None if before is None or after is None else after - before
    return Check(
        name=name,
        expected=f"+{HELD_BYTES / MIB:.0f} MiB within {100 * tolerance:.0f} %",
        measured=why if rise is None else f"{rise / MIB:+.1f} MiB",
        passed=None if rise is None else abs(rise / HELD_BYTES - 1) <= tolerance,
        meaning="peaks of memory are not what a step holds, nor are the savings computed from them",
    )


def _ratio(log: Interval) -> str:
    ratio = log.exp()
    if ratio.low is None or ratio.high is None:
        return f"{ratio.center:.4f}"
    return f"{ratio.center:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
