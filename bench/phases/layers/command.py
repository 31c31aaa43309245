"""The command ``layers``: a run whose only phase is the search for modules to keep in fp32."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.cli.commands import Command
from bench.cli.parser import parse_run
from bench.spec.request import Request


def start(words: Sequence[str]) -> Request | None:
    """Return the request of the search; None where help is wanted.

    Raises:
        UsageError: an option is invalid, or contradicts another one.
    """
    if "-h" in words or "--help" in words:
        return None
    return parse_run(["layers", *words], ["layers"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say in the help what the search takes: its options are a run's."""
    parser.usage = (
        "run_bench.py layers --suite NAMES [--precisions amp-bf16,amp-fp16] [--epochs N] [options "
        "of a run]"
    )
    parser.description = (
        "Find the modules that a precision must keep in fp32, or say that no small set of them is "
        "to blame. --epochs N trains in fp32 first, and --weights PATH loads weights, because "
        "fragility may appear only in training. The other options are those of a run "
        "(run_bench.py --help)."
    )


COMMAND = Command(
    name="layers",
    synopsis="layers --suite NAMES",
    help="which modules must stay in fp32; --precisions amp-bf16",
    start=start,
    add_arguments=add_arguments,
)
