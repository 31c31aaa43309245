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
import builtins
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
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
        title="one layer",
        data=Data(input_shape=(3, 4, 4), classes=2, steps_per_epoch=4),
        model=lambda data: nn.Sequential(nn.Flatten(), nn.Linear(48, 2)),
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
# A run that takes longer hangs; an undisturbed one takes some seconds.
LIMIT_S = 600.0
# The documented exit codes of a run that no signal ended.
CODES = (0, 1, 2)
# Statuses of trials that --resume measures again.
FAILED = ("failed", "timeout")
LAUNCHER, CTRL_C = "launcher", "Ctrl-C"
TARGETS = (LAUNCHER, "worker", "fork server", CTRL_C)
# Exit codes of a run that was struck at its launcher itself; 130 is a shell's for Ctrl-C.
STRUCK_CODES = {
    LAUNCHER: (*CODES, -signal.SIGKILL),
    CTRL_C: (*CODES, 130, -signal.SIGINT),
}
ENDED = "the run had ended"


class Place:
    """A folder with the suite, for one run, and the processes of the run."""

    def __init__(self, root: Path, name: str) -> None:
        """Make the folder."""
        self.folder = root / name
        self.out = self.folder / "out"
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True)
        (self.folder / "tiny.py").write_text(SUITE)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the run's processes."""
        return {MARK: str(self.folder), "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}

    @property
    def printed(self) -> str:
        """The output of the last run."""
        return (self.folder / "printed").read_text(errors="replace")

    @property
    def resumption(self) -> tuple[str, ...]:
        """Words that resume the run, or start it anew if nothing was written."""
        anew = () if (self.out / "run.json").exists() else WORDS
        return (*anew, "--resume", "out")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the command line in a new session, as a terminal does."""
        with (self.folder / "printed").open("wb") as printed:
            return subprocess.Popen(
                [sys.executable, str(ROOT / "run_bench.py"), *words],
                cwd=self.folder,
                env=os.environ | self.variables,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Return the run's living processes."""
        alive = []
        for process in psutil.process_iter(["environ", "status"]):
            environment = process.info["environ"] or {}  # None: another user's
            if environment.get(MARK) != str(self.folder):
                continue
            if process.info["status"] != psutil.STATUS_ZOMBIE:
                alive.append(process)
        return alive

    def left(self) -> list[psutil.Process]:
        """Return the processes that still live after ``PATIENCE_S``."""
        deadline = time.monotonic() + PATIENCE_S
        alive = self.processes()
        while alive and time.monotonic() < deadline:
            time.sleep(0.1)
            alive = self.processes()
        return alive

    def end(self) -> None:
        """Kill the remaining processes, so that they do not disturb the next run."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()


def whole_rows(folder: Path) -> list[dict[str, str]]:
    """Return the whole rows of a run's phases, each with its phase."""
    rows = []
    for name, phase in MEASURING.items():
        for row in filled(folder / phase.file):
            rows.append({"phase": name, **row})
    return rows


def filled(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV that end with a newline, without their empty cells.

    Rows that are stored later may add columns, which are empty in the earlier rows.
    """
    try:
        text = path.read_text()
    except OSError:
        return []
    text = text[: text.rfind("\n") + 1]
    if not text:
        return []
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    rows = []
    for row in frame.to_dict("records"):
        rows.append({name: cell for name, cell in row.items() if cell})
    return rows


def role(process: psutil.Process, launcher: int) -> str:
    """Return the role of a process of a run."""
    if process.pid == launcher:
        return LAUNCHER
    words = " ".join(process.cmdline())
    if "resource_tracker" in words:
        return "resource tracker"
    if "forkserver" not in words:
        return "other"
    # A worker is a fork of the fork server, and has its command line.
    parent = process.parent()
    is_worker = parent is not None and "forkserver" in " ".join(parent.cmdline())
    return "worker" if is_worker else "fork server"


def of_role(place: Place, launcher: int, wanted: str) -> psutil.Process | None:
    """Return a run's process with the wanted role, if there is any."""
    for process in place.processes():
        with suppress(psutil.Error):
            if role(process, launcher) == wanted:
                return process
    return None


def question(trial: Mapping[str, Any], precision: str) -> tuple[str, ...]:
    """Return the question that a row answers, the same for paired and separate arms.

    The run has one cell, so the cell is no part of it.
    """
    phase = trial["phase"]
    return phase, precision, str(trial.get(PHASES[phase].key or "", ""))


def check_complete(folder: Path, before: Sequence[dict[str, str]]) -> list[str]:
    """Return the faults of a run that was resumed to its end.

    Args:
        folder: of the run.
        before: its whole rows before it was resumed.
    """
    wrong = []
    rows = whole_rows(folder)
    planned = json.loads((folder / "run.json").read_text())["planned"]
    final = Counter(question(row, row["precision"]) for row in rows if row["status"] not in FAILED)
    wanted = {question(trial, arm) for trial in planned for arm in trial["arms"]}
    if missing := wanted - set(final):
        wrong.append(f"without a final row: {sorted(missing)}")
    if twice := [key for key, count in final.items() if count > 1]:
        wrong.append(f"more than once: {twice}")
    if lost := lost_trials(planned, before, rows):
        wrong.append(f"finished before, and changed or gone: {lost}")
    return wrong + check_readable(folder)


def lost_trials(
    planned: Sequence[Mapping[str, Any]],
    before: Sequence[dict[str, str]],
    rows: Sequence[dict[str, str]],
) -> list[str]:
    """Return the finished trials of ``before`` that ``rows`` has changed or lost."""
    arms = {trial["trial"]: len(trial["arms"]) for trial in planned}
    there = {row["trial"] for row in rows}
    answered = {question(row, row["precision"]) for row in rows if row["status"] not in FAILED}
    finished = [row for row in before if row["status"] not in FAILED]
    done = Counter(row["trial"] for row in finished)
    lost = []
    for row in finished:
        trial = row["trial"]
        if done[trial] != arms.get(trial, 1):  # not all of its arms: it is measured again
            continue
        # Arms that were measured apart give way when they are measured together after all.
        gave_way = trial not in there and question(row, row["precision"]) in answered
        if row not in rows and not gave_way:
            lost.append(trial)
    return lost


def check_readable(folder: Path) -> list[str]:
    """Return why a run cannot be read; empty if it can."""
    from bench.report.reading.load import load
    from bench.spec.errors import UsageError

    try:
        load([folder])
    except UsageError as error:
        return [f"cannot be read: {error}"]
    return []


# ---- kills


def duration_s(place: Place) -> float:
    """Return the duration of an undisturbed run."""
    begun = time.monotonic()
    code = place.start(*WORDS, "--out", "out").wait(LIMIT_S)
    assert code == 0, place.printed
    return time.monotonic() - begun


def victim_at(
    place: Place, run: subprocess.Popen[bytes], target: str, moment_s: float
) -> psutil.Process | None:
    """Return a run's process to kill, as soon as there is one after a moment; None if the run ends.

    Args:
        place: of the run.
        run: its launcher, just started.
        target: of ``TARGETS``.
        moment_s: since now.
    """
    wanted = LAUNCHER if target == CTRL_C else target
    deadline = time.monotonic() + moment_s
    while run.poll() is None:
        victim = of_role(place, run.pid, wanted) if time.monotonic() >= deadline else None
        if victim is not None:
            return victim
        time.sleep(0.02)
    return None


def kill_once(place: Place, target: str, moment_s: float) -> tuple[str, list[str]]:
    """Kill a process of a run; return the moment in words, and the faults."""
    run = place.start(*WORDS, "--out", "out")
    victim = victim_at(place, run, target, moment_s)
    if victim is None:
        return ENDED, finish(place)
    before = whole_rows(place.out)
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        if target == CTRL_C:
            os.killpg(run.pid, signal.SIGINT)
        else:
            victim.kill()
    wrong = await_end(run, target)
    if target != LAUNCHER:  # then the run went on, and stored more
        before = whole_rows(place.out)
    if alive := place.left():
        roles = [role(survivor, run.pid) for survivor in alive]
        wrong.append(f"left after {PATIENCE_S:g} s: {roles}")
    place.end()
    if "Traceback" in place.printed:
        wrong.append(f"a traceback: {place.printed.strip().splitlines()[-1]}")
    return f"{len(before)} rows before", wrong + finish(place, before)


def await_end(run: subprocess.Popen[bytes], target: str) -> list[str]:
    """Wait for the end of a run of which a process was killed; return the faults."""
    try:
        code = run.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        run.kill()
        return [f"the run hangs after its {target} was killed"]
    return [] if code in STRUCK_CODES.get(target, CODES) else [f"exit code {code}"]


def finish(place: Place, before: Sequence[dict[str, str]] | None = None) -> list[str]:
    """Resume a run; return its faults.

    Args:
        place: of the run.
        before: the rows that must stay; by default those that there are.
    """
    before = whole_rows(place.out) if before is None else before
    run = place.start(*place.resumption)
    try:
        code = run.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        run.kill()
        return ["the resumption hangs"]
    if code:
        return [f"the resumption ended with {code}: {place.printed.strip().splitlines()[-1:]}"]
    return check_complete(place.out, before)


def kills(count: int, seed: int) -> int:
    """Kill runs, print their faults, and return the number of runs with a fault."""
    draws = random.Random(seed)
    runs, late, faulty = Counter[str](), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="ampmeter-faults-") as root:
        # The first one also reads from a cold disk.
        whole_s = min(duration_s(Place(Path(root), name)) for name in ("first", "second"))
        print(f"an undisturbed run takes {whole_s:.1f} s", flush=True)
        for number in range(count):
            target = TARGETS[number % len(TARGETS)]
            moment_s = draws.random() * whole_s
            place = Place(Path(root), f"kill{number}")
            when, wrong = kill_once(place, target, moment_s)
            place.end()
            if wrong:
                where = f"{number}: {target} at {moment_s:.2f} s ({when})"
                print(f"{where}: {'; '.join(wrong)}", flush=True)
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


# ---- calls that fail

# Functions of os whose calls fail, each with an error that a user may meet.
ERRORS = {
    "open": errno.EMFILE,
    "write": errno.ENOSPC,
    "fsync": errno.EIO,
    "rename": errno.EACCES,
    "replace": errno.EACCES,
    "mkdir": errno.ENOSPC,
    "fork": errno.EAGAIN,
    "pipe": errno.EMFILE,
}
# Those whose errors name a file.
OF_FILES = ("open", "rename", "replace", "mkdir")
BENCH = str(ROOT / "bench") + os.sep
REAL_OPEN = io.open


class Failing:
    """Counter of the calls by bench/ in some processes that lets the Nth call fail."""

    def __init__(self, folder: Path, fail_at: int, where: str) -> None:
        """Begin to count.

        Args:
            folder: where workers note how far they counted, and a failed removal is noted.
            fail_at: the call that fails, counted from 1 in each process; 0 fails none.
            where: "launcher" or "worker".
        """
        self.fail_at, self.where = fail_at, where
        self.reached, self.removing = folder / "counted", folder / "removing"
        self.launcher = self.pid = os.getpid()
        self.counted = 0

    def meet(self, name: str) -> None:
        """Count a call of a function of ``ERRORS``, and raise at the Nth."""
        is_worker = os.getpid() != self.launcher
        if is_worker is not (self.where == "worker") or not from_bench():
            return
        if self.pid != os.getpid():  # a fork counts from 0
            self.pid, self.counted = os.getpid(), 0
        self.counted += 1
        if is_worker:
            self.note()
        if self.counted != self.fail_at:
            return
        if called_by("rmtree"):  # then a temporary folder stays, by no fault of the run
            self.removing.touch()
        number = ERRORS[name]
        raise OSError(number, os.strerror(number), "a file" if name in OF_FILES else None)

    def note(self) -> None:
        """Note how far this process counted."""
        with REAL_OPEN(self.reached, "a") as file:
            file.write(f"{self.counted}\n")


def from_bench() -> bool:
    """Return whether a function of bench/ is a caller, outside an import."""
    ours = False
    for frame, _line in traceback.walk_stack(sys._getframe(1)):
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return False
        ours = ours or name.startswith(BENCH)
    return ours


def called_by(function: str) -> bool:
    """Return whether a function of this name is on the stack."""
    stack = traceback.walk_stack(sys._getframe(1))
    return any(frame.f_code.co_name == function for frame, _line in stack)


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

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.meet(name)
            return real(*args, **options)

        return call

    builtins.open = io.open = opened  # type: ignore[assignment]
    for name in ERRORS:
        setattr(os, name, counting(name, getattr(os, name)))


def run_here(words: Sequence[str], place: Place, calls: Failing) -> None:
    """Run the command line in this new process, and exit with the run's code.

    Its workers are forks of this process, so that they count, too.
    """
    os.chdir(place.folder)
    output = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(place.variables)
    tempfile.tempdir = None
    fork = multiprocessing.get_context("fork")
    fork.set_forkserver_preload = lambda _names: None
    multiprocessing.get_context = lambda _method=None: fork  # type: ignore[assignment]
    import run_bench

    code = 99
    try:
        install(calls)
        code = run_bench.main(list(words))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 98
    except BaseException as error:
        os.write(2, f"Traceback: {type(error).__name__}: {error}\n".encode())
    if calls.where == LAUNCHER:
        calls.note()
    sys.stdout.flush()
    os._exit(code)


def forked(words: Sequence[str], place: Place, fail_at: int, where: str) -> tuple[int, str]:
    """Run the command line in a copy of this process; return its exit code and output.

    The code is below 0 if it hangs or leaves a process; then the output is that fault.
    """
    pid = os.fork()
    if not pid:
        os.setsid()
        run_here(words, place, Failing(place.folder, fail_at, where))
    try:
        code = psutil.Process(pid).wait(LIMIT_S)
    except psutil.TimeoutExpired:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return -1, "hangs"
    if outlives(pid):
        return -2, "left a process"
    return code, place.printed


def outlives(group: int) -> bool:
    """Return whether processes of a group still live after ``PATIENCE_S``, and kill them."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def fail_once(place: Place, number: int, where: str) -> tuple[bool, list[str], str]:
    """Let the Nth call fail.

    Returns:
        Whether there was an Nth call, the faults, and the last printed line.
    """
    code, text = forked((*WORDS, "--out", "out"), place, number, where)
    counted = place.folder / "counted"
    reached = counted.exists() and max(map(int, counted.read_text().split())) >= number
    printed = [line for line in text.splitlines() if line.strip()]
    last = printed[-1] if printed else ""
    rows = whole_rows(place.out)
    wrong = [f"the run {text}"] if code < 0 else answer_faults(place, code, text, rows)
    if not wrong:
        code, text = forked(place.resumption, place, 0, where)
        if code:
            wrong = [f"the resumption ended with {code}: {text.strip()[-300:]}"]
        else:
            wrong = check_complete(place.out, rows)
    return reached, wrong, last


def answer_faults(
    place: Place, code: int, text: str, rows: Sequence[Mapping[str, str]]
) -> list[str]:
    """Return what is wrong with the end of a run in which a call failed.

    Args:
        place: of the run.
        code: its exit code.
        text: what it printed.
        rows: the whole rows in its folder.
    """
    wrong = []
    if code not in CODES:
        wrong.append(f"exit code {code}")
    if "Traceback" in text:
        wrong.append("a traceback")
    files = sorted(path.name for path in place.temporary.glob("ampmeter*"))
    if files and not (place.folder / "removing").exists():
        wrong.append(f"temporary files: {files}")
    announced = set(re.findall(r"^\[(\d+)/\d+\] .*: (?!failed)", text, re.M))
    if len({row["trial"] for row in rows}) < len(announced):
        wrong.append(f"{len(announced)} trials were announced, and {len(rows)} rows are left")
    if code and not text.strip() and not any(row["status"] in FAILED for row in rows):
        wrong.append("no message")
    return wrong


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
        for where in (LAUNCHER, "worker"):
            tried = 0
            for number in itertools.count(1, every):
                place = Place(Path(root), f"{where}{number}")
                reached, wrong, last = fail_once(place, number, where)
                if not reached:
                    break
                tried += 1
                if wrong:
                    bad += 1
                    fault = f"call {number} of the {where}: {'; '.join(wrong)}"
                    print(f"{fault} | {last[:160]}", flush=True)
                shutil.rmtree(place.folder, ignore_errors=True)
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
    # A shell that starts this in the background lets it ignore Ctrl-C, and so the runs, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    bad = calls(options.every) if options.what == "calls" else kills(options.runs, options.seed)
    print("nothing was wrong" if not bad else f"{bad} were wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
