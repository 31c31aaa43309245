#!/usr/bin/env python3
"""Compare FP32 with mixed precision: arguments → plan → run → report."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # all else is imported when Ctrl-C is handled already
    import argparse
    from collections.abc import Callable, Sequence

    from bench.spec.request import Request

STOPPED = "run_bench: stopped.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0: done; 1: a trial or check failed, or nothing could be measured; 2: it cannot be done as asked; 130: stopped by
    Ctrl-C, 143 by SIGTERM; 141: its output is no longer read, as in ``run_bench.py list | head -3``.
    """
    _open_streams()
    _import_own_packages()
    try:
        from bench.cli.interruption import Interruption

        with Interruption(STOPPED) as signals:
            try:
                return _main(argv)
            except KeyboardInterrupt:
                _unread()
                sys.stderr.write(STOPPED)
                return signals.exit_code
    except KeyboardInterrupt:  # while that was imported
        sys.stderr.write(STOPPED)
        return 130


def _main(argv: Sequence[str] | None) -> int:
    from bench.cli.commands import optional_commands
    from bench.cli.parser import parse
    from bench.spec.errors import UsageError
    from bench.spec.request import Request
    from bench.spec.text import print_plain

    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        commands: dict[str, Callable[..., int | Request]] = {"report": report, "list": show_list}
        commands |= {name: command.run for name, command in optional_commands().items()}
        asked = options if isinstance(options, Request) else commands[options.command](options)
        code = run(asked) if isinstance(asked, Request) else asked
        sys.stdout.flush()
        return code
    except UsageError as error:
        print_plain(f"run_bench: {error}", error=True)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _unread():
            return 141
        where = f"'{error.filename}' cannot be read or written: " if error.filename is not None else ""
        print_plain(f"run_bench: {where}{error.strerror or error}.", error=True)
        return 2


def run(request: Request) -> int:
    """Measure, store and report."""
    import time
    from contextlib import closing

    begun_s = time.monotonic()
    from bench.cli.display import show_plan
    from bench.cli.interruption import tell_stopped
    from bench.launch import open_launcher
    from bench.run import folder as folders
    from bench.run import reporting
    from bench.run.execute import execute, tell_what_remains
    from bench.run.prepare import prepare

    request, folder = folders.open_folder(request)
    try:
        with closing(open_launcher(request)) as launcher:
            prepared = launcher.prepare(request) or prepare(request, launcher)
            folders.check(prepared, folder)
            named = request.gpus is not None or request.on is not None
            show_plan(
                prepared.plan,
                prepared.environment,
                prepared.warnings,
                default_device=not named,
                quick=request.quick,
                within_s=request.within_s,
            )
            tell_what_remains(prepared, folder)
            if request.dry_run:
                return 0
            folder = folder or folders.new_folder(prepared)
            fine = execute(prepared, folder, launcher, begun_s)
        if reporting.WITHOUT_REPORT in os.environ:
            return 0 if fine else 1
        reporting.report([folder])
    except KeyboardInterrupt:
        tell_stopped(folder)
        raise
    reporting.show_next(folder)
    return 0 if fine else 1


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
    """Show the suites, precisions and techniques, or the devices."""
    from bench.cli import listing
    from bench.devices.processes import gpu_processes
    from bench.launch.local import LocalLauncher
    from bench.spec.text import print_plain

    if options.gpus:
        seen, no_gpu = LocalLauncher().call("bench.devices.survey:look")
        survey = seen, no_gpu, gpu_processes()
    if options.json:
        from bench.report.document import dumps

        document = listing.devices(*survey) if options.gpus else listing.registries(options.pattern)
        print(dumps(document))  # noqa: T201 - JSON has no control characters
    else:
        lines = listing.describe_devices(*survey) if options.gpus else listing.describe_registries(options.pattern)
        print_plain("\n".join(lines))
    return 0


def _open_streams() -> None:
    """Open the standard streams that were closed (``>&-``), so that none of a run's files takes one's place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _import_own_packages() -> None:
    """Import this project's packages before any of the same name on PYTHONPATH or beside a suite can be found."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib takes time
    import bench  # noqa: F401
    import suites  # noqa: F401

    del sys.path[0]


def _unread() -> bool:
    """Say whether nobody reads what is printed; if so, nothing more is."""
    import select

    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # it is no file, as in a notebook
        return False
    output = select.poll()
    output.register(descriptor, 0)  # POLLERR, which is always reported: the pipe has no reader
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)  # Python flushes once more as it ends
    return True


if __name__ == "__main__":
    sys.exit(main())
