"""The command ``explain``: measures why a precision gains or does not, or says it again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.cli.commands import Command
from bench.cli.parser import parse_run
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE
from bench.spec.request import Request

PHASES = ("explain",)


def start(words: Sequence[str]) -> Request | None:
    """Return the request of a run that is explained; None where runs are named, or help is wanted.

    Raises:
        UsageError: an option is invalid, or contradicts another one, or there is nothing to
            compare.
    """
    if words and (words[0] in ("-h", "--help") or not words[0].startswith("-")):
        return None
    request = parse_run(["explain", *words], PHASES)
    named = request.precisions
    if named is not None and (BASELINE not in named or len(named) == 1):
        raise UsageError(
            f"explain compares {BASELINE} with another precision: name both in --precisions."
        )
    return request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs that were explained."""
    parser.description = (
        "Say why each precision of runs gains, or does not. With the options of a run "
        "(run_bench.py --help), measure it first, as in run_bench.py explain --suite resnet50 "
        "--gpus 0."
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folder of a run with the phase explain, or of such runs",
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
