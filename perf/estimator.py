#!/usr/bin/env python3
"""Measure the error of estimators of speed; prints three tables.

    python perf/estimator.py [--device cpu|cuda] [--repeats 40] [--only 1,2,3]

1. A/A: a training step is compared with itself at an equal budget of 160 steps, switch warm-up included. Estimators:
   means of consecutive runs, medians of consecutive runs, this harness, and blocks of one step without warm-up. The
   last is the best that interleaving can reach on this machine, but is biased if switching costs time. Measured on the
   quiet machine and while another process burns one core at random intervals. The true ratio is exactly 1.
2. Interleaving against solo runs: the harness's speedup, and the speedup of alternating 2-second runs of one arm at a
   time (the first quarter of each dropped), at the speed at which users train.
3. A/A error by block length at an equal budget, quiet and disturbed.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as bench/launch/local.py does, before torch is imported

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from bench import stats
from bench.devices.backend import backend_of
from bench.measure.rounds import Sizes, compare, palindrome, time_block
from bench.measure.warmup import Cut, prepare, single_step
from bench.phases.arms import TrainingRunner
from bench.spec.precisions import PRECISIONS
from bench.spec.trial import Protocol
from perf.arms import harness, open_suite

STEPS = 160
LENGTHS = (1, 3, 10, 30, 120)
LONG_STEPS = 480
SOLO_S = 2.0


@contextmanager
def burning() -> Iterator[None]:
    """Let another process burn one core at random intervals."""
    process = multiprocessing.get_context("spawn").Process(target=burn, daemon=True)
    process.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        process.kill()
        process.join()


def burn() -> None:
    """Alternate between computing and sleeping, each for 0.1 s on average."""
    rng = random.Random(os.getpid())
    while True:
        end = time.perf_counter() + rng.expovariate(10)
        while time.perf_counter() < end:
            pass
        time.sleep(rng.expovariate(10))


def consecutive(arm: TrainingRunner, steps: int, centre: Callable[[Sequence[float]], float]) -> float:
    """Return ln(first / second) of two runs, one after the other."""
    runs = [[float(single_step(arm, time.perf_counter_ns)) for _ in range(steps // 2)] for _ in range(2)]
    return math.log(centre(runs[0]) / centre(runs[1]))


def interleaved(arm: TrainingRunner, sizes: Sizes, steps: int, rng: random.Random) -> float:
    """Return the log-ratio of an arm against itself in ABBA rounds, as the harness estimates it."""
    logs: list[float] = []
    used = 0
    while not logs or used < steps:
        times: list[list[float]] = [[], []]
        last = None  # the first block of a round always has a switch warm-up
        for which in palindrome(2, rng):
            warm = which == last
            times[which].append(float(time_block(arm, sizes, warm=warm)))
            used += sizes.steps + (0 if warm else sizes.switch_warmup)
            last = which
        logs.append(stats.round_log_ratio((times[0][0], times[0][1]), (times[1][0], times[1][1])))
    return stats.robust_interval(logs).center


def rms_pct(errors: Sequence[float]) -> str:
    """Write the root mean square of log errors in per cent."""
    return f"{100 * math.sqrt(statistics.fmean(error * error for error in errors)):.2f} %"


def disturbances() -> list[tuple[str, Callable[[], AbstractContextManager[None]]]]:
    """Name the two conditions of tables 1 and 3."""
    return [("quiet", nullcontext), ("next to a burning process", burning)]


def against_itself(device: torch.device, repeats: int) -> Table:
    """Make table 1."""
    arm = harness(open_suite("mlp", width=256), "fp32", device, 128)
    cut = prepare([arm, arm], 5.0)[0]
    title = f"1. A/A at {STEPS} steps of {cut.warm.step_ns / 1e6:.2f} ms, rms error of {repeats} comparisons"
    columns = ("means of consecutive runs", "medians of consecutive runs", "this harness", "single steps in turn")
    table = Table("", *columns, title=title)
    for name, disturbed in disturbances():
        errors: list[list[float]] = [[] for _ in columns]
        rng = random.Random(0)
        with disturbed():
            for _ in range(repeats):  # the methods take turns, so that all see the same machine
                errors[0].append(consecutive(arm, STEPS, statistics.fmean))
                errors[1].append(consecutive(arm, STEPS, statistics.median))
                errors[2].append(interleaved(arm, cut.sizes, STEPS, rng))
                errors[3].append(interleaved(arm, Sizes(switch_warmup=0, steps=1), STEPS, rng))
        table.add_row(name, *(rms_pct(column) for column in errors))
    singles = [math.log(single_step(arm, time.perf_counter_ns)) for _ in range(10 * STEPS)]
    table.caption = (
        f"switch warm-up {cut.sizes.switch_warmup}, steps a block {cut.sizes.steps}; single steps scatter by "
        f"{100 * statistics.stdev(singles):.0f} % (quiet), successive ones correlate by "
        f"{statistics.correlation(singles[1:], singles[:-1]):.2f}"
    )
    return table


def against_solo(device: torch.device, pairs: int) -> Table:
    """Make table 2."""
    other = "amp-bf16" if backend_of(device).unsupported_reason(PRECISIONS["amp-bf16"]) is None else "amp-fp16"
    table = Table("", "interleaved", "solo runs", "apart by", "joint interval", "warm-up", "steps", "equal?")
    table.title = f"2. Speedup of {other} over fp32: rounds against {pairs} pairs of {SOLO_S:g}-second runs"
    small = device.type == "cpu"
    cases: list[tuple[str, str, int, dict[str, object]]] = [
        (f"mlp, width {width}", "mlp", 128 if small else 512, {"width": width}) for width in (64, 256, 512, 1024)
    ]
    cases.append(("resnet20", "resnet20", 16 if small else 128, {}))
    for label, suite, batch, parameters in cases:
        arms = [harness(open_suite(suite, **parameters), name, device, batch) for name in ("fp32", other)]
        protocol = Protocol(time_budget_s=10.0)
        cuts = prepare(arms, protocol.time_budget_s)
        rounds = compare(arms, [cut.sizes for cut in cuts], protocol, seed=0).logs[1]
        solo = stats.robust_interval([alone(arms[0]) - alone(arms[1]) for _ in range(pairs)])
        if rounds is None or rounds.half_width is None or solo.half_width is None:
            table.add_row(label, "no interval", *[""] * 6)
            continue
        apart, joint = rounds.center - solo.center, math.hypot(rounds.half_width, solo.half_width)
        table.add_row(
            label,
            written(rounds),
            written(solo),
            f"{100 * apart:+.2f} %",
            f"±{100 * joint:.2f} %",
            cut_words(cuts, "switch_warmup"),
            cut_words(cuts, "steps"),
            "yes" if abs(apart) <= joint else "NO",
        )
    return table


def alone(arm: TrainingRunner) -> float:
    """Return the log time of a step in a run of one arm alone, the first quarter dropped."""
    arm.activate()
    times: list[int] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < SOLO_S or len(times) < 4:
        times.append(single_step(arm, time.perf_counter_ns))
    return math.log(statistics.fmean(times[len(times) // 4 :]))


def cut_words(cuts: Sequence[Cut], name: str) -> str:
    """Write a size of both arms."""
    return " / ".join(str(getattr(cut.sizes, name)) for cut in cuts)


def written(log: stats.Interval) -> str:
    """Write a log-ratio as a ratio with its interval."""
    ratio = log.exp()
    return f"{ratio.center:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def block_lengths(device: torch.device, repeats: int) -> Table:
    """Make table 3."""
    arm = harness(open_suite("mlp", width=256), "fp32", device, 128)
    cut = prepare([arm, arm], 5.0)[0]
    lengths = sorted({*LENGTHS, cut.sizes.steps})
    table = Table("", *(f"{n}{' (shipped)' if n == cut.sizes.steps else ''}" for n in lengths))
    table.title = f"3. A/A error by steps a block, {2 * LONG_STEPS} steps in all, rms of {repeats} comparisons"
    for name, disturbed in disturbances():
        errors: dict[int, list[float]] = {n: [] for n in lengths}
        rng = random.Random(0)
        with disturbed():
            for _ in range(repeats):
                for n in lengths:
                    sizes = Sizes(switch_warmup=cut.sizes.switch_warmup, steps=n)
                    errors[n].append(interleaved(arm, sizes, 2 * LONG_STEPS, rng))
        table.add_row(name, *(rms_pct(errors[n]) for n in lengths))
    return table


def main() -> None:
    """Print the tables that the options select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=40, help="comparisons in table 1 (default: 40)")
    parser.add_argument("--only", default="1,2,3", help="tables to print (default: 1,2,3)")
    options = parser.parse_args()
    device, console = torch.device(options.device), Console(width=150)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    console.print(f"{name}, torch {torch.__version__}")
    makers = {
        "1": lambda: against_itself(device, options.repeats),
        "2": lambda: against_solo(device, max(6, options.repeats // 4)),
        "3": lambda: block_lengths(device, max(6, options.repeats // 3)),
    }
    for number in options.only.split(","):
        console.print(makers[number]())


if __name__ == "__main__":
    main()
