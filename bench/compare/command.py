"""The command ``compare``: its options, and its run."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from bench.cli.commands import Command
from bench.spec.errors import UsageError
from bench.spec.options import share, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two sides, whether they are measured first, and the form of the output."""
    parser.description = (
        "Compare runs with earlier ones of the same questions. Exit codes: 0 done; 1 --fail-over "
        "found a regression; 2 it cannot be done, or --fail-over could judge nothing."
    )
    for name in ("old", "new"):
        parser.add_argument(
            name,
            type=Path,
            metavar=name.upper(),
            help=f"folder of the {name} run, or of {name} runs",
        )
    parser.add_argument(
        "--fail-over",
        metavar="SHARE",
        type=partial(share, "--fail-over"),
        help="exit with 1 where a step's time, memory or energy is shown to have grown by more, "
        "such as 3%%; also where accuracy is shown to be lost, or something no longer runs",
    )
    parser.add_argument(
        "--interleave",
        type=Path,
        metavar="DIR",
        help="measure both by turns first, and keep the runs in DIR, a new one for other code: OLD "
        "and NEW are then suites' files, checkouts of ampmeter or environments (folder or "
        "Python), and the runs' options follow --",
    )
    parser.add_argument(
        "--pairs",
        type=partial(whole(1), "--pairs"),
        default=3,
        help="of runs that --interleave measures (default: 3)",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(options: argparse.Namespace) -> int:
    """Compare two sides, or measure both by turns first.

    Returns:
        1 if ``--fail-over`` found a regression, else 0.

    Raises:
        UsageError: the two cannot be compared or measured, or ``--fail-over`` could judge nothing.
    """
    if options.words and options.interleave is None:
        raise UsageError("Options of runs follow '--' only with --interleave DIR, which measures.")
    # Here, so that the command line is parsed without pandas.
    from bench.compare.comparison import NEEDS, compare
    from bench.compare.document import document
    from bench.compare.interleave import interleave
    from bench.compare.page import show_comparison
    from bench.report.document import dumps

    old, new = options.old, options.new
    by_turns = options.interleave is not None
    if by_turns:
        old, new = interleave(old, new, options.words, options.interleave, options.pairs)
    comparison = compare(old, new, options.fail_over, by_turns=by_turns)
    if options.json:
        print(dumps(document(comparison)))  # noqa: T201 - JSON has no control characters
    else:
        show_comparison(comparison)
    # In a pipeline a check that could find nothing must not pass.
    if options.fail_over is not None and not (comparison.failures or comparison.is_judged):
        raise UsageError(f"--fail-over could judge nothing: {NEEDS}")
    return 1 if comparison.failures else 0


COMMAND = Command(
    name="compare",
    synopsis="compare OLD NEW",
    help="runs of the same questions: what improved, what regressed",
    add_arguments=add_arguments,
    run=run,
    takes_words=True,
)
