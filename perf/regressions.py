#!/usr/bin/env python3
"""Measure how often `compare --fail-over` reports a planted slowdown, and how often a slowdown that does not exist.

Makes pairs of runs from the timed blocks of a committed run: each process of a pair is a cell's ABBA rounds, drawn with
replacement; the shipped functions compute its figures. Then NEW's times are multiplied, and the command compares the
sides, each of three runs that took turns.

    python perf/regressions.py [--pairs 100] [--processes 20] [--draw rounds]

--draw rounds draws rounds of any process of the cell, so that a pair has only the noise of blocks. --draw processes
draws whole processes, and rounds within them, so that a pair also differs as much as the committed processes do: by
more than 5 % on a shared machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import run_bench
from bench.report.analysis.contrast import round_logs
from bench.report.reading.load import CELL, Runs, load
from bench.spec.precisions import BASELINE
from bench.stats import rounds_interval

RUN = Path(__file__).resolve().parent.parent / "results" / "resnet20-cpu-epyc"
PLANTED = (1.05, 1.002, 1.0)
"""NEW's step times over OLD's."""
ALLOWED = "3%"
TURNS = 3
"""Runs on each side."""
NEEDED = {1.05: ("exit code 1", 0.98), 1.002: ("exit code 0", 0.98), 1.0: ("nothing changed", 0.95)}
"""Expected result for each planted slowdown, and the least share of the pairs that must show it."""


class Source:
    """The rounds of a committed run, cell by cell and process by process."""

    def __init__(self, folder: Path) -> None:
        """Read the run."""
        runs: Runs = load([folder])
        self.info = json.loads((folder / "run.json").read_text())
        with (folder / "trials.csv").open(newline="") as file:
            self.rows = list(csv.DictReader(file))
        blocks = runs.blocks[(runs.blocks["phase"] == "speed") & (runs.blocks["discarded"] == "")]
        logs = {(trial, precision): rounds for (_, trial, precision), rounds in round_logs(blocks).items()}
        step = np.log(blocks["time_ms"] / blocks["steps"])
        wide = blocks.assign(log=step).pivot_table(
            index=[*CELL, "trial", "round"], columns="precision", values="log", aggfunc=list, observed=True
        )
        self.cells: list[dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]] = []
        for _, cell in wide.groupby(level=CELL, sort=False, observed=True):
            (arm,) = set(cell.columns) - {BASELINE}
            processes = []
            for trial, times in cell.groupby(level="trial", sort=False, observed=True):
                rounds = times.index.get_level_values("round")
                ratios = (logs[trial, arm] - logs[trial, BASELINE]).loc[list(rounds)].to_numpy()
                processes.append((np.array(times[BASELINE].tolist()), np.array(times[arm].tolist()), ratios))
            first = cell.index.get_level_values("trial")[0]
            self.cells.append({str(first): processes})

    def speeds(self, rng: np.random.Generator, draw: str, processes: int) -> Iterator[tuple[str, int, tuple]]:
        """Yield a cell's first trial, the number of a new process, and its figures: both steps and the ratios."""
        for cell in self.cells:
            for trial, measured in cell.items():
                pooled = tuple(np.concatenate(parts) for parts in zip(*measured, strict=True))
                for replicate in range(processes):
                    like = measured[rng.integers(len(measured))]
                    pool = pooled if draw == "rounds" else like
                    rounds = rng.integers(len(pool[0]), size=len(like[0]))
                    yield trial, replicate, tuple(part[rounds] for part in pool)


def write(source: Source, folder: Path, rng: np.random.Generator, *, draw: str, processes: int, slower: float) -> None:
    """Write a copy of the committed run, with its speed measured anew in ``processes`` processes."""
    folder.mkdir(parents=True)
    side, _, turn = folder.name.rpartition("-")  # runs are in the order of their starts
    info = {**source.info, "run": folder.name, "started": f"{turn:0>4} {side} {rng.integers(2**62)}"}
    (folder / "run.json").write_text(json.dumps(info))
    like = {(row["trial"], row["precision"]): row for row in source.rows if row["phase"] == "speed"}
    rows = [row for row in source.rows if row["phase"] != "speed"]
    for trial, replicate, (fp32, arm, ratios) in source.speeds(rng, draw, processes):
        (other,) = (name for of, name in like if of == trial and name != BASELINE)
        speedup = rounds_interval(ratios).exp()
        for precision, logs in ((BASELINE, fp32), (other, arm)):
            row = dict(like[trial, precision])
            step_ms = float(np.exp(np.median(logs))) * slower
            row |= {"trial": trial.replace("-r0", f"-r{replicate}"), "replicate": str(replicate)}
            row |= {"rounds": str(len(fp32)), "step_ms": repr(step_ms)}
            row["samples_per_s"] = repr(1000 * float(row["batch_size"]) / step_ms)
            if precision != BASELINE:
                row |= {"speedup": repr(speedup.center), "speedup_low": repr(speedup.low)}
                row["speedup_high"] = repr(speedup.high)
            rows.append(row)
    with (folder / "trials.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, source.rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def compared(old: Path, new: Path) -> tuple[int, list[str]]:
    """Return the command's exit code, and the verdicts of all rows."""
    with redirect_stdout(StringIO()) as out:
        code = run_bench.main(["compare", str(old), str(new), "--by-turns", "--fail-over", ALLOWED, "--json"])
    rows = json.loads(out.getvalue())["rows"]
    metrics = ("speed", "memory", "energy", "accuracy")
    return code, [row[metric]["verdict"] for row in rows for metric in metrics if row[metric]]


def main() -> int:
    """Print the table; return 1 if an expected share was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=RUN, help="the run from which blocks are drawn")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--processes", type=int, default=20, help="processes on each side, of all runs")
    parser.add_argument("--draw", choices=("rounds", "processes"), default="rounds")
    options = parser.parse_args()
    source = Source(options.run)
    drawn = f"{options.draw} drawn from {options.run.name}"
    print(f"{options.pairs} pairs, {options.processes} processes on each side, {drawn}")
    print("| planted | exit code 1 | reported as changed | expected | in |")
    print("| ---: | ---: | ---: | --- | ---: |")
    missed = False
    for slower in PLANTED:
        rng = np.random.default_rng((options.processes, round(1e6 * slower)))
        failed = changed = 0
        for _ in range(options.pairs):
            with tempfile.TemporaryDirectory() as place:
                old, new = Path(place) / "old", Path(place) / "new"
                for turn, side, planted in (
                    (turn, *side) for turn in range(TURNS) for side in ((old, 1.0), (new, slower))
                ):
                    folder, count = side / f"{side.name}-{turn}", options.processes // TURNS
                    write(source, folder, rng, draw=options.draw, processes=count, slower=planted)
                code, verdicts = compared(old, new)
                failed += code == 1
                changed += bool({"REGRESSED", "IMPROVED"} & set(verdicts))
        what, share = NEEDED[slower]
        met = {"exit code 1": failed, "exit code 0": options.pairs - failed}.get(what, options.pairs - changed)
        missed |= met < share * options.pairs
        print(f"| {100 * (slower - 1):.1f} % | {failed} | {changed} | {what}, {share:.0%} | {met} |", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
