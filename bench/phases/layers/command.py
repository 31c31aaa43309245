"""The command ``layers``: a run whose only phase is the search for modules that must stay in fp32."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cli.commands import Command
from bench.cli.parser import parse_run
from bench.spec.request import Request


def start(words: Sequence[str]) -> Request:
    """Return the request of the search.

    Raises:
        UsageError: an option is invalid, or contradicts another one.
    """
    return parse_run(["layers", *words], ["layers"])


COMMAND = Command(
    name="layers",
    synopsis="layers --suite NAMES",
    help="which modules must stay in fp32; --precisions amp-bf16",
    start=start,
)
