"""Two sides measured by turns in one session: suites' files, checkouts of ampmeter, or environments."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.run.reporting import WITHOUT_REPORT
from bench.spec import lifetime
from bench.spec.errors import UsageError
from bench.spec.own_modules import ROOT
from bench.spec.text import print_plain

PROGRAM = "run_bench.py"
SIDES = ("old", "new")
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
    commands = {
        side: [*_command(path, words), *words] for side, path in zip(SIDES, (old, new), strict=True)
    }
    _require_same(out, commands, (old, new))
    for pair in range(pairs):
        for side in SIDES if pair % 2 == 0 else SIDES[::-1]:
            folder = out / side / str(pair + 1)
            command = [*commands[side], "--resume", str(folder)]
            name = f"{side.upper()} in pair {pair + 1}"
            print_plain(f"{name} of {pairs}: {shlex.join(command)}", error=True)
            code = _run(command)
            if code not in (0, 1) or not (folder / "run.json").is_file():
                raise UsageError(f"The run of {name} ended with exit code {code}, see above.")
    return out / "old", out / "new"


def _run(command: Sequence[str]) -> int:
    """Run a command to its end; an interruption of this process is passed on once, and waits for the run's own end."""
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
    """Refuse runs of another comparison, or of code that has been edited since the first of them began."""
    asked, file = json.dumps(commands, indent=1), out / ASKED
    if not any(out.glob("*/*/run.json")):
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(asked)
        return
    if not file.exists() or file.read_text() != asked:
        raise UsageError(
            f"'{out}' has runs of other sides or with other options. Choose another folder."
        )
    for side in sides:
        for source in _sources(side):
            if source.stat().st_mtime > file.stat().st_mtime:
                raise UsageError(
                    f"'{source}' was edited after the first runs in '{out}'. Choose another folder."
                )


def _sources(side: Path) -> list[Path]:
    """Return the modules that a suite may import from its folder, or a checkout's; of an environment none."""
    folder = side.parent if side.suffix == ".py" else side
    if side == folder and not (side / PROGRAM).is_file():
        return []
    sources = []
    for path in folder.rglob("*.py"):
        names = path.relative_to(folder).parts
        if not any(name.startswith(".") or name == "site-packages" for name in names):
            sources.append(path)
    return sources


def _command(side: Path, words: Sequence[str]) -> list[str]:
    """Return how a side is run: a suite and an environment by this ampmeter, or by the environment's own."""
    program = str(ROOT / PROGRAM)
    if side.suffix == ".py" and side.is_file():
        if any(word.partition("=")[0] == "--suite" for word in words):
            raise UsageError(f"'{side}' is the suite of its side: leave out --suite after --.")
        return [sys.executable, program, "--suite", str(side.resolve())]
    if (checkout := side / PROGRAM).is_file():
        return [sys.executable, str(checkout.resolve())]
    for python in (side / "bin" / "python", side):
        if python.is_file() and os.access(python, os.X_OK):
            if (ROOT / "pyproject.toml").is_file():
                return [str(python.absolute()), program]
            # An installed program lies beside this environment's torch, which would hide the other
            # one's.
            if (own := python.absolute().with_name("ampmeter")).is_file():
                return [str(own)]
            raise UsageError(f"'{side}' has no ampmeter: install it there, too.")
    raise UsageError(
        f"'{side}' is no suite's file, no checkout with {PROGRAM}, and no environment's folder or "
        "Python: --interleave measures two of these."
    )
