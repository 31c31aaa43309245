"""Commands of optional folders: how one is declared, and how it is found."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.spec.optional import definitions
from bench.spec.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What an optional folder of bench/ defines as ``COMMAND`` in its command.py.

    That module imports nothing heavy.
    """

    name: str
    synopsis: str
    """The name and the words that it takes, for the list of commands."""
    help: str
    """What it does, for the list of commands and for its own help: a clause."""
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    """Adds its options to its parser."""
    run: Callable[[argparse.Namespace], int | Request] = lambda _options: 0
    """Runs it and returns the exit code; or a request, which is measured like that of any run.

    The options have ``argv``, its whole command line, and ``words``. A UsageError refuses them.
    """
    start: Callable[[Sequence[str]], Request | None] = lambda _words: None
    """Returns the request where its words are the options of a run, and None where they are its
    own."""
    takes_words: bool = False
    """Whether the words after ``--`` are no options of its own, but go to it as ``words``."""


def optional_commands() -> dict[str, Command]:
    """Return the commands of the optional folders that are here, by their names."""
    return {command.name: command for command in definitions("command", "COMMAND")}
