#!/usr/bin/env python3
"""Run what needs a GPU, the most wanted first, in nine minutes.

    python perf/gpu_checklist.py OUT [--data folder:DIR] [--first | --only card,doctor]

First come versions and devices, resnet50 with training, vit_b_16, mlp, and the tests that only a
card can answer; ``--first`` ends there. The other checks follow while time lasts. Each part writes
OUT/PART.log. At the end of its seconds a part is interrupted, and killed 15 s later; its rows stay.
The same command again goes on: parts that have ended well are skipped, and runs resume. The last
lines name the runs and reports to commit, in OUT/results and OUT/reports.

Without a GPU, this rehearses the first parts on simulated GPUs, where times mean nothing:

    python -m tests.simgpu python perf/gpu_checklist.py OUT --first --patience 10 --model resnet20
        --batch-sizes 8,16 --data folder:DIR

with a DIR of few images. It needs Python and the project's core dependencies; the tests also need
pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Tests that train in the precisions of torchao that the GPU supports; some compile first.
LIBRARIES = "tests/gpu/test_libraries_gpu.py"
VERSIONS = """
import platform, torch
print("Python", platform.python_version(), "torch", torch.__version__, "CUDA", torch.version.cuda)
print("cuDNN", torch.backends.cudnn.version(), "GPU", torch.cuda.get_device_name(0))
"""
# The parts that are wanted first.
FIRST = ("versions", "devices", "resnet50", "vit_b_16", "mlp", "card")
# Time for all parts; a card may be lent for ten minutes.
SECONDS = 540.0
# Seconds from the interrupt to the kill, in which a run stores its rows and writes its report.
GRACE_S = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A command with the seconds after which it is ended."""

    name: str
    seconds: float
    command: list[str]
    folder: Path = ROOT
    """Where the command runs."""


