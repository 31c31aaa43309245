"""Machines with simulated GPUs, on which the command line runs as a user would run it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import TINY
from tests.rows import rows, trial_rows
from tests.simgpu.build import UnavailableError, built
from tests.simgpu.machine import MODELS, Machine, environment, settings
from tests.simgpu.prefork import ROOT, Prefork

HERE = Path(__file__).parent
LIMIT_S = 300
"""A command that takes longer hangs."""


RUNS = {"pair", "single", "broken", "runs"}
"""Fixtures that make a run which several tests look at; these stay in one process of
pytest-xdist."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder, and those that look at the same run."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.simgpu)
            for name in RUNS.intersection(item.fixturenames):
                given = item.callspec.params.get(name, "") if hasattr(item, "callspec") else ""
                item.add_marker(pytest.mark.xdist_group(f"{name}{given}"))


@pytest.fixture(scope="session", autouse=True)
def libraries() -> Path:
    """The built libraries; without them, every test here is skipped with the reason."""
    try:
        return built()
    except UnavailableError as reason:
        pytest.skip(str(reason))


class Host:
    """A folder in which a user works, on a machine with simulated GPUs of its own."""

    def __init__(self, folder: Path, variables: dict[str, str], prefork: Prefork) -> None:
        self.folder, self.prefork = folder, prefork
        self.sessions: set[int] = set()
        """Of all its runs; whatever they start belongs to them."""
        handle, path = tempfile.mkstemp(prefix="simgpu.", dir="/dev/shm")
        os.close(handle)
        self.machine = Machine(path)
        self.variables = {"TMPDIR": str(folder / "tmp"), **variables}
        (folder / "tmp").mkdir()
        (folder / "tiny.py").write_text(TINY)

    def run(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end and exit code, as a fork of what has been imported."""
        session, done = self.prefork.run(
            [str(word) for word in words], self.folder, self._environment(), LIMIT_S
        )
        self.sessions.add(session)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def run_anew(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end as a user does, in a new process."""
        command = [sys.executable, str(ROOT / "run_bench.py"), *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            command, cwd=self.folder, env=self._environment(), start_new_session=True, **pipes
        )
        self.sessions.add(process.pid)
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, out + errors
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    def _environment(self) -> dict[str, str]:
        return environment(SIM_SHM=self.machine.path, **self.variables)

    def rows(self, run: str, name: str = "") -> list[dict[str, str]]:
        """Return a table of a run; without a name the rows of all phases."""
        folder = self.folder / run
        return rows(folder, f"{name}.csv") if name else trial_rows(folder)

    def statuses(self, run: str) -> dict[tuple[str, str], str]:
        """Return the statuses of a run, by phase and precision."""
        return {(row["phase"], row["precision"]): row["status"] for row in self.rows(run)}

    def left_behind(self) -> list[str]:
        """Return what is left on the machine: processes, contexts on GPUs, temporary files."""
        here = f"SIM_SHM={self.machine.path}\0".encode()
        commands = [
            f"process {process.pid}: {process.info['cmdline']}"
            for process in psutil.process_iter(["cmdline"])
            if process.info["cmdline"]  # else it has ended
            and (
                _session(process.pid) in self.sessions
                or here in _read(Path(f"/proc/{process.pid}/environ"))
            )
        ]
        contexts = [f"context of process {pid}" for pid in self.machine.computing()]
        # torch itself makes an empty folder for what it may compile.
        files = [
            str(path)
            for path in (self.folder / "tmp").rglob("*")
            if not path.name.startswith("torchinductor_")
        ]
        return [*commands, *contexts, *files]

    def close(self) -> None:
        """Take the machine down."""
        self.machine.path.unlink()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile, or is not ours
        return b""


@pytest.fixture(scope="session")
def prefork(libraries: Path) -> Iterator[Prefork]:
    """The process of which runs are forks."""
    parent = Prefork()
    yield parent
    parent.close()


@pytest.fixture(scope="module")
def host(
    tmp_path_factory: pytest.TempPathFactory, prefork: Prefork
) -> Iterator[Callable[..., Host]]:
    """Make machines: of a model of ``MODELS``, with a number of GPUs, and more variables."""
    machines: list[Host] = []

    def make(model: str = "A100", count: int = 1, **variables: str) -> Host:
        folder = tmp_path_factory.mktemp(model)
        machines.append(Host(folder, {**settings(MODELS[model], count), **variables}, prefork))
        return machines[-1]

    yield make
    for machine in machines:
        machine.close()
