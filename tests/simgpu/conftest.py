"""Machines with simulated GPUs, on which the command line runs as a user would run it."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import TINY
from tests.processes import running
from tests.rows import rows, trial_rows
from tests.simgpu.build import UnavailableError, built
from tests.simgpu.machine import MODELS, Machine, environment, settings
from tests.simgpu.prefork import ROOT, Prefork

HERE = Path(__file__).parent
LIMIT_S = 300
"""A command that takes longer hangs."""
RUNS = {"hot", "pair", "single", "runs"}
"""Fixtures that make a run which several tests look at; these stay in one process of
pytest-xdist."""


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark every test in this folder, and those that look at the same run."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.simgpu)
            for name in RUNS.intersection(item.fixturenames):
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(scope="session", autouse=True)
def libraries() -> None:
    """The built libraries; without them, every test here is skipped with the reason."""
    try:
        built()
    except UnavailableError as reason:
        pytest.skip(str(reason))


class Host:
    """A folder in which a user works, on a machine with simulated GPUs of its own."""

    def __init__(self, folder: Path, variables: dict[str, str], prefork: Prefork) -> None:
        self.folder = folder
        self.prefork = prefork
        self.sessions: set[int] = set()
        """Of all its runs; whatever they start belongs to them."""
        self.machine = Machine(folder / "machine")
        self.variables = {"TMPDIR": str(folder / "tmp"), **variables}
        (folder / "tmp").mkdir()
        (folder / "tiny.py").write_text(TINY)

    def run(self, line: str, code: int = 0) -> str:
        """Run a command line, as a fork of what has been imported, to an exit code.

        Returns what it printed.
        """
        words = shlex.split(line)
        variables = self.environment()
        session, ended, printed = self.prefork.run(words, self.folder, variables, LIMIT_S)
        self.sessions.add(session)
        assert ended == code, printed
        return printed

    def run_anew(self, line: str) -> None:
        """Run a command line to its end as a user does, in a new process."""
        command = [sys.executable, str(ROOT / "run_bench.py"), *shlex.split(line)]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.sessions.add(process.pid)
        try:
            printed, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, printed

    def environment(self) -> dict[str, str]:
        """Return what a process on the machine has."""
        return environment(SIM_SHM=self.machine.path, **self.variables)

    def rows(self, table: str = "", run: str = "out") -> list[dict[str, str]]:
        """Return a table of a run; without its name the rows of all phases."""
        if table:
            return rows(self.folder / run, f"{table}.csv")
        return trial_rows(self.folder / run)

    def recorded_environment(self) -> dict[str, Any]:
        """Return what the run ``out`` tells about the machine."""
        written = (self.folder / "out" / "run.json").read_text()
        return json.loads(written)["environment"]

    def left_behind(self) -> list[str]:
        """Return what is left on the machine: processes, contexts on GPUs, temporary files."""
        left = [f"context of process {pid}" for pid in self.machine.computing()]
        processes = running(self.sessions)
        for process in psutil.process_iter(["cmdline", "environ"]):
            variables = process.info["environ"] or {}
            if variables.get("SIM_SHM") == str(self.machine.path):  # also in another session
                processes.append(process)
        for process in processes:
            left.append(f"process {process.pid}: {process.info['cmdline']}")
        for path in (self.folder / "tmp").rglob("*"):
            if not path.name.startswith("torchinductor_"):  # torch's own, for what it may compile
                left.append(str(path))
        return left


@pytest.fixture(scope="session")
def prefork(libraries: None) -> Iterator[Prefork]:
    """The process of which runs are forks."""
    parent = Prefork()
    yield parent
    parent.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, prefork: Prefork) -> Callable[..., Host]:
    """Make machines: of a model of ``MODELS``, with a number of GPUs, and more variables."""

    def make(model: str = "A100", count: int = 1, **variables: str) -> Host:
        folder = tmp_path_factory.mktemp(model)
        given = settings(MODELS[model], count) | variables
        return Host(folder, given, prefork)

    return make
