"""Two sides measured by turns: suites' files, checkouts of ampmeter, or environments."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.run.reporting import WITHOUT_REPORT
from bench.spec import lifetime
from bench.spec.errors import UsageError
from bench.spec.own_modules import ROOT
from bench.spec.text import print_plain

PROGRAM = "run_bench.py"
# The file in the runs' folder with the command of each side.
ASKED = "sides.json"


def interleave(
    old: Path, new: Path, words: Sequence[str], out: Path, pairs: int
) -> tuple[Path, Path]:
    """Run each side once in each pair, OLD first in one pair and NEW first in the next.

    Runs that ``out`` has already are completed if need be, so a later call with more pairs adds to
    them. What the runs print goes to stderr.

    Args:
        old: a suite's file, the folder of a checkout, or the Python or the folder of an
            environment.
        new: likewise.
        words: options of each run.
        out: folder that gets ``old/1``, ``new/1``, ``new/2``, ``old/2`` and so on.
        pairs: their number.

    Returns:
        The folders of the runs of both sides.

    Raises:
        UsageError: a side is none of these, one of its runs was refused, or ``out`` has runs of
            other code.
    """
    if words and not words[0].startswith("-"):
        raise UsageError(
            "--interleave measures suites: after -- come options of runs, not the command "
            f"'{words[0]}'."
        )
    commands = {"old": _command(old, words), "new": _command(new, words)}
    _require_same(out, commands, (old, new))
    for pair in range(1, pairs + 1):
        order = list(commands)
        if pair % 2 == 0:
            # A drift of the machine, such as heat, would favour the one that is always first.
            order.reverse()
        for side in order:
            folder = out / side / str(pair)
            # Of a new folder it starts the run.
            command = [*commands[side], "--resume", str(folder)]
            name = f"{side.upper()} in pair {pair}"
            print_plain(f"{name} of {pairs}: {shlex.join(command)}", error=True)
            code = _run(command)
            # 1 is a run with failed trials, which are rows; a Python that lacks a package also ends
            # with 1, and leaves no run.
            if code not in (0, 1) or not (folder / "run.json").is_file():
                raise UsageError(f"The run of {name} ended with exit code {code}, see above.")
    return out / "old", out / "new"


def _run(command: Sequence[str]) -> int:
    """Run a command to its end, and return its exit code.

    An interruption of this process is passed on once, and waits for the run's own end.
    """
    process = subprocess.Popen(
        command,
        stdout=sys.stderr,
        env=os.environ | {WITHOUT_REPORT: "yes"},
        start_new_session=True,  # else Ctrl-C reaches it twice
        preexec_fn=partial(lifetime.end_with, os.getpid()),  # noqa: PLW1509 - a call of the kernel alone
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        print_plain("The same command goes on with what is left.", error=True)
        raise


def _require_same(out: Path, commands: Mapping[str, Sequence[str]], sides: Sequence[Path]) -> None:
    """Refuse runs of another comparison, or of code edited since the first of them began."""
    asked = json.dumps(commands, indent=1)
    file = out / ASKED
    if not any(out.glob("*/*/run.json")):
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(asked)
        return
    if not file.exists() or file.read_text() != asked:
        raise UsageError(
            f"'{out}' has runs of other sides or with other options. Choose another folder."
        )
    began = file.stat().st_mtime
    for side in sides:
        for source in _sources(side):
            if source.stat().st_mtime > began:
                raise UsageError(
                    f"'{source}' was edited after the first runs in '{out}'. Choose another folder."
                )


def _sources(side: Path) -> Iterator[Path]:
    """Yield the modules that a suite may import from its folder, or those of a checkout.

    An environment has none.
    """
    folder = side
    if side.suffix == ".py":
        folder = side.parent
    elif not (side / PROGRAM).is_file():
        return
    for path in folder.rglob("*.py"):
        names = path.relative_to(folder).parts
        if not any(name.startswith(".") or name == "site-packages" for name in names):
            yield path


def _command(side: Path, words: Sequence[str]) -> list[str]:
    """Return the command of a side's runs, with their options ``words``.

    A suite and an environment are run by this ampmeter, or by the environment's own.
    """
    program = str(ROOT / PROGRAM)
    checkout = side / PROGRAM
    if side.suffix == ".py" and side.is_file():
        if any(word.partition("=")[0] == "--suite" for word in words):
            raise UsageError(f"'{side}' is the suite of its side: leave out --suite after --.")
        return [sys.executable, program, "--suite", str(side.resolve()), *words]
    if checkout.is_file():
        return [sys.executable, str(checkout.resolve()), *words]
    for path in (side / "bin" / "python", side):
        if not path.is_file() or not os.access(path, os.X_OK):
            continue
        # Not resolved: a link tells Python which environment it is of.
        python = path.absolute()
        if (ROOT / "pyproject.toml").is_file():
            return [str(python), program, *words]
        # An installed program lies beside this environment's torch, which would hide the other
        # one's.
        own = python.with_name("ampmeter")
        if own.is_file():
            return [str(own), *words]
        raise UsageError(f"'{side}' has no ampmeter: install it there, too.")
    raise UsageError(
        f"'{side}' is no suite's file, no checkout with {PROGRAM}, and no environment's folder or "
        "Python: --interleave measures two of these."
    )
