"""Parts that several tests share: a tiny suite of a user's own, trials made of it, and the command
line.
"""

import gc
import os
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TextIO
from unittest import mock

import pytest

import run_bench
from bench.results.records import Device, Environment
from bench.spec.data_source import DataSource
from bench.spec.placement import Placement
from bench.spec.protocol import Protocol
from bench.spec.trial import Cell, SuiteRef, Trial
from tests.arms import arms

# Threads that wait for each other on busy cores make a step of a tiny model a hundred times as
# slow. Read by torch when it is imported, here and in the processes that the tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TINY = """
from bench.spec import Data, Suite


def suite(width: int = 16, lr: float = 0.01, fail: str = "") -> Suite:
    def model(data):
        from torch import nn

        if fail == "raise":
            raise RuntimeError("the model broke")
        if fail == "hang":
            import time
            time.sleep(3600)
        if fail == "die":
            import os
            os._exit(7)
        if fail == "oom":
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"
            )
        head = nn.Linear(width, data.classes)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, width), nn.ReLU(), head)

    def optimizer(parameters):
        from torch import optim

        return optim.SGD(parameters, lr=lr)

    return Suite(
        name="tiny",
        title="two layers",
        data=Data(input_shape=(3, 8, 8), classes=2, steps_per_epoch=3),
        model=model,
        optimizer=optimizer,
        batch_size=4,
        batch_sizes=(4, 8),
    )
"""


def call(
    *words: object, cwd: Path, stdout: TextIO | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, whose fork server all tests share, and leave the
    process as it was.
    """
    given = [str(word) for word in words]
    with (
        chdir(cwd),
        mock.patch.dict(os.environ),
        mock.patch.object(sys, "path", sys.path.copy()),
        redirect_stdout(stdout or StringIO()) as out,
        redirect_stderr(StringIO()) as errors,
    ):
        code = run_bench.main(given)
    text = out.getvalue() if isinstance(out, StringIO) else ""
    return subprocess.CompletedProcess(given, code, text, errors.getvalue())


@pytest.fixture(scope="session", autouse=True)
def frozen():
    """Leave what the imports made out of every collection: it takes a third of a second each."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def sigint():
    """Let every test begin with Ctrl-C at its default, which processes that it starts inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def tiny_file(tmp_path):
    """A suite file that a user could have written."""
    path = tmp_path / "tiny.py"
    path.write_text(TINY)
    return path


@pytest.fixture
def tiny_trial(tiny_file):
    """A memory trial of the tiny suite on the CPU; vary it with dataclasses.replace."""
    cell = Cell(
        suite=SuiteRef(name="tiny", file=str(tiny_file)),
        placement=Placement(name="cpu"),
        batch_size=4,
        data=DataSource(kind="synthetic"),
    )
    return Trial(
        cell=cell,
        phase="memory",
        arms=arms("fp32"),
        protocol=Protocol(time_budget_s=0.2, replicates=2),
    )


@pytest.fixture
def cpu():
    """A CPU that can do everything but TF32."""
    return Device(
        placement="cpu",
        kind="cpu",
        name="Test CPU",
        architecture="CPU",
        unsupported={"tf32": "no TF32"},
    )


@pytest.fixture
def machine(cpu):
    """A machine with nothing but that CPU."""
    return Environment(
        host="here",
        os="Linux",
        python="3.11",
        torch="2.15",
        torchvision="0.29",
        cuda=None,
        cudnn=None,
        driver=None,
        devices=(cpu,),
    )


@pytest.fixture
def stranger():
    """The id of a process that is not this run's."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()
