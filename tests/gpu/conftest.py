"""The first GPU, as a process of its own describes it, and a trial on it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.launch.local import LocalLauncher
from bench.results.records import TrialResult
from bench.spec.placement import Placement
from tests.derived import figured

GPU = torch.device("cuda", 0)
ON_SIMULATED = hasattr(torch, "_simgpu")
NEEDS_TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def pytest_collection_modifyitems(items):
    """Mark every test in this folder."""
    needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(needs_gpu)


def survey(*placements):
    """Return devices as a process of its own describes them."""
    return LocalLauncher().call("bench.devices.survey:survey", placements).devices


@pytest.fixture(scope="module")
def device():
    return survey("0")[0]


@pytest.fixture
def trial(tiny_trial):
    return replace(tiny_trial, cell=replace(tiny_trial.cell, placement=Placement(name="0")))


def run(trial, device):
    """Run a trial to its end in a process of its own; return the results."""
    messages = []
    ending = LocalLauncher().run(trial, device, messages.append)
    assert ending.kind == "done", ending.text
    return [message for message in figured(trial, messages) if isinstance(message, TrialResult)]
