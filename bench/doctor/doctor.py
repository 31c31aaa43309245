"""The instrument's self-tests on this machine: run them, show a table, keep it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing import active_children
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.parser import Command
from bench.doctor import estimator, judge
from bench.doctor.check import Check
from bench.launch.local import LocalLauncher
from bench.measure.sampler import Sampler
from bench.results.records import Device, Environment
from bench.run.session import SAMPLE_PERIOD_S
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from bench.stats import process_interval

if TYPE_CHECKING:
    from rich.table import Table

PROCESSES = 10
"""Fresh processes in which a step is timed against itself, as many as ``--rigorous`` takes: processes differ by some
tenths of a per cent (where their memory lies, for one), which three of them cannot tell from 1 %."""
HELD_BYTES, TAKEN_BYTES = 256 * 2**20, 2**30
ARMS = 200
LOG_WIDTH = 160
NO_NVML = "there is no NVML here"
HEADERS = ("where", "check", "expected", "measured", "result", "what a failure means")

Rows = list[tuple[str, Check]]
Checks = Callable[[LocalLauncher, Device], Iterator[Check]]


def examine(command: Command, launcher: LocalLauncher) -> bool:
    """Run every self-test on the command's devices, print the table, and keep it if asked to.

    Returns:
        Whether none failed; what cannot be done here has not failed.

    Raises:
        UsageError: there is no such device.
        OSError: the folder to keep the table in cannot be made.
    """
    if command.out is not None:
        command.out.mkdir(parents=True, exist_ok=True)
    environment: Environment = launcher.call("bench.devices.survey:survey", command.gpus)
    rows: Rows = [("any", _statistics())]
    for device in environment.devices:
        where = "cpu" if device.kind == "cpu" else f"GPU {device.placement}"
        for name, checks in CHECKS.items():
            print(f"{where}: {name}", flush=True)
            rows += [(where, check) for check in _tried(name, checks, launcher, device)]
    _show(rows)
    if command.out is not None:
        _keep(command.out, rows, environment)
    failed = sum(check.passed is False for _, check in rows)
    print(f"{failed} of {len(rows)} checks failed." if failed else "No check failed.")
    return not failed


def _statistics() -> Check:
    print(f"any: {ARMS} simulated arms", flush=True)
    return judge.estimator(*estimator.bias_and_coverage(ARMS), ARMS)


def _tried(name: str, checks: Checks, launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    """Run a group of checks; if one of its processes fails, that is the last row of the group."""
    try:
        yield from checks(launcher, device)
    except UsageError as error:
        yield judge.broken(name, str(error))


def _identity(launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    found = launcher.call("bench.doctor.gpu:identify", device) if device.is_gpu else None
    yield judge.identity(found, NO_NVML if device.kind == "cpu" else "NVML does not start, or does not know this GPU")


def _arithmetic(launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    unsupported = device.unsupported or {}
    target = "bench.doctor.arithmetic:matmul_error"
    yield judge.fp32(launcher.call(target, device, "fp32"))
    why = unsupported.get("tf32", "")
    yield judge.tf32(None if why else launcher.call(target, device, "tf32"), why)


def _autocast(launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    unsupported = device.unsupported or {}
    mixed = next((name for name in ("amp-bf16", "amp-fp16") if name not in unsupported), "amp-bf16")
    plain, types = (launcher.call("bench.doctor.arithmetic:compute_dtypes", device, name) for name in ("fp32", mixed))
    yield judge.reaches_model(PRECISIONS[mixed].autocast or "", plain, types)


def _timing(launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    on_gpu = device.is_gpu
    yield judge.clock(launcher.call("bench.doctor.timing:empty_block", device), on_gpu=on_gpu)
    yield judge.known_ratio(*launcher.call("bench.doctor.timing:known_ratio", device))


def _itself(launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    target = "bench.doctor.timing:against_itself"
    centers = [launcher.call(target, device, process) for process in range(PROCESSES)]
    same, added = (process_interval(values) for values in zip(*centers, strict=True))
    yield judge.null(same)
    yield judge.one_per_cent(added)


def _memory(launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    small, large = (launcher.call("bench.doctor.memory:peak", device, held) for held in (0, HELD_BYTES))
    kind = "allocated" if device.is_gpu else "resident"
    why = "this system does not let the peak of a process be read and reset"
    yield judge.raised(
        f"{kind} memory", HELD_BYTES, small.headline_bytes, large.headline_bytes, tolerance=0.02, why=why
    )
    if device.is_gpu:
        yield judge.raised(
            "the driver's memory",
            HELD_BYTES,
            small.driver_used_bytes,
            large.driver_used_bytes,
            tolerance=0.1,
            why="the driver does not tell how much memory is used",
        )
    fits = launcher.call("bench.doctor.memory:take", device, TAKEN_BYTES)
    again = launcher.call("bench.doctor.memory:peak", device, 0).headline_bytes if fits else None
    yield judge.isolated(small.headline_bytes, again, why if fits else "less than 2 GiB of memory is free")


def _energy(launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    found = launcher.call("bench.doctor.gpu:energy_windows", device) if device.energy else None
    yield judge.energy(found, NO_NVML if device.kind == "cpu" else "this GPU tells neither energy nor power")


def _sampler(launcher: LocalLauncher, device: Device) -> Iterator[Check]:
    if device.uuid is None:
        yield judge.sampler(None, 0, NO_NVML)
        return
    with Sampler(((device.placement, device.uuid),), SAMPLE_PERIOD_S) as sampler:
        # A worker may not start processes of its own, so it is told which one to stop and to let go on.
        pid = next((child.pid for child in active_children() if child.name == "ampmeter-sampler"), None)
        found = launcher.call("bench.doctor.timing:beside_sampler", device, pid) if pid else None
        samples = len(sampler.stop())
    yield judge.sampler(found, samples, "the sampling process ended at once")


CHECKS: dict[str, Checks] = {
    "which GPU this is": _identity,
    "FP32 and TF32": _arithmetic,
    "mixed precision": _autocast,
    "clock and a known ratio": _timing,
    f"a step against itself, in {PROCESSES} processes": _itself,
    "memory": _memory,
    "energy": _energy,
    "the sampler's effect": _sampler,
}


def _show(rows: Rows) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else LOG_WIDTH  # a log has no width of its own
    Console(highlight=False, width=width).print(_table(rows))


def _table(rows: Rows) -> Table:
    """Return the table for a terminal, where only failures are explained; what is kept explains every check."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(*HEADERS, box=SIMPLE)
    styles = {"pass": "green", "FAIL": "bold red", "not possible": "dim"}
    for where, check in rows:
        cells = _cells(where, check)
        shown = cells if check.passed is False else (*cells[:-1], "")
        table.add_row(*(Text(cell, style=styles.get(cell, ""), overflow="fold") for cell in shown))
    return table


def _cells(where: str, check: Check) -> tuple[str, ...]:
    return where, check.name, check.expected, check.measured, check.result, check.meaning


def _keep(folder: Path, rows: Rows, environment: Environment) -> None:
    """Write doctor.json and doctor.md, with the machine that they are of."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    names = {device.placement: device.name for device in environment.devices}
    record = {
        "date": date,
        "torch": environment.torch,
        "driver": environment.driver,
        "devices": names,
        "checks": [{"where": where, **asdict(check), "result": check.result} for where, check in rows],
    }
    (folder / "doctor.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    machine = "; ".join(f"{placement}: {name}" for placement, name in names.items())
    table = [HEADERS, tuple("---" for _ in HEADERS), *(_cells(where, check) for where, check in rows)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table]
    about = f"{machine}. torch {environment.torch}, driver {environment.driver or 'none'}. {date}."
    (folder / "doctor.md").write_text("\n".join(["# The instrument's self-tests", "", about, "", *lines]) + "\n")
