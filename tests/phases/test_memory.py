"""The memory phase of processes that train together."""

from dataclasses import replace

import pytest

from bench.measure import memory
from bench.spec.placement import Placement
from bench.training import distributed
from tests.phases.conftest import run_phase


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_asks_the_driver_of_its_own_gpu(monkeypatch, tiny_trial, cpu, rank):
    def ask(uuid):
        raise InterruptedError(uuid)  # which ends the phase where it has asked

    def open_context(_trial):
        pytest.fail("the driver is asked before anything can make a context")

    monkeypatch.setattr("bench.phases.memory.measure.open_context", open_context)
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "ranks", lambda: 2)
    monkeypatch.setattr(memory, "driver_memory_bytes", ask)
    joined = replace(cpu, placement="0+1", kind="cuda", uuids=("GPU-a", "GPU-b"))
    cell = replace(tiny_trial.cell, placement=Placement(name="0+1"))
    with pytest.raises(InterruptedError, match=("GPU-a", "GPU-b")[rank]):
        run_phase(tiny_trial, joined, "memory", "fp32", cell=cell)
