"""The instrument's self-tests on this machine: run them, and show a table."""

from __future__ import annotations

from typing import Any

from bench.doctor.checks import CHECKS, Check
from bench.launch.local import LocalLauncher
from bench.measure.disturbance import CpuWatch
from bench.report.tables.table import table, words
from bench.results.records import Device, Environment
from bench.spec.errors import UsageError
from bench.spec.text import print_plain

COLUMNS = (
    words("where", lambda row: row[0]),
    words("check", lambda row: row[1]),
    words("expected", lambda row: row[2].expected),
    words("measured", lambda row: row[2].measured),
    words("result", lambda row: row[2].result),
    words("what a failure means", lambda row: row[2].meaning if row[2].passed is False else ""),
)

Row = tuple[str, str, Check]
"""Where a check ran, its name, and its outcome."""


def examine(gpus: tuple[str, ...] | None, launcher: LocalLauncher) -> bool:
    """Run every self-test, and print the table.

    Args:
        gpus: the devices to test; None is every GPU, or else the CPU.
        launcher: runs the probes.

    Returns:
        Whether none failed; what cannot be done here has not failed.

    Raises:
        UsageError: there is no such device.
    """
    environment: Environment = launcher.call("bench.devices.survey:survey", gpus)
    for note in environment.left_out:
        print_plain(f"Warning: {note}")
    rows: list[Row] = []
    watch = CpuWatch()
    for device in environment.devices:
        where = f"GPU {device.placement}" if device.is_gpu else device.placement
        for name in CHECKS:
            print_plain(f"{where}: {name}")
            rows.append((where, name, _run(name, device, launcher)))
    shown = table("", rows, COLUMNS)
    assert shown is not None  # there is a device
    print_plain(shown.text)
    if (load_pct := watch.foreign_load_pct()) is not None:
        print_plain(f"Other programs took {load_pct:.0f} % of the cores meanwhile.")
    failed = sum(check.passed is False for _, _, check in rows)
    print_plain(f"{failed} of {len(rows)} checks failed." if failed else "No check failed.")
    return not failed


def _run(name: str, device: Device, launcher: LocalLauncher) -> Check:
    """Run a check; one whose process fails has failed."""

    def probe(function: str, *arguments: object) -> Any:
        return launcher.call(f"bench.doctor.probes:{function}", device, *arguments)

    try:
        return CHECKS[name](probe, device)
    except UsageError as error:
        meaning = "what this tests is unknown here, and trials may fail in the same way"
        return Check(expected="runs to its end", measured=str(error), passed=False, meaning=meaning)
