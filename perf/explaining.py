#!/usr/bin/env python3
"""Check that the explain phase's figures add up, and that its ceilings are plausible.

    python perf/explaining.py [--cells mlp:width=512:128,resnet20:64] [--keep FOLDER] [--pairs 6] [--time-budget 4m]

Each cell (a suite, its settings, a batch size) is explained in a separate run, fp32 against amp-bf16 on this CPU:

1. classes over timed: the sum of the classes over the step without the profiler, the median over the rounds, for each
   precision: within 5 %. The next columns show the profiler's cost: the time that it adds to a step, for each operator
   of a class that it records.
2. unexplained: the share of the steps' difference that the classes leave unexplained: 10 % at most.
3. ceiling over reached: 1 at least, and 1.3 at most if no rule names a cause.

``--pairs N`` then runs N pairs of the first cell, with and without the explain phase in the plan:

4. the ratio of the speed phase's speedups, with its 95 % interval: within the A/A noise, which is taken as 1 %.

``perf/prediction.py`` compares predicted with measured speedups.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import stats
from bench.report.analysis.explanation import Explanation, Step, explanations
from bench.report.analysis.summary import summarise
from bench.report.format import share
from bench.report.reading.load import load
from perf import outcome

HERE = Path(__file__).resolve().parents[1]
CELLS = ("mlp:width=512:128", "mlp:width=1024:128", "resnet20:64", "vit_b_16:2")
ARM = "amp-bf16"
NOISE = 0.01
ADD_UP, MOST_UNEXPLAINED, NEAR_CEILING = 0.05, 0.10, 1.3


def command_of(cell: str) -> list[str]:
    """Return the command line of a cell, without phases and folder."""
    suite, *settings, batch = cell.split(":")
    words = ["--suite", suite, "--batch-sizes", batch, "--precisions", f"fp32,{ARM}", "--data", "synthetic"]
    words += [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, str(HERE / "run_bench.py"), *words]


def explain(cell: str, out: Path, budget: str | None = None) -> Explanation:
    """Explain one cell in a separate run.

    Args:
        cell: suite, its settings and batch size, separated by colons.
        out: the run's folder; a finished run in it is only read.
        budget: as for ``--time-budget``: the phase takes half of it; None is the default.
    """
    more = ["--time-budget", budget] if budget else []
    command = [*command_of(cell), "--phases", "explain", *more, "--resume", str(out)]
    done = subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=False)
    rows = load([out]).explained.assign(workload="", where="") if (out / "explain.csv").is_file() else None
    cells = [] if rows is None else explanations(rows)
    if not cells:
        raise SystemExit(done.stdout + done.stderr)
    return cells[0]


def adds_up(step: Step) -> float:
    """Return the sum of a step's classes over the step without the profiler: the median over the rounds."""
    return float((step.sums / step.of("step", "timed").set_index("round")["value"]).median())


def recording_us(step: Step) -> float:
    """Return the time that the profiler adds to a step for each operator, in µs: the median over the rounds."""
    profiled, timed = (step.of("step", name).set_index("round")["value"] for name in ("profiled", "timed"))
    return 1e3 * float((profiled - timed).median()) / (step.value("step", "operators") or math.nan)


def judge(cell: str, explained: Explanation) -> list[str]:
    """Return a row of the table: the cell, its figures, and the figures that missed their targets."""
    steps, speedup, unexplained = (explained.baseline, explained.arm), explained.speedup, explained.unexplained
    sums = [adds_up(step) for step in steps]
    above = None if explained.ceiling is None else explained.ceiling / speedup.center
    rules = [reason.rule for reason in explained.reasons]
    missed = [f"classes {total:.3f}" for total in sums if abs(total - 1) > ADD_UP]
    if unexplained is not None and abs(unexplained.center) > MOST_UNEXPLAINED:
        missed.append("unexplained")
    if above is None or above < 1 or (above > NEAR_CEILING and not rules):
        missed.append("ceiling")
    return [
        cell,
        *(f"{step.timed_ms:.3g}" for step in steps),
        *(f"{total:.3f}" for total in sums),
        *(f"{recording_us(step):.1f}" for step in steps),
        "–" if unexplained is None else share(unexplained),
        f"{speedup.center:.3f}",
        "–" if above is None else f"{above:.2f}",
        ", ".join(rules) or "none",
        ", ".join(missed) or "none",
    ]


def measured_speedup(cell: str, phases: str, out: Path) -> float:
    """Measure a cell's speedup by the speed phase in a separate run; return its logarithm."""
    command = [*command_of(cell), "--phases", phases, "--time-budget", "6", "--out", str(out)]
    done = subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=False)
    summary = summarise(load([out]).trials) if (out / "trials.csv").is_file() else None
    if summary is None:
        raise SystemExit(done.stdout + done.stderr)
    return math.log(float(summary[summary["precision"] == ARM]["speedup"].iloc[0]))


def with_and_without(cell: str, pairs: int, runs: Path) -> stats.Interval:
    """Return the change of the speed phase's speedup when the plan has the explain phase, as a logarithm."""
    differences = []
    for pair in range(pairs):
        order = ("speed", "speed,explain") if pair % 2 == 0 else ("speed,explain", "speed")
        logs = {phases: measured_speedup(cell, phases, runs / f"pair-{pair}-{len(phases)}") for phases in order}
        differences.append(logs["speed,explain"] - logs["speed"])
    return stats.student_interval(differences)


def _holds_zero(change: stats.Interval) -> bool:
    return change.low is not None and change.high is not None and change.low <= 0 <= change.high


HEADERS = ("cell", "fp32 (ms)", f"{ARM} (ms)", "classes over timed, fp32", ARM)
HEADERS += ("profiler (µs an operator), fp32", ARM, "unexplained", "reached (×)")
HEADERS += ("ceiling over reached", "rules", "missed")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Yield a folder for runs: ``keep``, or a temporary folder."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="ampmeter-explaining-") as temporary:
        yield Path(temporary)


def parse(doc: str | None, cells: Sequence[str]) -> argparse.Namespace:
    """Parse the command line of a script that explains cells."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=lambda text: text.split(","), default=list(cells))
    parser.add_argument("--keep", type=lambda text: Path(text).resolve(), help="keep the runs in this folder")
    parser.add_argument("--time-budget", help="of each run; the phase takes half of it (default: as for any run)")
    parser.add_argument("--pairs", type=int, default=0, help="pairs of runs with and without the phase")
    return parser.parse_args()


def run_folder(runs: Path, cell: str) -> Path:
    """Return the folder of a cell's run."""
    return runs / cell.replace(":", "-").replace("=", "")


def main() -> int:
    """Explain the cells and print their table; 1 if a target is missed."""
    options = parse(__doc__, CELLS)
    change = None
    with folder(options.keep) as runs:
        rows = [judge(cell, explain(cell, run_folder(runs, cell), options.time_budget)) for cell in options.cells]
        if options.pairs:
            change = with_and_without(options.cells[0], options.pairs, runs)
    print(f"{outcome.machine()}\n")
    print(table(HEADERS, rows))
    if change is not None and change.low is not None and change.high is not None:
        ends = ", ".join(f"{math.exp(end):.4f}" for end in (change.low, change.high))
        print(
            f"\nSpeedup with the explain phase in the plan over without, {change.n} pairs of {options.cells[0]}: ",
            end="",
        )
        print(f"{math.exp(change.center):.4f} [{ends}]")
    apart = change is not None and change.low is not None and abs(change.center) > NOISE and not _holds_zero(change)
    return int(apart or any(row[-1] != "none" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
