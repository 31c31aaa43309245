#!/usr/bin/env python3
"""Check that a run loses, doubles and leaves nothing when it is killed, or a system call fails.

    python perf/faults.py kills [--runs 200] [--seed 20]
    python perf/faults.py calls [--every 1]

``kills``: the script sends SIGKILL to the launcher, a worker and the fork server, in turn, and
presses Ctrl-C in every fourth run, at a random moment. 5 s later no process of the run may be left.
``--resume`` must then succeed; every planned trial must have its rows exactly once, and the earlier
rows must be unchanged.

``calls``: the run is repeated in copies of one process that has imported everything. In the Nth
copy the Nth call by bench/ of open, write, fsync, rename, mkdir, fork or pipe fails, first in the
launcher, then in each of its workers. The run must end with a documented exit code and a sentence
or a row, without a traceback, and leave no process and no temporary file (unless the failed call
was to remove it). The run's folder must hold every result that was announced.

Each prints one line for each fault, and figures at the end; the exit code is 1 if there was a
fault.
"""

from __future__ import annotations

import argparse
import errno
import io
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pandas as pd  # noqa: E402 - from here on the project can be imported
import psutil  # noqa: E402

from bench.spec.phases import MEASURING, PHASES  # noqa: E402

SUITE = """
from torch import nn, optim
from bench.spec import Data, Suite


def suite() -> Suite:
    return Suite(
        name="tiny",
        title="two layers",
        data=Data(input_shape=(3, 4, 4), classes=2, steps_per_epoch=4),
        model=lambda data: nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 2)),
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.01),
        batch_size=4,
        batch_sizes=(4,),
        epochs=1,
    )
"""
WORDS = ("--suite", "./tiny.py", "--gpus", "cpu", "--quick", "--precisions", "fp32,amp-bf16")
WORDS = (*WORDS, "--phases", "memory,speed,train", "--time-budget", "0.2")
# An environment variable of a run's processes that identifies the run.
MARK = "AMPMETER_FAULTS"
# How long processes of a run may outlive it.
PATIENCE_S = 5.0
# A run that takes longer hangs.
LIMIT_S = 600.0
# The documented exit codes of a run that no signal ended.
CODES = (0, 1, 2)
# Statuses of trials that --resume measures again.
FAILED = ("failed", "timeout")
CTRL_C = "Ctrl-C"
TARGETS = ("launcher", "worker", "fork server", CTRL_C)
ENDED = "the run had ended"


