#!/usr/bin/env python3
"""Compare FP32 with mixed precision: arguments → plan → run → report."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # all else is imported when Ctrl-C is handled already
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from bench.cli.interruption import Interruption
    from bench.spec.request import Request


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0: done; 1: a trial or check failed, or nothing could be measured; 2: it cannot be done as
    asked; 130: stopped by Ctrl-C, 143 by SIGTERM; 141: its output is no longer read, as in
    ``run_bench.py list | head -3``.
    """
    try:
        _import_own_packages()
        from bench.cli.interruption import Interruption

        with Interruption() as signals:
            try:
                return _main(sys.argv[1:] if argv is None else argv, signals)
            except KeyboardInterrupt:
                signals.tell_stopped()
                return signals.exit_code
    except KeyboardInterrupt:  # while that was imported
        sys.stderr.write("run_bench: stopped.\n")
        return 130


def _main(argv: Sequence[str], signals: Interruption) -> int:
    from bench.cli.commands import optional_commands
    from bench.cli.parser import parse
    from bench.spec.errors import UsageError
    from bench.spec.request import Request
    from bench.spec.text import print_plain

    try:
        asked = parse(argv)
        if not isinstance(asked, Request):
            commands = {name: command.run for name, command in optional_commands().items()}
            commands |= {"report": report, "list": show_list}
            asked = commands[asked.command](asked)  # an exit code, or a request to measure
        code = run(asked, signals) if isinstance(asked, Request) else asked
        sys.stdout.flush()  # here a closed pipe can still be answered
        return code
    except UsageError as error:
        print_plain(f"run_bench: {error}", error=True)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more as it ends
        return 141
    except OSError as error:
        where = f"'{error.filename}' cannot be read or written: " if error.filename else ""
        print_plain(f"run_bench: {where}{error.strerror or error}.", error=True)
        return 2


def run(request: Request, signals: Interruption) -> int:
    """Measure, store and report."""
    import time
    from contextlib import closing

    begun_s = time.monotonic()  # --within counts what follows, imports too
    from bench.cli.display import show_plan
    from bench.launch import open_launcher
    from bench.results.store import stored_results
    from bench.run import folder as folders
    from bench.run import reporting
    from bench.run.execute import execute, remaining
    from bench.run.prepare import prepare
    from bench.spec.text import print_plain

    request, folder = folders.choose_folder(request)
    with closing(open_launcher(request)) as launcher:
        prepared = launcher.prepare_script(request) or prepare(request, launcher)
        if folder is not None:
            folders.require_same_question(folder, prepared)
        left = remaining(prepared.plan, folder)
        show_plan(prepared.plan, left, prepared.environment, prepared.warnings, request)
        if request.dry_run:
            return 0
        if folder is None:
            folder = folders.new_folder(prepared)
        signals.folder = folder
        succeeded = execute(prepared, folder, launcher, begun_s)
    if stored_results(folder).is_empty:  # --within ended it before the first trial
        print_plain(
            f"Nothing was measured in time. `python run_bench.py --resume {folder}` measures it."
        )
        return 1
    if reporting.WITHOUT_REPORT not in os.environ:
        contents = reporting.report([folder])
        reporting.show_next(folder, contents)
    return 0 if succeeded else 1


def report(options: argparse.Namespace) -> int:
    """Report on earlier runs."""
    from bench.spec.text import print_plain

    if options.json:
        from bench.report import document
        from bench.report.reading.load import load

        print_plain(document.dumps(document.report(load(options.runs))), wrap=False)
        return 0
    from bench.run.reporting import report as write

    write(options.runs, options.out, published=options.published, figures=options.figures)
    return 0


def show_list(options: argparse.Namespace) -> int:
    """Show the suites, precisions and techniques, the devices, or the models of a library."""
    from bench.cli import listing
    from bench.devices.processes import gpu_processes
    from bench.launch.local import LocalLauncher
    from bench.planning.suite_registry import matching
    from bench.spec.text import print_plain

    document: dict[str, Any]
    if options.gpus:
        seen, no_gpu = LocalLauncher().call("bench.devices.survey:look")
        users = gpu_processes()
        document = {"no_gpu": no_gpu or None, "devices": listing.devices(seen, users)}
        lines = listing.describe_devices(seen, no_gpu, users)
    elif options.pattern:
        lines = matching(options.pattern)
        document = {"models": lines}
    else:
        document = listing.registries()
        lines = listing.describe_registries()
    if options.json:
        from bench.report.document import dumps, head

        lines = [dumps(head("devices" if options.gpus else "list") | document)]
    print_plain("\n".join(lines), wrap=not options.json)
    return 0


def _import_own_packages() -> None:
    """Import this project's packages first.

    Others of the same name may lie on PYTHONPATH or beside a suite.
    """
    # pathlib takes time to import, in which Ctrl-C would not be answered.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import bench  # noqa: F401
    import suites  # noqa: F401

    del sys.path[0]


if __name__ == "__main__":
    sys.exit(main())
