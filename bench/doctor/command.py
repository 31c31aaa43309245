"""The command ``doctor``: its options, and its run."""

from __future__ import annotations

import argparse

from bench.cli.commands import Command
from bench.cli.parser import add_option, run_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the devices."""
    add_option(parser, "gpus", run_options()["gpus"])


def run(options: argparse.Namespace) -> int:
    """Test the instrument; return 1 if a check failed."""
    from bench.doctor.doctor import examine
    from bench.launch import require_one_task
    from bench.launch.local import LocalLauncher

    require_one_task()
    return 0 if examine(options.gpus, LocalLauncher()) else 1


COMMAND = Command(
    name="doctor",
    synopsis="doctor [--gpus cpu]",
    help="test the instrument itself on this machine",
    add_arguments=add_arguments,
    run=run,
)
