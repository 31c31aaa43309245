"""Telemetry of a run on a GPU whose NVML plays a known course: the frame agrees with it."""

import pytest

from bench.report import load
from tests.report.builders import text_of

COURSE = ((2.0, 1410, 60, 250, 98, "none"), (2.0, 900, 85, 150, 60, "sw_power_cap"))
"""Seconds, longer than a round, after which reasons are read; then MHz, degrees, watts, per cent,
and the reason."""
PLANTED = ["sm_clock_mhz", "temperature_c", "power_w", "utilization_pct"]
SUITE = "--gpus 0 --suite mlp --set width=64 --set batches=1500 --batch-sizes 64 --quick --epochs 1"


@pytest.fixture(scope="module")
def hot(host):
    steps = []
    for seconds, *readings, reason in COURSE:
        reasons = 0 if reason == "none" else 4  # as NVML numbers the power cap
        steps.append(f"{seconds}:{','.join(map(str, readings))},{reasons:x}")
    machine = host("A100", SIM_COURSE=" ".join(steps))
    machine.run(f"{SUITE} --precisions fp32,amp-fp16 --phases memory,speed,train --out out")
    return machine


def test_the_planted_course_is_read(hot):
    rows = load(hot.folder / "out").telemetry
    for _, *values, reason in COURSE:
        step = rows[rows["throttle_reasons"] == reason]
        assert len(step) > 5
        assert list(step[PLANTED].mode().loc[0]) == values  # a reading may span both


def test_speeds_timed_while_the_power_limit_held_the_clock_down_are_marked(hot):
    assert {row["power_capped"] for row in hot.rows("out", "speed")} == {"yes"}


def test_memory_of_the_whole_gpu_is_the_processes_and_more(hot):
    for row in hot.rows("out", "memory"):
        used, whole = float(row["driver_used_bytes"]), float(row["gpu_used_bytes"])
        assert whole >= used > 300 * 2**20
    assert "| peak (MiB) |" in text_of(hot.folder / "reports" / "out" / "report.html")
