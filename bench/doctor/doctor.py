"""The instrument's self-tests on this machine: run them, show a table, keep it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.doctor.checks import CHECKS, Check, broken
from bench.launch.local import LocalLauncher
from bench.measure.disturbance import CpuWatch
from bench.results.records import Device, Environment
from bench.spec.errors import UsageError
from bench.spec.text import plain, print_plain

LOG_WIDTH = 160
HEADERS = ("where", "check", "expected", "measured", "result", "what a failure means")

Rows = list[tuple[str, Check]]
"""Where each check ran, and the check."""


def examine(gpus: tuple[str, ...] | None, folder: Path | None, launcher: LocalLauncher) -> bool:
    """Run every self-test, print the table, and keep it.

    Args:
        gpus: the devices to test; None is every GPU, or else the CPU.
        folder: where to keep the table; None keeps none.
        launcher: runs the probes.

    Returns:
        Whether none failed; what cannot be done here has not failed.

    Raises:
        UsageError: there is no such device.
        OSError: the folder to keep the table in cannot be made.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    environment: Environment = launcher.call("bench.devices.survey:survey", gpus)
    for note in environment.left_out:
        print_plain(f"Warning: {note}")
    start = time.monotonic()
    planned = [(device, name) for device in environment.devices for name in CHECKS]
    rows: Rows = []
    for number, (device, name) in enumerate(planned, start=1):
        where = "cpu" if device.kind == "cpu" else f"GPU {device.placement}"
        print_plain(f"[{number}/{len(planned)}] {where}: {name}")
        rows.append((where, _run(name, device, launcher)))
    _show(rows)
    if folder is not None:
        _keep(folder, rows, environment)
    failed = sum(check.passed is False for _, check in rows)
    result = f"{failed} of {len(rows)} checks failed" if failed else "No check failed"
    print_plain(f"{result}. They took {time.monotonic() - start:.0f} s.")
    return not failed


def _run(name: str, device: Device, launcher: LocalLauncher) -> Check:
    """Run a check and print its time and the load of other programs; one whose process fails has failed."""

    def probe(function: str, *arguments: object) -> Any:
        return launcher.call(f"bench.doctor.probes:{function}", device, *arguments)

    start, watch = time.monotonic(), CpuWatch()
    try:
        check = CHECKS[name](probe, device)
    except UsageError as error:
        check = broken(name, str(error))
    took_s = time.monotonic() - start
    load_pct = watch.foreign_load_pct() if took_s >= 1 else None  # the system counts in ticks of 10 ms
    others = "" if load_pct is None else f"; other programs took {load_pct:.0f} % of the cores"
    print_plain(f"  took {took_s:.1f} s{others}")
    return check


def _show(rows: Rows) -> None:
    """Print the table, in which only failures are explained; the file explains every check."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*HEADERS, box=SIMPLE)
    styles = {"pass": "green", "FAIL": "bold red", "not possible": "dim"}
    for where, check in rows:
        meaning = check.meaning if check.passed is False else ""
        cells = where, check.name, check.expected, check.measured, check.result, meaning
        table.add_row(*(Text(plain(cell), style=styles.get(cell, ""), overflow="fold") for cell in cells))
    width = None if sys.stdout.isatty() else LOG_WIDTH  # a log has no width of its own
    Console(highlight=False, width=width).print(table)


def _keep(folder: Path, rows: Rows, environment: Environment) -> None:
    """Write doctor.json, with the machine that it is of."""
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": environment.torch,
        "driver": environment.driver,
        "devices": {device.placement: device.name for device in environment.devices},
        "checks": [{"where": where, **asdict(check), "result": check.result} for where, check in rows],
    }
    (folder / "doctor.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
