"""What each self-test expects, and whether what was measured is that. Pure functions, without torch.

Where a figure is None the check cannot be done here, and ``why`` says so.
"""

from __future__ import annotations

import math

from bench.doctor.check import Check, Identity
from bench.measure.warmup import CLOCK_SHARE, SHORTEST_BLOCK_S
from bench.stats import Interval

IEEE_ERROR = 3e-5
TF32_ERROR = (1e-4, 1e-3)
"""The error of a 512×512 product: IEEE fp32 stays far below the first figure, TF32 lies between the others."""
GPU_BLOCK_S = 0.05
"""A GPU's synchronisation alone takes some microseconds, so its blocks may be made this long for the clock."""
RATIO_TOLERANCE = 0.01
FLOOR = 0.01
BIAS, COVERAGE = 0.002, 0.9
MIB = 2**20


def fp32(error: float) -> Check:
    """Judge the error of a matrix product in fp32."""
    return Check(
        name="FP32 is FP32",
        expected=f"matmul error ≤ {IEEE_ERROR:.0e}",
        measured=f"{error:.1e}",
        passed=error <= IEEE_ERROR,
        meaning="the baseline computes in less than fp32, so every speedup is too small",
    )


def tf32(error: float | None, why: str) -> Check:
    """Judge the error of a matrix product with TF32 on: it must show, or the check of fp32 could not fail."""
    low, high = TF32_ERROR
    return Check(
        name="TF32 is seen",
        expected=f"matmul error {low:.0e} to {high:.0e}",
        measured=why if error is None else f"{error:.1e}",
        passed=None if error is None else low <= error <= high,
        meaning="the probe does not tell TF32 from fp32, or the switch does nothing, so fp32 may be TF32 too",
    )


def reaches_model(autocast: str, plain: str, mixed: str) -> Check:
    """Judge the types that products computed in.

    Args:
        autocast: the type that autocast asks for.
        plain: the types in fp32, as ``operations.shares`` writes them, the largest share first.
        mixed: the types under autocast.
    """
    alone = [word.partition(":")[0] for word in plain.split()] == ["float32"]
    return Check(
        name="mixed precision reaches the model",
        expected=f"fp32: float32 alone; mixed: {autocast} most",
        measured=f"fp32: {plain or 'nothing'}; mixed: {mixed or 'nothing'}",
        passed=alone and mixed.startswith(f"{autocast}:"),
        meaning="the arms differ in less, or in more, than precision: their speedups mean nothing",
    )


def clock(empty_ns: float, *, on_gpu: bool) -> Check:
    """Judge the time of a block without steps."""
    limit_us = 1e6 * CLOCK_SHARE * (GPU_BLOCK_S if on_gpu else SHORTEST_BLOCK_S)
    return Check(
        name="the clock costs nothing",
        expected=f"empty block ≤ {limit_us:.3g} µs",
        measured=f"{empty_ns / 1e3:.2f} µs",
        passed=empty_ns / 1e3 <= limit_us,
        meaning="blocks must be made long to hide the clock, and long blocks see more of the machine's drift",
    )


def known_ratio(truth: float, found: Interval) -> Check:
    """Judge the log-ratio measured of arms whose ratio is ``truth``."""
    return Check(
        name=f"known ratio {truth:.2f}",
        expected=f"{truth:.2f} within {100 * RATIO_TOLERANCE:.0f} %",
        measured=_ratio(found),
        passed=abs(math.exp(found.center) / truth - 1) <= RATIO_TOLERANCE,
        meaning="a speedup is not measured as it is: the clock, the blocks or the machine distort it",
    )


def null(found: Interval) -> Check:
    """Judge the log-ratio of a step to itself, over processes."""
    floor = math.expm1(found.reach)
    holds = found.low is not None and found.high is not None and found.low <= 0 <= found.high
    return Check(
        name="A/A",
        expected=f"1 inside the interval, or floor ≤ {100 * FLOOR:.0f} %",
        measured=f"{_ratio(found)}, floor {100 * floor:.2g} %",
        passed=holds or floor <= FLOOR,
        meaning="two equal arms are not treated alike: believe no difference smaller than this floor",
    )


def one_per_cent(found: Interval) -> Check:
    """Judge the log-ratio of a step to the same with 1 % added, over processes."""
    return Check(
        name="A/A + 1 %",
        expected="about 0.990, interval below 1",
        measured=_ratio(found),
        passed=found.high is not None and found.high < 0,
        meaning="differences of 1 % cannot be shown on this machine now, not even with --rigorous",
    )


