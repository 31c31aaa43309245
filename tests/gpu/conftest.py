"""The first GPU, as a process of its own describes it, and a trial on it."""

from dataclasses import replace

import pytest

from bench.launch.local import LocalLauncher
from bench.spec.placement import Placement


@pytest.fixture(scope="module")
def device():
    return LocalLauncher().call("bench.devices.survey:survey", ("0",)).devices[0]


@pytest.fixture
def trial(tiny_trial):
    return replace(tiny_trial, cell=replace(tiny_trial.cell, placement=Placement(name="0")))