def parts_of(options: argparse.Namespace, card: str) -> list[Part]:
    """Return all parts, in their order. ``card`` begins the names of the runs."""
    parts = []

    def command(name: str, seconds: float, *words: str) -> None:
        parts.append(Part(name=name, seconds=seconds, command=[sys.executable, *words]))

    def tests(name: str, seconds: float, *words: str) -> None:
        command(name, seconds, "-m", "pytest", "-vv", "-rs", *words)

    def run(name: str, seconds: float, *words: str) -> None:
        where = ["--data-dir", str(ROOT / "data"), "--resume", f"results/{card}-{name}"]
        bench = [sys.executable, str(ROOT / "run_bench.py"), *words, "--gpus", "0", *where]
        parts.append(Part(name=name, seconds=seconds, command=bench, folder=options.out))

    model, data = options.model, ["--data", options.data]
    precisions = ["--precisions", "fp32,tf32,amp-fp16,amp-bf16"]
    # --quick takes one process for each question. The first process of each precision loads cuDNN's
    # kernels from a cold disk, which took 25 s on an H100; that leaves 300 s for memory, speed and
    # two epochs at two batch sizes.
    depth = ["--quick", "--time-budget", "5s", "--phases", "memory,speed,train", "--epochs", "2"]
    sizes = ["--batch-sizes", options.batch_sizes]
    command("versions", 30, "-c", VERSIONS)
    command("devices", 30, "run_bench.py", "list", "--gpus")
    run("resnet50", 300, "--suite", model, *sizes, *precisions, *depth, *data)
    run("vit_b_16", 85, "--suite", "vit_b_16", "--quick")
    run("mlp", 60, "--suite", "mlp", "--quick")
    tests("card", 220, "-m", "card", "tests/gpu")
    # The rest.
    command("doctor", 260, "run_bench.py", "doctor", "--gpus", "0")
    energy = ["--phases", "speed,energy", "--batch-sizes", "512"]
    run("energy", 120, "--suite", "resnet20", "--quick", *energy)
    sweep = ["--quick", "--phases", "memory,speed", "--batch-sizes", "32,64,256,1024,max"]
    run("batch-sizes", 300, "--suite", model, *precisions, *sweep)
    run("ladder", 200, "--suite", "vit_b_16", "--quick", "--ladder", *data)
    techniques = "channels-last,fused-optimizer,cuda-graphs"
    run("techniques", 200, "--suite", model, "--quick", "--techniques", techniques)
    steps = ["--only", "steps", "--processes", "2"]
    command("peers", 200, "perf/peers.py", "--device", "cuda", *steps)
    if options.data.startswith("folder:"):
        epochs = ["--only", "epochs", "--suites", "resnet20", "--rounds", "2", *data]
        command("epochs", 300, "perf/peers.py", "--device", "cuda", *epochs)
    command("overhead", 300, "perf/overhead.py", "--device", "cuda")
    tests("tests", 900, "-m", "gpu and not card", "tests/gpu", f"--ignore={LIBRARIES}")
    tests("libraries", 900, "-m", "gpu", LIBRARIES)
    return parts


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts; return 1 if one failed or was ended."""
    options = parse(words)
    deadline = time.monotonic() + options.seconds * options.patience
    options.out.mkdir(parents=True, exist_ok=True)
    card, rows, failed = card_of(options.out), [], False
    for name in options.wanted:
        part = next(part for part in parts_of(options, card) if part.name == name)
        done = options.out / f"{name}.done"
        limit_s = min(part.seconds * options.patience, deadline - time.monotonic() - GRACE_S)
        if done.exists():
            rows.append(f"{name:<12} done before")
        elif limit_s <= 0:
            rows.append(f"{name:<12} no time was left")
        else:
            print(f"{name}, at most {limit_s:.0f} s", flush=True)
            outcome, took_s = run(part, limit_s, options.out / f"{name}.log")
            log = (options.out / f"{name}.log").read_text(errors="replace")
            last = log.strip().rpartition("\n")[2]
            rows.append(f"{name:<12} {outcome:<8} {took_s:>5.0f} s  {last[:100]}")
            print(rows[-1], flush=True)
            if outcome == "done":
                done.touch()
            failed |= outcome != "done"
        if name == "versions":
            card = card_of(options.out)
    print("\n" + "\n".join(rows))
    print_results(options.out)
    return int(failed)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``wanted`` lists the parts in their order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for logs, results and reports")
    parser.add_argument(
        "--data", default="cifar10", help="to train on: cifar10 or folder:DIR (default: cifar10)"
    )
    parser.add_argument("--model", default="resnet50", help="suite to train (default: resnet50)")
    parser.add_argument(
        "--batch-sizes", default="128,512", help="of the training (default: 128,512)"
    )
    parser.add_argument("--first", action="store_true", help=f"only {', '.join(FIRST)}")
    parser.add_argument("--only", help="parts, with commas between (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="time for all parts (default: 540)"
    )
    parser.add_argument(
        "--patience", type=float, default=1, help="factor on all seconds, for a rehearsal"
    )
    options = parser.parse_args(words)
    options.out = options.out.resolve()
    if options.data.startswith("folder:"):
        options.data = f"folder:{Path(options.data.removeprefix('folder:')).resolve()}"
    known = [part.name for part in parts_of(options, "")]
    wanted = known
    if options.first:
        wanted = list(FIRST)
    if options.only:
        wanted = options.only.split(",")
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(known)}")
    options.wanted = [name for name in known if name in wanted]
    return options


def run(part: Part, limit_s: float, log: Path) -> tuple[str, float]:
    """Run a part with its output in a file; return the outcome in words, and its seconds."""
    start = time.monotonic()
    with log.open("a") as file:
        print(shlex.join(part.command), file=file, flush=True)
        process = subprocess.Popen(
            part.command,
            cwd=part.folder,
            # So that the log of a killed part has its output so far.
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        outcome = ""
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            outcome = "ended"
            signal_all(process, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:  # Ctrl-C does not reach the part, which has a session of its own
            signal_all(process, signal.SIGKILL)
            process.wait()
    took_s = time.monotonic() - start
    if not outcome:
        outcome = f"exit {process.returncode}" if process.returncode else "done"
    return outcome, took_s


def signal_all(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def card_of(out: Path) -> str:
    """Return the GPU's name, from the log of ``versions``, as the start of a folder's name."""
    log = out / "versions.log"
    printed = log.read_text(errors="replace") if log.exists() else ""
    found = re.search(r"^cuDNN .* GPU (.+)$", printed, re.MULTILINE)
    name = found[1].lower().removeprefix("nvidia ") if found else "gpu"
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def print_results(out: Path) -> None:
    """Print the folders of runs and reports that have been written, to commit."""
    folders = [*sorted(out.glob("results/*/")), *sorted(out.glob("reports/*/"))]
    if folders:
        print(f"\nTo commit, from {out}:")
    for folder in folders:
        print(f"  {folder.relative_to(out)}")


if __name__ == "__main__":
    sys.exit(main())
