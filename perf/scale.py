#!/usr/bin/env python3
"""Check that time and memory grow in proportion to a run, and time a large report.

    python perf/scale.py [--quick]

Runs of 10,000 trials with a million blocks, and of a tenth of that, are planned, run, resumed and
read:

A made-up CPU and a launcher that answers at once replace the machine, so that the harness takes all
of the time. One suite is planned at 2,000 batch sizes (memory in two precisions, three processes of
speed), run until half of its trials have ended, stopped, and resumed twice: with the other half
left, and with nothing left. Then it is read as for a report. Each of these is a separate process.
"Between trials" is the time from the end of one trial to the beginning of the next, in which the
display stands still: the median, and the longest.

Times are CPU times, because other programs' do not count. A linear step takes ten times as long for
ten times the trials, so the ratio of the times per trial is 1; the start of each process makes it
smaller.

Then ``run_bench.py report`` writes the page of a made-up run of five GPUs with a million blocks,
and of one with a tenth of that (perf/synthetic_fleet.py). Its time is wall time: 10 s at most.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.results.endings import Ending
from bench.results.records import Device, Message
from bench.spec.request import Request
from bench.spec.trial import Trial
from perf.made_up import MadeUpMachine

ROOT = Path(__file__).resolve().parents[1]
ARMS = ("fp32", "amp-bf16")
# Trials of a batch size: memory in each precision, and three processes of speed.
A_CELL = 5
PARTS = {
    "plan": "plan",
    "half": "run half of the trials",
    "rest": "resume, and run the others",
    "again": "resume with nothing left",
    "read": "read for a report",
}
# Rounds of a process of speed, of two blocks for each precision.
BLOCK_ROUNDS = 42
# Largest allowed growth of the time per trial, from a tenth of the trials to all.
MOST_RATIO = 1.3
# Longest time for which the display may stand still between two trials.
MOST_STILL_S = 0.5
MOST_REPORT_S = 10.0
# Rounds of each process in the runs that are reported.
ROUNDS = {"a tenth": 17, "a million blocks": 170}


class Instant(MadeUpMachine):
    """A made-up machine that notes when trials begin and end.

    After ``most`` of them it presses Ctrl-C.
    """

    def __init__(self, rounds: int, most: int | None) -> None:
        super().__init__(rounds)
        self.most = most
        self.begun: list[float] = []
        self.ended: list[float] = []

    def call(self, target: str, *arguments: object, silence_s: float = 0.0) -> Any:  # noqa: ARG002
        """Return the FLOPs of a sample; planning calls for nothing else."""
        return 1e6

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Send the records of a trial."""
        self.begun.append(time.process_time())
        if len(self.begun) - 1 == self.most:
            raise KeyboardInterrupt
        ending = super().run(trial, device, on_message)
        self.ended.append(time.process_time())
        return ending


def child(part: str, trials: int, rounds: int, folder: Path) -> dict[str, float]:
    """Run one part; return its seconds, its peak memory, and how long the display stood still."""
    from bench.cli.display import show_plan
    from bench.run.execute import execute, remaining
    from bench.run.prepare import prepare

    started = time.process_time()
    still = [0.0]
    if part == "read":
        from bench.report.reading.load import load

        load([folder])
    else:
        sizes = tuple(range(1, trials // A_CELL + 1))
        words = {
            "suites": ("mlp",),
            "gpus": ("cpu",),
            "batch_sizes": sizes,
            "precisions": ARMS,
            "phases": ("memory", "speed"),
        }
        request = Request(**words, resume=folder)  # type: ignore[arg-type]  # from one place
        launcher = Instant(rounds, trials // 2 if part == "half" else None)
        prepared = prepare(request, launcher)
        left = remaining(prepared.plan, folder)
        show_plan(prepared.plan, left, prepared.environment, prepared.warnings, request)
        assert len(prepared.plan.trials) == trials or not trials
        if part != "plan":
            with contextlib.suppress(KeyboardInterrupt):
                execute(prepared, folder, launcher, time.monotonic())
            expected = {"half": trials // 2 + 1, "rest": trials - trials // 2, "again": 0}[part]
            assert len(launcher.begun) == expected, f"{len(launcher.begun)} trials were begun"
            for ended, begun in zip(launcher.ended, launcher.begun[1:], strict=False):
                still.append(begun - ended)
    return {
        "seconds": time.process_time() - started,
        "mib": peak_mib(),
        "still_ms": 1000 * statistics.median(still),
        "longest_still_ms": 1000 * max(still),
    }


def peak_mib() -> float:
    """Return the peak of this process's resident memory, without its parent's at the fork."""
    status = Path("/proc/self/status").read_text()
    (peak_kib,) = re.findall(r"VmHWM:\s*(\d+) kB", status)
    return int(peak_kib) / 1024


def measure(trials: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return the figures of each part of one size, each measured in a separate process."""
    figures = {}
    for part in PARTS:
        command = [sys.executable, __file__, "--child", part, "--folder", str(folder)]
        command += ["--trials", str(trials)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures[part] = json.loads(output.splitlines()[-1])
    return figures


def report_s(folder: Path, rounds: int) -> float:
    """Write a made-up run of some rounds in each process; return the seconds of its report."""
    from perf.synthetic_fleet import Shape, write_run

    write_run(folder, Shape(processes=10, seeds=20, rounds=rounds))
    command = [sys.executable, str(ROOT / "run_bench.py"), "report", str(folder)]
    command += ["--out", str(folder.parent / "page")]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1,000 trials and a tenth of that")
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--trials", type=int, default=10_000, help="trials of the larger run (default: 10,000)"
    )
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
            figures = child(options.child, options.trials, BLOCK_ROUNDS, options.folder)
        print(json.dumps(figures))
        return 0
    from bench.stats import Interval
    from perf import outcome

    large = 1000 if options.quick else options.trials
    sizes = (large // 10, large)
    with tempfile.TemporaryDirectory() as temporary:
        measured = [measure(trials, Path(temporary) / str(trials)) for trials in sizes]
        reports = {
            name: report_s(Path(temporary) / name, rounds) for name, rounds in ROUNDS.items()
        }
        lines = sum(1 for _ in (Path(temporary) / str(large) / "blocks.csv").open()) - 1
    rows = []

    def row(name: str, value: float, unit: str = "", most: float | None = None) -> None:
        interval = Interval(center=value, low=None, high=None, n=1)
        rows.append(outcome.Outcome(name=name, interval=interval, unit=unit, most=most))

    for part, label in PARTS.items():
        small, whole = (figures[part] for figures in measured)
        row(label, whole["seconds"], "s")
        growth = whole["seconds"] / small["seconds"] / 10
        row(f"{label}: a trial, over one of a tenth as many", growth, most=MOST_RATIO)
        row(f"{label}: peak memory", whole["mib"], "MiB")
        if part in ("half", "rest"):
            row(f"{label}: between trials, median", whole["still_ms"], "ms")
            longest_ms = whole["longest_still_ms"]
            row(f"{label}: between trials, longest", longest_ms, "ms", 1000 * MOST_STILL_S)
    for name, seconds in reports.items():
        row(f"report, {name}", seconds, "s", MOST_REPORT_S)
    return outcome.report(f"{large:,} trials, {lines:,} blocks", rows)


if __name__ == "__main__":
    sys.exit(main())
