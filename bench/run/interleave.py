"""Two sides measured by turns in one session: suites' files, checkouts of ampmeter, or environments."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.spec.errors import UsageError
from bench.spec.text import print_plain

PROGRAM = "run_bench.py"
SIDES = ("old", "new")


def interleave(old: Path, new: Path, words: Sequence[str], out: Path, pairs: int) -> tuple[Path, Path]:
    """Run each side once in each pair, OLD first in one pair and NEW first in the next.

    Runs that ``out`` has already are completed if need be, so a later call with more pairs adds to them. What the runs
    print goes to stderr.

    Args:
        old: a suite's file, the folder of a checkout, or the Python or the folder of an environment.
        new: likewise.
        words: options of each run.
        out: folder that gets ``old/1``, ``new/1``, ``new/2``, ``old/2`` and so on.
        pairs: their number.

    Returns:
        The folders of the runs of both sides.

    Raises:
        UsageError: a side is none of these, or one of its runs was refused.
    """
    if words and not words[0].startswith("-"):
        raise UsageError(f"--interleave measures suites: after -- come options of runs, not the command '{words[0]}'.")
    commands = {side: [*_command(path), *words] for side, path in zip(SIDES, (old, new), strict=True)}
    for pair in range(pairs):
        for side in SIDES if pair % 2 == 0 else SIDES[::-1]:
            command = [*commands[side], "--resume", str(out / side / str(pair + 1))]
            print_plain(f"Pair {pair + 1} of {pairs}, {side.upper()}: {shlex.join(command)}", error=True)
            code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
            if code < 0 or code > 1:  # 1: something was not measured, which the comparison shows
                raise UsageError(
                    f"The run of {side.upper()} in pair {pair + 1} ended with exit code {code}, see above."
                )
    return out / "old", out / "new"


def _command(side: Path) -> list[str]:
    """Return how a side is run."""
    program = str(Path(__file__).resolve().parents[2] / PROGRAM)
    if side.suffix == ".py" and side.is_file():
        return [sys.executable, program, "--suite", str(side)]
    if (checkout := side / PROGRAM).is_file():
        return [sys.executable, str(checkout)]
    for python in (side / "bin" / "python", side):
        if python.is_file():
            return [str(python), program]
    raise UsageError(
        f"'{side}' is no suite's file, no checkout with {PROGRAM}, and no environment's folder or Python: "
        "--interleave measures two of these."
    )