@dataclass
class Place:
    """A folder with the suite, for one run, and the processes of the run."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        (self.folder / "tiny.py").write_text(SUITE)
        (self.folder / "tmp").mkdir()

    @property
    def environment(self) -> dict[str, str]:
        """Environment that marks the run's processes."""
        return {
            **os.environ,
            MARK: self.mark,
            "TMPDIR": str(self.folder / "tmp"),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the command line in a new session, as a terminal does."""
        return subprocess.Popen(
            [sys.executable, str(ROOT / "run_bench.py"), *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def processes(self) -> list[psutil.Process]:
        """Return the run's living processes."""
        alive = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if (
                    process.environ().get(MARK) == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    alive.append(process)
        return alive

    def left(self, within_s: float = PATIENCE_S) -> list[psutil.Process]:
        """Return the processes that still live after ``within_s``."""
        deadline = time.monotonic() + within_s
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return alive

    def end(self) -> None:
        """Kill the remaining processes, so that they do not disturb the next run."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()

    def rows(self, name: str = "out") -> list[dict[str, str]]:
        """Return the whole rows of all phases."""
        return whole_rows(self.folder / name)


def whole_rows(folder: Path) -> list[dict[str, str]]:
    """Return the whole rows of a run's phases, each with its phase."""
    return [
        {"phase": name, **row}
        for name, phase in MEASURING.items()
        for row in filled(folder / phase.file)
    ]


def filled(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV that end with a newline, without empty cells: other rows may add columns later."""
    try:
        text = path.read_text()
    except OSError:
        return []
    text = text[: text.rfind("\n") + 1]
    if not text:
        return []
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    return [{name: cell for name, cell in row.items() if cell} for row in frame.to_dict("records")]


def role(process: psutil.Process, launcher: int) -> str:
    """Return the role of a process of a run."""
    if process.pid == launcher:
        return "launcher"
    words = " ".join(process.cmdline())
    if "resource_tracker" in words:
        return "resource tracker"
    if "forkserver" not in words:
        return "other"
    parent = process.parent()
    return (
        "worker"
        if parent is not None and "forkserver" in " ".join(parent.cmdline())
        else "fork server"
    )


def of_role(place: Place, launcher: int, wanted: str) -> psutil.Process | None:
    """Return a run's process with the wanted role, if there is any."""
    for process in place.processes():
        with suppress(psutil.Error):
            if role(process, launcher) == wanted:
                return process
    return None


def question(trial: Mapping[str, Any], precision: str) -> tuple[str, ...]:
    """Return the question that a row answers, the same for paired and separate arms; the run has one cell."""
    phase = trial["phase"]
    return phase, precision, str(trial.get(PHASES[phase].key or "", ""))


def check_complete(folder: Path, before: Sequence[dict[str, str]]) -> list[str]:
    """Return the faults of a run that was resumed to its end."""
    wrong = []
    rows = whole_rows(folder)
    planned = json.loads((folder / "run.json").read_text())["planned"]
    final = Counter(question(row, row["precision"]) for row in rows if row["status"] not in FAILED)
    wanted = {question(trial, arm) for trial in planned for arm in trial["arms"]}
    if missing := wanted - set(final):
        wrong.append(f"without a final row: {sorted(missing)}")
    if twice := [key for key, count in final.items() if count > 1]:
        wrong.append(f"more than once: {twice}")
    done = Counter(row["trial"] for row in before if row["status"] not in FAILED)
    arms = {trial["trial"]: len(trial["arms"]) for trial in planned}
    there = {row["trial"] for row in rows}
    kept = [row for row in before if done[row["trial"]] == arms.get(row["trial"], 1)]
    # Arms that were measured apart give way when they are measured together after all.
    kept = [
        row for row in kept if row["trial"] in there or question(row, row["precision"]) not in final
    ]
    if lost := [row["trial"] for row in kept if row["status"] not in FAILED and row not in rows]:
        wrong.append(f"finished before, and changed or gone: {lost}")
    return wrong + check_readable(folder)


def check_readable(folder: Path) -> list[str]:
    """Return why a run cannot be read; empty if it can."""
    from bench.report.reading.load import load
    from bench.spec.errors import UsageError

    try:
        load([folder])
    except UsageError as error:
        return [f"cannot be read: {error}"]
    return []


def finish(place: Place, before: Sequence[dict[str, str]]) -> list[str]:
    """Resume a run, or start it anew if nothing was written; return its faults."""
    resumable = (place.folder / "out" / "run.json").exists()
    process = place.start("--resume", "out") if resumable else place.start(*WORDS, "--out", "out")
    try:
        printed, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return ["the resumption hangs"]
    text = printed.decode(errors="replace")
    if process.returncode:
        return [f"the resumption ended with {process.returncode}: {text.strip().splitlines()[-1:]}"]
    return check_complete(place.folder / "out", before)


# ---- kills


def duration_s(folder: Path) -> float:
    """Return the duration of an undisturbed run."""
    place = Place(folder)
    begun = time.monotonic()
    process = place.start(*WORDS, "--out", "out")
    printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, printed.decode(errors="replace")
    return time.monotonic() - begun


def kill_once(place: Place, target: str, moment_s: float) -> tuple[str, list[str]]:
    """Kill a process of a run; return the moment in words, and the faults."""
    process = place.start(*WORDS, "--out", "out")
    printed: list[bytes] = []
    reader = threading.Thread(
        target=lambda: printed.append(process.stdout.read() if process.stdout else b"")
    )
    reader.start()
    deadline = time.monotonic() + moment_s
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    victim = None
    wanted = "launcher" if target == CTRL_C else target
    while process.poll() is None and (victim := of_role(place, process.pid, wanted)) is None:
        time.sleep(0.02)
    if victim is None:
        reader.join()
        return ENDED, finish(place, place.rows())
    before = place.rows() if target == "launcher" else []
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        if target == CTRL_C:
            os.killpg(process.pid, signal.SIGINT)
        else:
            victim.kill()
    wrong = []
    if target == "launcher":
        process.wait()
    else:
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            wrong.append(f"the run hangs after its {target} was killed")
            process.kill()
        else:
            if process.returncode not in (
                (*CODES, 130, -signal.SIGINT) if target == CTRL_C else CODES
            ):
                wrong.append(f"exit code {process.returncode}")
        before = place.rows()
    if alive := place.left():
        wrong.append(
            f"left after {PATIENCE_S:g} s: {[role(survivor, process.pid) for survivor in alive]}"
        )
    place.end()
    reader.join()
    if b"Traceback" in b"".join(printed):
        wrong.append(
            "a traceback: " + b"".join(printed).decode(errors="replace").strip().splitlines()[-1]
        )
    return f"{len(before)} rows before", wrong + finish(place, before)


def kills(count: int, seed: int) -> int:
    """Kill runs, print their faults, and return the number of runs with a fault."""
    draws = random.Random(seed)
    runs, late, faulty = Counter[str](), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="ampmeter-faults-") as root:
        whole_s = min(duration_s(new(Path(root), name)) for name in ("first", "second"))
        print(f"an undisturbed run takes {whole_s:.1f} s", flush=True)
        for number in range(count):
            target, moment_s = TARGETS[number % len(TARGETS)], draws.random() * whole_s
            place = Place(new(Path(root), f"kill{number}"))
            when, wrong = kill_once(place, target, moment_s)
            place.end()
            if wrong:
                print(
                    f"{number}: {target} at {moment_s:.2f} s ({when}): {'; '.join(wrong)}",
                    flush=True,
                )
            shutil.rmtree(place.folder, ignore_errors=True)
            runs[target] += 1
            late[target] += when == ENDED
            faulty[target] += bool(wrong)
    for target, number in runs.items():
        right = number - faulty[target]
        print(
            f"{target}: {number} runs, {late[target]} of them had ended before; {right} right, "
            f"{faulty[target]} wrong"
        )
    return faulty.total()


def new(root: Path, name: str) -> Path:
    """Make a folder."""
    (root / name).mkdir()
    return root / name


# ---- calls that fail

# Error of each kind of failing call.
ERRORS = {
    "open": errno.EMFILE,
    "write": errno.ENOSPC,
    "fsync": errno.EIO,
    "rename": errno.EACCES,
    "mkdir": errno.ENOSPC,
    "fork": errno.EAGAIN,
    "pipe": errno.EMFILE,
}
BENCH = str(ROOT / "bench") + os.sep
# Name of a file that exists if the failed call was to remove a temporary folder, which then stays.
REMOVING = "removing"


class Failing:
    """Counter of the calls by bench/ in some processes that lets the Nth call fail."""

    def __init__(self, fail_at: int, where: str) -> None:
        """Fail at a call, counted from 1 in each process; 0 fails none. ``where`` is "launcher" or "worker"."""
        self.fail_at, self.where, self.launcher = fail_at, where, os.getpid()
        self.counted, self.pid = 0, os.getpid()

    def meet(self, kind: str) -> None:
        """Count a call, and raise at the Nth."""
        inside = os.getpid() != self.launcher
        if inside is not (self.where == "worker") or not from_bench():
            return
        if self.pid != os.getpid():  # a fork counts from 0
            self.pid, self.counted = os.getpid(), 0
        self.counted += 1
        if inside:
            with REAL_OPEN(Path(os.environ["TMPDIR"]).parent / "counted", "a") as file:
                file.write(f"{self.counted}\n")
        if self.counted == self.fail_at:
            if called_by("rmtree"):
                (Path(os.environ["TMPDIR"]).parent / REMOVING).touch()
            number = ERRORS[kind]
            raise OSError(
                number,
                os.strerror(number),
                "a file" if kind in ("open", "rename", "mkdir") else None,
            )


REAL_OPEN = io.open


def from_bench() -> bool:
    """Return whether a function of bench/ is the caller, outside an import."""
    frame, ours = sys._getframe(2), False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return False
        ours = ours or name.startswith(BENCH)
        frame = frame.f_back
    return ours


def called_by(function: str) -> bool:
    """Return whether a function of this name is on the stack."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def install(calls: Failing) -> None:
    """Replace Python's calls by counted ones until this process ends."""

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            calls.meet("write")
            return super().write(data)

    def opened(  # noqa: PLR0917 - those of open
        path: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        calls.meet("open")
        if not set(mode) & set("wax+") or isinstance(path, int) or not from_bench():
            return REAL_OPEN(path, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = File(path, mode.replace("b", "").replace("t", ""), closefd, opener)
        if not buffering:
            return raw
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

    def counting(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.meet(kind)
            return real(*args, **options)

        return call

    import builtins

    builtins.open = io.open = opened  # type: ignore[assignment]
    names = {
        "open": "open",
        "write": "write",
        "fsync": "fsync",
        "rename": "rename",
        "replace": "rename",
    }
    for name, kind in {**names, "mkdir": "mkdir", "fork": "fork", "pipe": "pipe"}.items():
        setattr(os, name, counting(kind, getattr(os, name)))


def run_here(words: Sequence[str], place: Path, fail_at: int, where: str) -> None:
    """Run the command line in this new process, with forks of it as workers; exit with the run's code."""
    os.chdir(place)
    output = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update({"TMPDIR": str(place / "tmp"), MARK: place.name, "OMP_NUM_THREADS": "1"})
    tempfile.tempdir = None
    fork = multiprocessing.get_context("fork")
    fork.set_forkserver_preload = lambda _names: None
    multiprocessing.get_context = lambda _method=None: fork  # type: ignore[assignment]
    import run_bench

    calls = Failing(fail_at, where)
    code = 99
    try:
        install(calls)
        code = run_bench.main(list(words))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 98
    except BaseException as error:
        os.write(2, f"Traceback: {type(error).__name__}: {error}\n".encode())
    if where == "launcher":
        with REAL_OPEN(place / "counted", "a") as file:
            file.write(f"{calls.counted}\n")
    sys.stdout.flush()
    os._exit(code)


def forked(
    words: Sequence[str], place: Path, fail_at: int = 0, where: str = "launcher"
) -> tuple[int, str]:
    """Run the command line in a copy of this process; return its exit code and output."""
    (place / "printed").unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        os.setsid()
        run_here(words, place, fail_at, where)
    deadline = time.monotonic() + LIMIT_S
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    if not ended:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return -1, "hangs"
    with suppress(ProcessLookupError):
        os.killpg(pid, 0)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:  # until no process of its session is left
            time.sleep(0.05)
            os.killpg(pid, 0)
        os.killpg(pid, signal.SIGKILL)
        return -2, "left a process"
    return os.waitstatus_to_exitcode(status), (place / "printed").read_text(errors="replace")


def fail_once(root: Path, number: int, where: str) -> tuple[bool, list[str], str]:
    """Let the Nth call fail; return whether there was an Nth call, the faults, and the last printed line."""
    place = new(root, f"{where}{number}")
    (place / "tiny.py").write_text(SUITE)
    (place / "tmp").mkdir()
    code, text = forked((*WORDS, "--out", "out"), place, number, where)
    counted = place / "counted"
    reached = counted.exists() and max(map(int, counted.read_text().split())) >= number
    wrong = [f"the run {text}"] if code < 0 else []
    if code >= 0 and code not in CODES:
        wrong.append(f"exit code {code}")
    if "Traceback" in text:
        wrong.append("a traceback")
    files = sorted(
        path.name for path in (place / "tmp").iterdir() if path.name.startswith("ampmeter")
    )
    if files and not (place / REMOVING).exists():
        wrong.append(f"temporary files: {files}")
    rows = whole_rows(place / "out")
    announced = set(re.findall(r"^\[(\d+)/\d+\] .*: (?!failed)", text, re.M))
    if len({row["trial"] for row in rows}) < len(announced):
        wrong.append(f"{len(announced)} trials were announced, and {len(rows)} rows are left")
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    if code and not last and not any(row["status"] in FAILED for row in rows):
        wrong.append("no message")
    folder = place / "out"
    words = ("--resume", "out") if (folder / "run.json").exists() else (*WORDS, "--resume", "out")
    if not wrong:
        code, text = forked(words, place)
        wrong = [f"the resumption ended with {code}: {text.strip()[-300:]}"] if code else []
        wrong = wrong or check_complete(folder, rows)
    return reached, wrong, last


def calls(every: int) -> int:
    """Fail each call in turn, print the faults, and return the number of calls with a fault."""
    import torch

    torch.set_num_threads(1)
    import bench.report
    import bench.report.reading.load
    import bench.run.execute
    import bench.run.reporting
    import bench.worker.worker  # noqa: F401

    bad = 0
    with tempfile.TemporaryDirectory(prefix="ampmeter-faults-") as root:
        for where in ("launcher", "worker"):
            tried = 0
            for number in itertools.count(1, every):
                reached, wrong, last = fail_once(Path(root), number, where)
                if not reached:
                    break
                tried += 1
                if wrong:
                    bad += 1
                    print(
                        f"call {number} of the {where}: {'; '.join(wrong)} | {last[:160]}",
                        flush=True,
                    )
                shutil.rmtree(Path(root) / f"{where}{number}", ignore_errors=True)
            print(f"{where}: {tried} calls failed", flush=True)
    return bad


def main() -> int:
    """Run the chosen part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["kills", "calls"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where a shell starts this in the background
    bad = calls(options.every) if options.what == "calls" else kills(options.runs, options.seed)
    print("nothing was wrong" if not bad else f"{bad} were wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
