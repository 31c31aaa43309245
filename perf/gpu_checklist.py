#!/usr/bin/env python3
"""Run every check that needs a GPU; the first checks, which need a real one, take ten minutes at most.

    python perf/gpu_checklist.py OUT [--data folder:DIR] [--quick] [--first | --only tests,doctor] [--patience N]

After the first checks (docs/what-is-tested-where.md lists them) the script prints a table to paste, and keeps it in
OUT/first.md; ``--first`` ends there. Without a GPU,
`python -m tests.simgpu python perf/gpu_checklist.py OUT --first --patience 10` rehearses them on simulated GPUs, where
times mean nothing. OUT receives the tests' log and, for each suite, a run with its report (two folders deep at most).
If a GPU is available only for minutes, ``--only`` selects a few checks at a time, and runs resume where they ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PHASES = "memory,floor,speed,energy"
SUITES = {"mlp": "128,512", "resnet20": "128,512", "resnet50": "64,256", "vit_b_16": "64,128"}
"""Suites whose speed is measured, with the batch sizes of ``--quick``; without it, the suite's batch sizes are used."""
FIRST = {"card": 220, "doctor": 260, "first run": 120}
"""Checks that need a real GPU, with the seconds after which each is killed: ten minutes in all."""
LIBRARIES = "tests/gpu/test_libraries_gpu.py"
"""Tests that train in the precisions of torchao that the GPU supports; some compile first."""
MEANINGS = {
    "the clock reading follows the clock": "whether precisions share a clock is unknown: believe sw_power_cap",
    "at the power cap the clock reading falls": "the flag of a shared clock does not rise: use --sustained",
    "reading clocks and power slows no step": "telemetry is not free on this card: its steps are too long",
    "operators alone add up to the step": "explain's ceilings and predictions do not hold on this card",
    "the drivers counters and processes call a busy gpu of our own undisturbed": "sound rounds are discarded",
    "when another program computed is within what the watch names although the driver says so late": (
        "rounds that another program disturbed are kept"
    ),
    "tensor cores multiply faster than fp32": "the precisions that this card should gain by are wrong",
}
"""What it means that a test fails, by its name, where that does not say it."""
OUTCOMES = {"PASSED": "pass", "FAILED": "FAIL", "ERROR": "FAIL", "SKIPPED": "skipped"}
ENDED = -int(signal.SIGKILL)
"""Exit code of a check that took too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Outcome of a check."""

    name: str
    code: int
    seconds: float
    last: str
    """The last line that it printed."""

    @property
    def result(self) -> str:
        """The outcome in a word or two."""
        return "pass" if self.code == 0 else "too long" if self.code == ENDED else f"exit {self.code}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the checklist; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", help="cifar10 or folder:DIR, to train resnet50 on; nothing is trained without it")
    parser.add_argument("--quick", action="store_true", help="one process and 3 s an arm, few batch sizes and images")
    parser.add_argument("--only", help="checks, by the first column of the table (default: all)")
    parser.add_argument("--first", action="store_true", help=f"only {', '.join(FIRST)}")
    parser.add_argument("--patience", type=float, default=1, help="times the first checks' limits, for a rehearsal")
    options = parser.parse_args(words)
    options.out = options.out.resolve()  # the commands run in the repository's folder
    known = checks(options)
    wanted = (
        [name.strip() for name in options.only.split(",")] if options.only else list(FIRST if options.first else known)
    )
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"there is no check {', '.join(unknown)}; there are {', '.join(known)}")
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    first = [name for name in known if name in wanted and name in FIRST]
    for name in [*first, *(name for name in known if name in wanted and name not in FIRST)]:
        limit_s = FIRST[name] * options.patience if name in FIRST else None
        rows.append(run(name, known[name], options.out, limit_s))
        if first and name == first[-1]:
            table = "\n".join(to_paste(rows, options.out))
            (options.out / "first.md").write_text(table + "\n")
            print(f"\n{table}", flush=True)
    for report in sorted((ROOT / "reports").glob("*")):
        if (options.out / report.name).is_dir():
            shutil.copytree(report, options.out / f"{report.name}-report", dirs_exist_ok=True)
    print(f"\n{'check':<20} {'result':<8} {'time':>7}  last line")
    for row in rows:
        print(f"{row.name:<20} {row.result:<8} {row.seconds:>5.0f} s  {row.last}")
    return int(any(row.code for row in rows))


