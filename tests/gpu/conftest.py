"""The first GPU, as a process of its own describes it, and a trial on it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.devices.backend import backend_of
from bench.launch.local import LocalLauncher
from bench.results.records import TrialResult
from bench.spec.placement import Placement
from bench.spec.precisions import PRECISIONS
from bench.training import amp
from tests.derived import figured

GPU = torch.device("cuda", 0)
ON_SIMULATED = hasattr(torch, "_simgpu")
NEEDS_TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def pytest_collection_modifyitems(items):
    """Mark every test in this folder."""
    needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(needs_gpu)


def describe(placement):
    """Return a device as a process of its own describes it."""
    described = LocalLauncher().call("bench.devices.survey:survey", (placement,))
    return described.devices[0]


@pytest.fixture(scope="module")
def device():
    return describe("0")


def apply(name):
    """Apply a precision; skip the test where the GPU cannot do it."""
    precision = PRECISIONS[name]
    reason = backend_of(GPU).unsupported_reason(precision)
    if reason:
        pytest.skip(reason)
    amp.apply(precision)
    return precision


def take(mebibytes, device=GPU):
    """Return a tensor of a size."""
    return torch.empty(mebibytes * 2**20, dtype=torch.uint8, device=device)


@pytest.fixture
def trial(tiny_trial):
    return vary_cell(tiny_trial, placement=Placement(name="0"))


def vary_cell(trial, **fields):
    return replace(trial, cell=replace(trial.cell, **fields))


def run(trial, device):
    """Run a trial to its end in a process of its own; return the results."""
    messages = []
    ending = LocalLauncher().run(trial, device, messages.append)
    assert ending.kind == "done", ending.text
    results = figured(trial, messages)
    return [result for result in results if isinstance(result, TrialResult)]