def raised(name: str, asked_bytes: int, before: int | None, after: int | None, *, tolerance: float, why: str) -> Check:
    """Judge how far holding ``asked_bytes`` more raised a peak."""
    rise = None if before is None or after is None else after - before
    return Check(
        name=name,
        expected=f"+{asked_bytes / MIB:.0f} MiB within {100 * tolerance:.0f} %",
        measured=why if rise is None else f"{rise / MIB:+.1f} MiB",
        passed=None if rise is None else abs(rise / asked_bytes - 1) <= tolerance,
        meaning="peaks of memory are not what a step holds, nor are the savings computed from them",
    )


def isolated(before: int | None, after: int | None, why: str) -> Check:
    """Judge the peaks of one step before and after another process took much memory."""
    passed, measured = None, why
    if before is not None and after is not None:
        passed = abs(after - before) <= 0.05 * before + 2 * MIB
        measured = f"{before / MIB:.1f} MiB, then {after / MIB:.1f} MiB"
    return Check(
        name="processes are isolated",
        expected="same peak after a process that took 1 GiB, within 5 % + 2 MiB",
        measured=measured,
        passed=passed,
        meaning="what ran before is in a peak: memory figures depend on the order of the trials",
    )


def estimator(bias: float, coverage: float, arms: int) -> Check:
    """Judge the estimates of simulated arms: mean error of the log-speedup, and share of intervals that held it."""
    return Check(
        name="estimator",
        expected=f"bias < {100 * BIAS:.1f} %, coverage ≥ {100 * COVERAGE:.0f} %",
        measured=f"bias {100 * bias:+.3f} %, coverage {100 * coverage:.1f} % of {arms} simulated arms",
        passed=abs(bias) < BIAS and coverage >= COVERAGE,
        meaning="the statistics of this build are wrong: believe no interval",
    )


def energy(joules: tuple[float, float] | None, why: str) -> Check:
    """Judge the energy per step of a window of 5 s and one of 10 s."""
    return Check(
        name="energy",
        expected="5-s and 10-s windows agree within 5 %",
        measured=why if joules is None else f"{joules[0]:.4g} and {joules[1]:.4g} J/step",
        passed=None if joules is None else abs(joules[0] / joules[1] - 1) <= 0.05,
        meaning="joules per step depend on how long one looks: believe no difference of energy below 5 %",
    )


def sampler(found: Interval | None, samples: int, why: str) -> Check:
    """Judge the log-ratio of steps without the sampling process to steps beside it, in which ``samples`` were read."""
    return Check(
        name="the sampler disturbs nothing",
        expected=f"1.00 within {100 * RATIO_TOLERANCE:.0f} %",
        measured=why if found is None else f"{_ratio(found)} beside {samples} samples",
        passed=None if found is None else samples > 0 and abs(math.expm1(found.center)) <= RATIO_TOLERANCE,
        meaning="watching clocks and power slows the steps, or nothing was watched: telemetry is not free here",
    )


def identity(found: Identity | None, why: str) -> Check:
    """Judge whether CUDA's index and NVML's UUID name one GPU."""
    same = found is not None and (
        found.cuda_name == found.nvml_name
        and found.nvml_bytes is not None
        and abs(found.cuda_bytes / found.nvml_bytes - 1) <= 0.05
        and found.back == (found.cuda_index,)
    )
    return Check(
        name="CUDA and NVML mean one GPU",
        expected="name and memory agree, and the UUID leads back to the index",
        measured=why if found is None else _identity(found),
        passed=None if found is None else same,
        meaning="power, clocks and memory may be another GPU's",
    )


def broken(name: str, error: str) -> Check:
    """Tell of a check whose process did not end well."""
    return Check(
        name=name,
        expected="runs to its end",
        measured=error,
        passed=False,
        meaning="what this tests is not known here, and trials may fail in the same way",
    )


def _identity(found: Identity) -> str:
    nvml_bytes = "unknown" if found.nvml_bytes is None else f"{found.nvml_bytes / MIB:.0f} MiB"
    back = ", ".join(map(str, found.back)) or "nothing"
    return (
        f"CUDA {found.cuda_index}: {found.cuda_name}, {found.cuda_bytes / MIB:.0f} MiB; "
        f"NVML {found.uuid}: {found.nvml_name}, {nvml_bytes}; back to {back}"
    )


def _ratio(log: Interval) -> str:
    ratio = log.exp()
    if ratio.low is None or ratio.high is None:
        return f"{ratio.center:.4f}"
    return f"{ratio.center:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
