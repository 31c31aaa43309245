"""Measure two checkouts in one run, by turns, each with its code in fresh processes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.stats import student_interval
from perf.outcome import Outcome

HERE = Path(__file__).resolve().parents[1]


def add_option(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add ``--before CHECKOUT``."""
    words = "another checkout, measured by turns with this checkout"
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", required=required, help=words)


def checkouts(before: Path | None) -> dict[str, Path]:
    """Return the folders of the checkouts to measure, by name: ``here``, and ``before`` if it is given."""
    return {"here": HERE} | ({"before": before.resolve()} if before else {})


def turns(sides: dict[str, Path], rounds: int) -> Iterator[tuple[int, str, Path]]:
    """Yield the number of the round, the name and the folder of each checkout, each first in every other round."""
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            yield number, name, sides[name]


def call(checkout: Path, code: str, argument: Any) -> Any:
    """Return the JSON that code prints last in a fresh process of a checkout; ``sys.argv[1]`` is the argument as JSON.

    Raises:
        subprocess.CalledProcessError: the code failed; its message is on stderr.
    """
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", code, json.dumps(argument)]
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.rstrip().rpartition("\n")[2])


def compared(
    name: str, here: Sequence[float], before: Sequence[float] = (), unit: str = "×", **target: Any
) -> list[Outcome]:
    """Return the rows of a figure here, before, and of their ratio, with Student's intervals over the rounds.

    Args:
        name: of the figure.
        here: logarithms of the figure, one for each round.
        before: the other checkout's logarithms in the same rounds; empty without another checkout.
        unit: of the figures.
        target: ``most``, ``least`` and ``by_interval`` of the ratio.
    """
    rows = [Outcome(name=name, interval=student_interval(here).exp(), unit=unit)]
    if before:
        over = student_interval([after - earlier for after, earlier in zip(here, before, strict=True)]).exp()
        rows.append(Outcome(name=f"{name}, before", interval=student_interval(before).exp(), unit=unit))
        rows.append(Outcome(name=f"{name}, here ÷ before", interval=over, unit="×", **target))
    return rows
