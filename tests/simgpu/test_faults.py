"""Faults in the middle of a run: the row, its reason, the next trial, and what is left behind."""

import pytest

from tests.simgpu.conftest import ROOT
from tests.simgpu.machine import MODELS

FAULTY = f"--suite {ROOT}/tests/simgpu/faulty.py --quick --batch-sizes 4 --out out"
SHORT = f"{FAULTY} --target-ci 99% --time-budget 0.3"
BOTH = "--gpus 0 --precisions fp32,amp-bf16"
AFTER_MEMORY = "--set at=25"
"""A forward pass that the memory phase does not reach, and every other phase does."""
TIMED = {"ok", "unconverged"}


@pytest.mark.parametrize(
    ("fault", "code", "status", "reason"),
    [
        ("--set fault=oom --set value=1000", 0, "oom", "out of memory"),
        (
            "--set fault=sticky --set value=700",
            1,
            "failed",
            "an illegal memory access was encountered",
        ),
        ("--set fault=lost --set value=1", 1, "failed", "unknown error"),
    ],
    ids=["oom", "sticky", "lost"],
)
def test_each_trial_that_breaks_is_a_row_with_the_reason_and_the_next_one_runs(
    host, fault, code, status, reason
):
    server = host()
    phases = "--phases memory,speed,inference,energy,train"
    printed = server.run(f"{SHORT} {BOTH} {phases} {fault} {AFTER_MEMORY}", code)
    broken = set()
    for row in server.rows():
        if row["phase"] == "memory":
            assert row["status"] == "ok"
        else:
            assert row["status"] == status
            assert reason in row["detail"].lower()
            broken.add((row["phase"], row["precision"]))
    assert len(broken) == 8
    assert "Traceback" not in printed
    assert "Report:" in printed
    assert server.left_behind() == []


def test_a_gpu_whose_memory_others_hold_is_out_of_memory_and_the_next_gpu_is_measured(host):
    server = host(count=2)
    free_mib = MODELS["A100"].memory_mib - 300
    server.machine.poke("taken_bytes", 0, free_mib * 2**20)
    server.run(f"{SHORT} --gpus 0,1 --precisions fp32 --phases memory")
    full, free = server.rows()
    assert full["placement"] == "0"
    assert full["status"] == "oom"
    assert free["status"] == "ok"


def test_clocks_held_down_for_a_part_of_the_time_are_named_and_the_rest_is_measured(host):
    server = host()
    heat = f"--set fault=throttle --set value={0x20} --set after_s=3"
    server.run(f"{FAULTY} {BOTH} --phases speed --time-budget 6 --target-ci 0.01% {heat}")
    for row in server.rows():
        assert row["status"] in TIMED
        assert row["disturbance"].startswith("thermal slowdown for ")


def test_an_nvml_that_stops_answering_leaves_speed_as_it_is_and_energy_unknown(host):
    server = host()
    silent = f"--set fault=silent --set value=999 {AFTER_MEMORY}"
    server.run(f"{SHORT} --gpus 0 --precisions fp32 --phases speed,energy {silent}")
    speed, energy = server.rows()
    assert speed["status"] in TIMED
    assert energy["status"] == "unsupported"
    assert "stopped telling its energy" in energy["detail"]
    assert server.left_behind() == []


@pytest.mark.parametrize(
    ("fault", "code", "status", "reason"),
    [
        ("oom", 0, "oom", ": OutOfMemoryError"),
        ("end", 1, "failed", ": the process ended without a message, by SIGKILL"),
        ("lost", 1, "failed", ""),
    ],
)
def test_a_rank_that_breaks_is_named_and_the_next_trial_runs(host, fault, code, status, reason):
    server = host(count=2)
    broken = f"--set fault={fault} --set value=1000 --set rank=1 {AFTER_MEMORY}"
    server.run(f"{SHORT} --gpus 0+1,1 --precisions fp32 --phases speed {broken}", code)
    both, alone = server.rows()
    assert both["placement"] == "0+1"
    assert both["status"] == status
    assert f"device 2 of 2 (GPU 1){reason}" in both["detail"]
    assert alone["status"] in TIMED
    assert list(server.machine.shared.lost[:2]) == [0, 1000 * (fault == "lost")]  # the rank's own
    assert server.left_behind() == []
