"""Telemetry of a run on a GPU whose NVML plays a known course: the frame agrees with it."""

import pytest

from bench.report import load
from tests.report.builders import text_of

COURSE = "2.0:1410,60,250,98,0 2.0:900,85,150,60,4"
"""Two steps, each longer than a round, after which reasons are read; 4 is NVML's power cap."""
READINGS = {
    "none": {
        "sm_clock_mhz": 1410,
        "temperature_c": 60,
        "power_w": 250,
        "utilization_pct": 98,
    },
    "sw_power_cap": {
        "sm_clock_mhz": 900,
        "temperature_c": 85,
        "power_w": 150,
        "utilization_pct": 60,
    },
}
"""Of each step, by the reason that holds the clock down."""
SUITE = "--gpus 0 --suite mlp --set width=64 --set batches=1500 --batch-sizes 64 --quick --epochs 1"


@pytest.fixture(scope="module")
def hot(host):
    machine = host(SIM_COURSE=COURSE)
    machine.run(f"{SUITE} --precisions fp32,amp-fp16 --phases memory,speed,train --out out")
    return machine


@pytest.mark.parametrize("reason", READINGS)
def test_the_planted_course_is_read(hot, reason):
    telemetry = load(hot.folder / "out").telemetry
    step = telemetry[telemetry["throttle_reasons"] == reason]
    assert len(step) > 5
    planted = READINGS[reason]
    most_frequent = step[list(planted)].mode().loc[0]  # a reading may span both steps
    assert most_frequent.to_dict() == planted


def test_speeds_timed_while_the_power_limit_held_the_clock_down_are_marked(hot):
    for row in hot.rows("speed"):
        assert row["power_capped"] == "yes"


def test_memory_of_the_whole_gpu_is_the_processes_and_more(hot):
    for row in hot.rows("memory"):
        used_bytes = float(row["driver_used_bytes"])
        assert float(row["gpu_used_bytes"]) >= used_bytes > 300 * 2**20
    assert "| peak (MiB) |" in text_of(hot.folder / "reports" / "out" / "report.html")
