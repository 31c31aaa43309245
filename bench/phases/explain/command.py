"""The command ``explain``: measures why each precision gains or does not, or says it of earlier runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cli.commands import Command, RunCommand
from bench.cli.parser import parse_run
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE
from bench.spec.request import Request

EXAMPLES = """
examples:
  run_bench.py explain --suite resnet50 --gpus 0   measure, then say why each precision gains, or does not
  run_bench.py explain --suite mlp --quick         the same in one process
  run_bench.py explain results/NAME                say it again of a run that was explained
"""


def check(given: Mapping[str, Any]) -> None:
    """Refuse a precision alone.

    Raises:
        UsageError: the baseline, or a precision to compare it with, is not among those that are named.
    """
    named = given.get("precisions", (BASELINE, "amp-bf16"))
    if BASELINE not in named or len(named) == 1:
        raise UsageError(f"explain compares {BASELINE} with another precision: name both in --precisions.")


MEASURED = RunCommand(
    name="explain",
    description="Why does mixed precision pay here, or not: measures it, then prints where a step's time goes in each "
    "precision, and what holds it back.",
    examples=EXAMPLES,
    phases=("explain",),
    check=check,
)


def start(words: Sequence[str]) -> Request | None:
    """Return the request of a run that is explained; None where runs are named.

    Raises:
        UsageError: an option is invalid, or contradicts another one.
    """
    if "--try" in words:
        raise UsageError("There is no --try: a run's last line is the command that measures a technique.")
    return parse_run(words, MEASURED) if not words or words[0].startswith("-") else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs that were explained."""
    parser.description = (
        "Say why each precision of runs gains, or does not. With the options of a run, measure it first: "
        "run_bench.py explain --help."
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run with the phase explain, or of such runs"
    )


def run(options: argparse.Namespace) -> int:
    """Say why each precision of earlier runs gains, or does not."""
    from bench.phases.explain.report import explain
    from bench.report.render import in_words
    from bench.spec.text import print_plain

    print_plain(in_words(explain(list(dict.fromkeys(options.runs)))))
    return 0


COMMAND = Command(
    name="explain",
    synopsis="explain --suite NAMES",
    help="why mixed precision pays here, or does not; also: explain RUN",
    start=start,
    add_arguments=add_arguments,
    run=run,
)
