#!/usr/bin/env python3
"""Measure the waiting time before and between measurements.

    python perf/startup.py [--quick] [--rounds N]

1. ``run_bench.py --help``, from the shell's call to its end: 0.2 s at most.
2. ``run_bench.py --suite mlp --gpus cpu --dry-run``: the whole command; and planning, which is the whole without the
   processes that import torch (the survey of the machine): 0.5 s at most.
3. One more trial: starting its process, receiving its last message and storing a row, without the trial's work: 0.15 s
   at most. The trial here does nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.cli.display import show_plan
from bench.cli.parser import parse
from bench.launch.local import LocalLauncher
from bench.results.records import Device, TrialResult
from bench.results.store import Store
from bench.run import folder
from bench.run.prepare import prepare
from bench.spec.techniques import AblationStep
from bench.spec.trial import Cell, DataSource, Placement, SuiteRef, Trial

ROOT = Path(__file__).resolve().parents[1]
PLAN = ("--suite", "mlp", "--gpus", "cpu", "--dry-run")
NOTHING = "builtins:callable"
"""A call without effect; its argument is the function that sends messages."""


class TimedLauncher(LocalLauncher):
    """A launcher that adds up the time of the processes that it starts."""

    seconds = 0.0

    def call(self, target: str, *arguments: object) -> object:
        """Call the target, and add up its time."""
        start = time.perf_counter()
        try:
            return super().call(target, *arguments)
        finally:
            self.seconds += time.perf_counter() - start


def plan() -> float:
    """Plan as ``--dry-run`` does; return the seconds of processes that import torch."""
    launcher = TimedLauncher()
    command, _ = folder.open_folder(parse(PLAN))
    prepared = prepare(command, launcher)
    show_plan(prepared.plan, prepared.environment, prepared.warnings, default_device=False)
    return launcher.seconds


def trials(count: int) -> list[float]:
    """Return the seconds of trials that do nothing, after a call that starts the fork server."""
    launcher = LocalLauncher()
    launcher.call(NOTHING)
    cell = Cell(
        suite=SuiteRef(name="mlp"),
        placement=Placement(name="cpu"),
        batch_size=1,
        data=DataSource(kind="synthetic"),
    )
    device = Device(placement="cpu", kind="cpu", name="CPU", architecture="CPU")
    times = []
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "run") as store:
        for seed in range(count):
            start = time.perf_counter()
            launcher.call(NOTHING)
            trial = Trial(cell=cell, phase="train", arms=(AblationStep(precision="fp32"),), seed=seed)
            store.add_results(trial, device, [TrialResult(precision="fp32", status="ok")])
            times.append(time.perf_counter() - start)
    return times


def timed(*words: str) -> tuple[float, str]:
    """Run Python with arguments; return the wall time and the last printed line."""
    with tempfile.TemporaryFile("w+") as out:  # a pipe would end with the fork server, after the program
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=out)
        took = time.perf_counter() - start
        out.seek(0)
        return took, out.read().strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few repeats of each")
    parser.add_argument("--rounds", type=int, help="rounds of all three (default: 10; --quick: 3)")
    parser.add_argument("--child", choices=("plan", "trials"), help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=30, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(plan() if options.child == "plan" else trials(options.count)))
        return 0
    from perf import outcome  # late, because planning does not import numpy and scipy

    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    rounds = options.rounds or (3 if options.quick else 10)
    helps: list[float] = []
    wholes: list[float] = []
    planning: list[float] = []
    trial_s: list[float] = []
    for _ in range(rounds):  # in turn, so that all see the same machine
        helps += [timed("run_bench.py", "--help")[0] for _ in range(3)]
        whole, printed = timed(__file__, "--child", "plan")
        wholes.append(whole)
        planning.append(whole - json.loads(printed))
        count = "5" if options.quick else "10"
        trial_s += json.loads(timed(__file__, "--child", "trials", "--count", count)[1])
    outcomes = [
        outcome.Outcome(name="--help", interval=outcome.seconds(helps), unit="s", most=0.2),
        outcome.Outcome(name="--dry-run: planning itself", interval=outcome.seconds(planning), unit="s", most=0.5),
        outcome.Outcome(name="--dry-run: whole, torch and survey included", interval=outcome.seconds(wholes), unit="s"),
        outcome.Outcome(name="one more trial", interval=outcome.seconds(trial_s), unit="s", most=0.15),
    ]
    return outcome.report("Waiting", outcomes)


if __name__ == "__main__":
    sys.exit(main())
