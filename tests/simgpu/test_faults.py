"""Faults in the middle of a run: the row, its reason, the next trial, and what is left behind."""

import pytest

from tests.simgpu.conftest import ROOT
from tests.simgpu.machine import MODELS

FAULTY = f"--suite {ROOT}/tests/simgpu/faulty.py --quick --batch-sizes 4 --out out"
SHORT = f"{FAULTY} --target-ci 99% --time-budget 0.3"
BOTH = "--gpus 0 --precisions fp32,amp-bf16"
AFTER_MEMORY = 25
"""A forward pass that the memory phase does not reach, and every other phase does."""
TIMED = {"ok", "unconverged"}


def with_fault(**parameters):
    return " ".join(f"--set {name}={value}" for name, value in parameters.items())


BROKEN = {
    "oom": (1000, "oom", "out of memory"),
    "sticky": (700, "failed", "an illegal memory access was encountered"),
    "lost": (1, "failed", "unknown error"),
}
"""What a fault is called with, and the status and the reason of the rows."""


@pytest.mark.parametrize("fault", BROKEN)
def test_each_trial_that_breaks_is_a_row_with_the_reason_and_the_next_one_runs(host, fault):
    value, status, reason = BROKEN[fault]
    server = host("A100")
    breaking = with_fault(fault=fault, at=AFTER_MEMORY, value=value)
    phases = "--phases memory,speed,inference,energy,train"
    printed = server.run(f"{SHORT} {BOTH} {phases} {breaking}", code=int(fault != "oom"))
    rows = server.rows("out")
    assert len({(row["phase"], row["precision"]) for row in rows}) == 10
    for row in rows:
        if row["phase"] == "memory":
            assert row["status"] == "ok"
        else:
            assert row["status"] == status
            assert reason in row["detail"].lower()
    assert "Traceback" not in printed
    assert "Report:" in printed
    assert server.left_behind() == []


def test_a_gpu_whose_memory_others_hold_is_out_of_memory_and_the_next_gpu_is_measured(host):
    server = host("A100", 2)
    server.machine.poke("taken_bytes", 0, (MODELS["A100"].memory_mib - 300) * 2**20)
    server.run(f"{SHORT} --gpus 0,1 --precisions fp32 --phases memory")
    statuses = {row["placement"]: row["status"] for row in server.rows("out")}
    assert statuses == {"0": "oom", "1": "ok"}


def test_clocks_held_down_for_a_part_of_the_time_are_named_and_the_rest_is_measured(host):
    server = host("A100")
    heat = with_fault(fault="throttle", value=0x20, after_s=3)
    server.run(f"{FAULTY} {BOTH} --phases speed --time-budget 6 --target-ci 0.01% {heat}")
    for row in server.rows("out"):
        assert row["status"] in TIMED
        assert row["disturbance"].startswith("thermal slowdown for ")


def test_an_nvml_that_stops_answering_leaves_speed_as_it_is_and_energy_unknown(host):
    server = host("A100")
    silent = with_fault(fault="silent", value=999, at=AFTER_MEMORY)
    server.run(f"{SHORT} --gpus 0 --precisions fp32 --phases speed,energy,memory {silent}")
    (speed,), (memory,) = server.rows("out", "speed"), server.rows("out", "memory")
    assert speed["status"] in TIMED
    assert memory["status"] == "ok"
    (energy,) = server.rows("out", "energy")
    assert energy["status"] == "unsupported"
    assert "stopped telling its energy" in energy["detail"]
    assert server.left_behind() == []


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("oom", "oom", "device 2 of 2 (GPU 1): OutOfMemoryError"),
        ("end", "failed", "device 2 of 2 (GPU 1): the process ended without a message, by SIGKILL"),
        ("lost", "failed", "device 2 of 2 (GPU 1)"),
    ],
)
def test_a_rank_that_breaks_is_named_and_the_next_trial_runs(host, fault, status, reason):
    server = host("A100", 2)
    broken = with_fault(fault=fault, value=1000, rank=1, at=AFTER_MEMORY)
    words = f"{SHORT} --gpus 0+1,1 --precisions fp32 --phases speed"
    server.run(f"{words} {broken}", code=int(status != "oom"))
    both, alone = server.rows("out")
    assert (both["placement"], both["status"]) == ("0+1", status)
    assert reason in both["detail"]
    assert alone["status"] in TIMED
    assert not server.machine.shared.lost[0]
    assert bool(server.machine.shared.lost[1]) == (fault == "lost")  # the rank's own GPU
    assert server.left_behind() == []
