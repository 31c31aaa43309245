"""Self-tests of the timing: the clock, a known ratio, a step against itself, and the sampler's effect."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.doctor.arms import BesideProcess, KnownStep, Lengthened, nap, pause, spin, torch_device, training_runner
from bench.measure.quads import compare
from bench.measure.timing import Clock, Runner, Sizes
from bench.measure.warmup import empty_block_ns, prepare, warm_up
from bench.phases.context import enter
from bench.results.records import Device, Message
from bench.spec.trial import Protocol
from bench.stats import Interval

Send = Callable[[Message], None]

KNOWN_NS = (3e6, 2e6)
KNOWN_CYCLES = (4_000_000, 2_000_000)
"""Steps of a known ratio: nanoseconds on a CPU, cycles on a GPU, some milliseconds too."""
KNOWN = Protocol(replicates=1, time_budget_s=2.0)
FINE = Protocol(time_budget_s=2.0, target_ci=0.0025)
"""Narrow enough to see 1 %."""
ADDED = 0.01
BESIDE = Protocol(replicates=1, time_budget_s=8.0, min_quads=8, target_ci=0.002)
BESIDE_S, RESUME_S = 0.5, 0.1
"""Blocks beside the sampler hold a few of its readings each, for a reading in few blocks would be trimmed away."""


def timed(
    runners: Sequence[Runner], protocol: Protocol, *, seed: int = 0, clock: Clock | None = None
) -> list[Interval]:
    """Measure the log-speedup of each arm over the first as a speed trial does."""
    clock = clock or time.perf_counter_ns
    cuts = prepare(runners, protocol.time_budget_s, clock=clock)
    found = compare(runners, [cut.sizes for cut in cuts], protocol, seed=seed, clock=clock)
    return [log for log in found.logs[1:] if log is not None]


def empty_block(device: Device, _send: Send) -> float:
    """Return the nanoseconds of a block without steps."""
    runner = training_runner(device)
    runner.run(1)
    return empty_block_ns(runner)


def known_ratio(device: Device, _send: Send) -> tuple[float, Interval]:
    """Return the ratio of two arms that take known times, and the log-ratio measured."""
    place = torch_device(device)
    enter("fp32", place)
    long, short = KNOWN_CYCLES if device.is_gpu else KNOWN_NS
    arms = [
        KnownStep(name, place, partial(spin, place, int(size)) if device.is_gpu else nap(size))
        for name, size in (("longer", long), ("shorter", short))
    ]
    (found,) = timed(arms, KNOWN)
    return long / short, found


def against_itself(device: Device, process: int, _send: Send) -> tuple[float, float]:
    """Return the log-ratios of a training step to itself, and to itself with 1 % added, in this process."""
    base, again, longer = (training_runner(device, name) for name in ("A", "A again", "A + 1 %"))
    step_ns = warm_up(longer, FINE.time_budget_s / 2).step_ns
    arms: list[Runner] = [base, again, Lengthened("A + 1 %", longer, pause(torch_device(device), ADDED * step_ns))]
    same, added = timed(arms, FINE, seed=process)
    return same.center, added.center


def beside_sampler(device: Device, pid: int, _send: Send) -> Interval | None:
    """Return the log-ratio of steps while the sampling process stands still to steps while it runs.

    Args:
        device: the GPU that it samples.
        pid: the sampling process, which goes on when this has ended.
    """
    runner = training_runner(device)
    step_s = warm_up(runner, BESIDE.time_budget_s / 4).step_ns / 1e9
    sizes = Sizes(settle=math.ceil(RESUME_S / step_s), steps=math.ceil(BESIDE_S / step_s))
    arms = [BesideProcess(name, runner, pid, runs) for name, runs in (("off", False), ("on", True))]
    try:
        return compare(arms, [sizes, sizes], BESIDE, seed=0).logs[1]
    finally:
        os.kill(pid, signal.SIGCONT)