def checks(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each check, in their order."""
    depth = ["--quick"] if options.quick else []
    bench, tests = [sys.executable, "run_bench.py"], [sys.executable, "-m", "pytest", "-q"]
    brief = [*bench, "--gpus", "0", "--quick", "--suite"]
    commands = {
        "card": [*tests, "-vv", "-m", "card", "tests/gpu"],  # so that the log names each test with its outcome
        "doctor": [*bench, "doctor", "--gpus", "0", "--out", str(options.out / "doctor")],
        "first run": [*brief, "resnet20", "--batch-sizes", "512", "--phases", "memory,speed,energy"],
        "tests": [*tests, "-m", "gpu and not card", "tests/gpu", f"--ignore={LIBRARIES}"],
        "libraries": [*tests, "-vv", "-rs", "-m", "gpu", LIBRARIES],  # the log says why a precision was skipped
        "estimator": [sys.executable, "perf/estimator.py", "--repeats", "10" if options.quick else "40"],
    }
    commands["first run"] += ["--precisions", "fp32,amp-fp16", "--resume", str(options.out / "first-run")]
    for suite, sizes in SUITES.items():
        sizes_asked = ["--quick", "--batch-sizes", sizes] if options.quick else []
        command = [*bench, "--suite", suite, "--gpus", "0", "--phases", PHASES, *sizes_asked]
        commands[f"{suite} speed"] = [*command, "--resume", str(options.out / f"{suite}-speed")]
    more = ["--data", options.data] if options.data else []
    commands["ladder"] = [*brief, "vit_b_16", "--ladder", *more, "--resume", str(options.out / "ladder")]
    largest = [*brief, "resnet50", "--batch-sizes", "128,max"]
    commands["largest batch"] = [*largest, "--resume", str(options.out / "largest")]
    techniques = [*brief, "resnet50", "--techniques", "channels-last,fused-optimizer,cuda-graphs"]
    commands["techniques"] = [*techniques, "--resume", str(options.out / "techniques")]
    commands["overhead"] = [sys.executable, "perf/overhead.py", "--device", "cuda", *depth]
    peers = [sys.executable, "perf/peers.py", "--device", "cuda"]
    commands["peers steps"] = [*peers, "--only", "steps", *(["--processes", "2"] if options.quick else [])]
    if options.data and options.data.startswith("folder:"):
        few = ["--suites", "resnet20", "--samples", "12800", "--rounds", "2"] if options.quick else []
        commands["peers epochs"] = [*peers, "--only", "epochs,pipelines", "--data", options.data, *few]
    if options.data:
        command = [*bench, "--suite", "resnet50", "--gpus", "0", *more, *depth, "--epochs", "5"]
        commands["resnet50 training"] = [*command, "--resume", str(options.out / "resnet50")]
    return commands


def run(name: str, command: list[str], out: Path, limit_s: float | None = None) -> Row:
    """Run one command, keep its output, and return its outcome; kill it and its children after ``limit_s``."""
    start = time.monotonic()
    log = out / f"{name.replace(' ', '-')}.log"
    with log.open("w") as file:
        unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}  # the log of a killed check has its output so far
        process = subprocess.Popen(
            command, cwd=ROOT, env=unbuffered, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except BaseException as error:  # Ctrl-C too: the command is in another session
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    lines = log.read_text().strip().splitlines()
    return Row(name=name, code=code, seconds=time.monotonic() - start, last=lines[-1] if lines else "")


def to_paste(rows: Sequence[Row], out: Path) -> Iterator[str]:
    """Yield the lines of a Markdown table of the first checks: each test of the card and each check of the doctor."""
    record = _read(out / "doctor" / "doctor.json")
    environment = _read(out / "first-run" / "run.json").get("environment", {})  # the doctor may have been killed
    names = record.get("devices", {}).values() or {device["name"] for device in environment.get("devices", ())}
    machine = ", ".join(names) or "unknown GPU"
    driver, torch = (record.get(name) or environment.get(name) or "unknown" for name in ("driver", "torch"))
    yield f"{machine}; driver {driver}; torch {torch}; commit {_commit()}."
    yield ""
    yield "| check | result | measured |"
    yield "| --- | --- | --- |"
    for row in rows:
        yield f"| **{row.name}** | {row.result} | {row.seconds:.0f} s: {_cell(row.last)} |"
        if row.name == "card":
            for name, (result, count) in outcomes((out / "card.log").read_text()).items():
                meaning = MEANINGS.get(name, "") if result == "FAIL" else ""
                yield f"| card: {name} | {result} | {f'{count} cases' if count > 1 else meaning} |"
        if row.name == "doctor":
            for check in record.get("checks", ()):
                yield f"| doctor: {_cell(check['name'])} | {check['result']} | {_cell(check['measured'])} |"


def _commit() -> str:
    """Return this checkout's commit; "unknown" where git is not installed, or this is no checkout."""
    with suppress(FileNotFoundError, subprocess.CalledProcessError):
        command = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"


def _read(path: Path) -> dict[str, Any]:
    """Return a check's JSON file; an empty dict if there is none."""
    with suppress(FileNotFoundError):
        record: dict[str, Any] = json.loads(path.read_text())
        return record
    return {}


def outcomes(log: str) -> dict[str, tuple[str, int]]:
    """Return the worst outcome of each test's cases in pytest's verbose log, and the number of cases."""
    worst: dict[str, tuple[str, int]] = {}
    for test, word in re.findall(r"^\S+::test_(\w+)(?:\[.*\])? (PASSED|FAILED|ERROR|SKIPPED)", log, re.MULTILINE):
        name, result = test.replace("_", " "), OUTCOMES[word]
        before, count = worst.get(name, (result, 0))
        worst[name] = max(before, result, key=["skipped", "pass", "FAIL"].index), count + 1
    return worst


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
