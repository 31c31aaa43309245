"""GPUs that train together are watched one by one: before a run, in telemetry, and while quads are timed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bench.devices.monitor import open_monitor
from bench.measure.disturbance import open_watch
from bench.phases import speed
from bench.results.records import Device, TrialResult
from bench.run.session import sampled_gpus
from bench.spec.trial import Placement
from tests.devices.fake_nvml import FakeClock, FakeDriver, FakeGpu
from tests.processes import together

THERMAL = 0x20
PAIR = Device(placement="1+0", kind="cuda", name="2 × GPU", architecture="Hopper", uuids=("GPU-b", "GPU-a"))
SPREAD = replace(PAIR, placement="0+1@2", uuids=())


def machine_of(machine, *devices):
    return replace(machine, devices=devices)


def test_telemetry_is_read_of_each_of_them_once(machine):
    alone = replace(PAIR, placement="0", uuid="GPU-a", uuids=())
    found = sampled_gpus(machine_of(machine, alone, PAIR, SPREAD, machine.devices[0]))
    assert sorted(found) == [("0", "GPU-a"), ("1", "GPU-b")]


def test_children_of_ours_are_not_foreign(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        FakeDriver([FakeGpu("GPU-a", processes={child.pid: 1, 1: 1})]).install(monkeypatch)
        with open_monitor() as nvml:
            assert nvml.foreign_processes("GPU-a", {os.getpid()}) == 1
            assert nvml.foreign_processes("GPU-a", set()) == 2


def watch(rank, others_pid):
    """Watch two GPUs, of which the second is hot, and on which each of us computes and so does somebody else."""
    clock = FakeClock()
    with pytest.MonkeyPatch.context() as patched:
        gpus = [FakeGpu("GPU-a"), FakeGpu("GPU-b", reasons=THERMAL)]
        FakeDriver(gpus, clock=clock).install(patched)
        both = replace(PAIR, uuids=("GPU-a", "GPU-b"))
        with open_watch(both, clock, gather=speed.distributed.gathered, rank=rank) as mine:
            pids = speed.distributed.gathered(os.getpid())
            clock.advance(1)
            gpus[rank].work += [(10**6, pid, 40) for pid in (*pids, others_pid)]
            return mine.poll()


@pytest.mark.slow
def test_each_watches_its_own_and_takes_nobody_who_trains_with_it_for_a_stranger(tmp_path):
    first, second = together(tmp_path, watch, 77)
    assert first == "another process used the GPU (pid 77, 40 % of its time)"
    assert second == f"thermal slowdown; {first}"


def time_two(rank, trial):
    sent = []
    with pytest.MonkeyPatch.context() as patched:
        FakeDriver([FakeGpu("GPU-a"), FakeGpu("GPU-b", reasons=THERMAL)], clock=FakeClock()).install(patched)
        speed.run(trial, replace(PAIR, uuids=("GPU-a", "GPU-b")), sent.append)
    return [message for message in sent if isinstance(message, TrialResult)]


@pytest.mark.slow
def test_what_one_of_them_suffers_voids_the_quads_of_all(tmp_path, tiny_trial):
    tiny_trial = replace(tiny_trial, protocol=replace(tiny_trial.protocol, time_budget_s=0.05))
    trial = replace(tiny_trial, phase="speed", cell=replace(tiny_trial.cell, placement=Placement(name="cpu+cpu")))
    for (result,) in together(tmp_path, time_two, trial):
        assert (result.status, result.speed.rounds) == ("invalid", 0)
        assert "device cpu: thermal slowdown" in result.detail
