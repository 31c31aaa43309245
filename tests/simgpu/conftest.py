"""Machines with simulated GPUs, on which the command line runs as a user would run it."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.simgpu.build import UnavailableError, built
from tests.simgpu.machine import MODELS, Machine, environment, settings

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LIMIT_S = 300
"""A command that takes longer hangs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.simgpu)


@pytest.fixture(scope="session", autouse=True)
def libraries() -> Path:
    """The built libraries; without them, every test here is skipped with the reason."""
    try:
        return built()
    except UnavailableError as reason:
        pytest.skip(str(reason))


class Host:
    """A folder in which a user works, on a machine with simulated GPUs of its own."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        handle, path = tempfile.mkstemp(prefix="simgpu.", dir="/dev/shm")
        os.close(handle)
        self.machine = Machine(path)
        self.variables = {"TMPDIR": str(folder / "tmp"), **variables}
        (folder / "tmp").mkdir()
        (folder / "tiny.py").write_text(TINY)

    def start(self, *words: object, **variables: object) -> subprocess.Popen[str]:
        """Start the command line."""
        given = environment(SIM_SHM=self.machine.path, **{**self.variables, **variables})
        command = [sys.executable, str(ROOT / "run_bench.py"), *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=given, start_new_session=True, **pipes)

    def run(self, *words: object, **variables: object) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        process = self.start(*words, **variables)
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    def rows(self, run: str, name: str = "trials") -> list[dict[str, str]]:
        """Return a table of a run."""
        with (self.folder / run / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def statuses(self, run: str) -> dict[tuple[str, str], str]:
        """Return the statuses of a run, by phase and precision."""
        return {(row["phase"], row["precision"]): row["status"] for row in self.rows(run)}

    def left_behind(self) -> list[str]:
        """Return what is left on the machine: processes, contexts on GPUs, temporary files."""
        here = f"SIM_SHM={self.machine.path}\0".encode()
        processes = [one.parent for one in Path("/proc").glob("[0-9]*/environ") if here in _read(one)]
        commands = [f"process {one.name}: {_read(one / 'cmdline').decode()}" for one in processes]
        contexts = [f"context of process {pid}" for pid in self.machine.computing()]
        # torch itself makes an empty folder for what it may compile.
        files = [str(one) for one in (self.folder / "tmp").rglob("*") if not one.name.startswith("torchinductor_")]
        return [*commands, *contexts, *files]

    def close(self) -> None:
        """Take the machine down."""
        self.machine.path.unlink()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile, or is not ours
        return b""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, libraries: Path) -> Iterator[Callable[..., Host]]:
    """Make machines: of a model of ``MODELS``, with a number of GPUs, and more variables."""
    made: list[Host] = []

    def make(model: str = "A100", count: int = 1, **variables: str) -> Host:
        folder = tmp_path_factory.mktemp(model)
        made.append(Host(folder, {**settings(MODELS[model], count), **variables}))
        return made[-1]

    yield make
    for one in made:
        one.close()
