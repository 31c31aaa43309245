#!/usr/bin/env python3
"""Measure the time of a report over a large run: 9,920 trials with a million blocks, and a tenth of that.

    python perf/report.py [--quick] [--rounds N] [--before CHECKOUT]

The runs are made up (perf/synthetic_run.py) and written by the harness's store: one node of 8 GPUs, five suites at six
batch sizes in four precisions, ``--rigorous``, energy, and training over 20 seeds at one batch size. Its report has 3
figures of all devices and, with ``--figures all``, 80 of single devices. The tenth has 4 GPUs, two suites, three batch
sizes and 10 seeds, with 3 figures or 19.

Each command is a separate process, timed from its start to its end. A further process without figures times the parts:
imports (pandas, scipy and the rest), reading the files, and everything else, which is tables and text. pandas.read_csv
on the same files is timed without its import. They take turns. Targets: 10 s; 3 times read_csv; a tenth of the data in
a fifth of the time.

With ``--before`` another checkout writes the runs, and both report by turns on them and on the synthetic fleet
(perf/synthetic_fleet.py). Target: this checkout's reports take 1.2 times as long at most.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf import outcome, side_by_side
from perf.side_by_side import HERE

PARTS = ("imports", "reading", "tables")
"""Parts of a report without figures."""
READ = "read_csv"
WITHOUT = "without figures"
MOST_OVER_BEFORE = 1.2
Times = dict[tuple[str, str], list[float]]
"""Seconds of each round, by the run and the timed part."""
WRITE = """
import json, sys
from pathlib import Path
from perf import synthetic_fleet, synthetic_run
folder, shape = json.loads(sys.argv[1])
if shape:
    synthetic_run.write_run(Path(folder), getattr(synthetic_run, shape))
else:
    synthetic_fleet.write_all(Path(folder))
print("null")
"""
"""Writes a run of a shape of synthetic_run, or without a shape the fleet."""
LABELS = {"whole": "whole", "all": "whole, --figures all", WITHOUT: WITHOUT}
LABELS |= {name: f"of that, {name}" for name in PARTS} | {READ: "pandas.read_csv"}


def read(folder: Path) -> float:
    """Return the seconds of pandas.read_csv on a run's files."""
    import pandas as pd

    start = time.perf_counter()
    for path in sorted(folder.rglob("*.csv")):
        pd.read_csv(path)
    return time.perf_counter() - start


def parts(folder: Path, out: Path) -> dict[str, float]:
    """Return the seconds of each part of a report without figures."""
    marks = [time.perf_counter()]
    from bench.report.page import publish
    from bench.report.reading.load import load

    marks.append(time.perf_counter())
    runs = load([folder])
    marks.append(time.perf_counter())
    publish(runs, out, figures="none")
    marks.append(time.perf_counter())
    seconds = {name: end - start for name, start, end in zip(PARTS, marks[:-1], marks[1:], strict=True)}
    return {WITHOUT: marks[-1] - marks[0], **seconds}


def child(what: str, folder: Path, checkout: Path = HERE) -> dict[str, float]:
    """Time ``parts`` or ``read`` in a fresh process of a checkout."""
    command = [sys.executable, str(checkout / "perf" / "report.py"), "--child", what, "--folder", str(folder)]
    seconds: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return seconds


def whole(folder: Path, out: Path, figures: str, checkout: Path = HERE) -> float:
    """Time ``run_bench.py report`` of a checkout."""
    command = [sys.executable, str(checkout / "run_bench.py"), "report", str(folder), "--out", str(out)]
    start = time.perf_counter()
    subprocess.run([*command, "--figures", figures], check=True, stdout=subprocess.DEVNULL, cwd=checkout)
    return time.perf_counter() - start


def measure(folder: Path, out: Path, checkout: Path = HERE) -> dict[str, float]:
    """Return the seconds of each command and part on one run, or on a folder of runs."""
    seconds = {"whole": whole(folder, out, "overview", checkout), "all": whole(folder, out, "all", checkout)}
    return seconds | child(WITHOUT, folder, checkout) | child(READ, folder)


def logs(above: list[float], below: list[float]) -> list[float]:
    """Return the log-ratios of times in the same rounds."""
    return [math.log(a / b) for a, b in zip(above, below, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the tenth, with read_csv's target alone")
    parser.add_argument("--rounds", type=int, help="how often each command runs (default: 3; --quick: 2)")
    parser.add_argument("--child", choices=(WITHOUT, READ), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    side_by_side.add_option(parser)
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        if options.child:
            seconds = {READ: read(options.folder)} if options.child == READ else parts(options.folder, home / "out")
            print(json.dumps(seconds))
            return 0
        shapes = {"a tenth": "SMALL"} | ({} if options.quick else {"large": "LARGE"})
        shapes |= {"fleet": ""} if options.before else {}
        sides = side_by_side.checkouts(options.before)
        for name, shape in shapes.items():
            side_by_side.call(sides.get("before", HERE), WRITE, [str(home / name), shape])
        times: dict[str, Times] = {side: {} for side in sides}
        for _, side, checkout in side_by_side.turns(sides, options.rounds or (2 if options.quick else 3)):
            for name in shapes:
                for what, seconds in measure(home / name, home / "out", checkout).items():
                    times[side].setdefault((name, what), []).append(seconds)
    over = against(times["here"], times["before"]) if options.before else []
    return outcome.report("Reporting", outcomes(times["here"]) + over)


def against(here: Times, before: Times) -> list[outcome.Outcome]:
    """Return the rows of another checkout's times, each followed by the ratio of this checkout's time to it."""
    rows = []
    for key in [key for key in before if key[1] != READ]:
        label = f"{key[0]}: {LABELS[key[1]]}"
        target = {"most": MOST_OVER_BEFORE, "by_interval": True} if key[1] not in PARTS else {}
        logs = [[math.log(seconds) for seconds in times[key]] for times in (here, before)]
        rows += side_by_side.compared(label, *logs, unit="s", **target)[1:]
    return rows


def outcomes(times: Times) -> list[outcome.Outcome]:
    """Return the rows of the table, from the seconds of each command by the size of its run."""
    rows = []
    for name in dict.fromkeys(name for name, _ in times):
        for what, label in LABELS.items():
            most = 10.0 if (name, what) == ("large", "whole") else None
            interval = outcome.seconds(times[name, what])
            rows.append(outcome.Outcome(name=f"{name}: {label}", interval=interval, unit="s", most=most))
        for what in ("whole", WITHOUT):
            interval = outcome.ratio(logs(times[name, what], times[name, READ]))
            most = 3.0 if name == "large" and what == "whole" else None
            rows.append(outcome.Outcome(name=f"{name}: {what} ÷ read_csv", interval=interval, most=most))
    if {("a tenth", "whole"), ("large", "whole")} <= times.keys():
        interval = outcome.ratio(logs(times["a tenth", "whole"], times["large", "whole"]))
        rows.append(outcome.Outcome(name="a tenth ÷ large, whole", interval=interval, most=0.2))
    return rows


if __name__ == "__main__":
    sys.exit(main())
