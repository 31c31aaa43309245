"""Telemetry of a run on a GPU whose NVML plays a known course: the frame agrees with it."""

import math

import pytest

from bench.report import document, load
from bench.report.reading.load import load as load_runs
from tests.report.builders import text_of
from tests.rows import trial_figures

COURSE = ((2.0, 1410, 60, 250, 98, "none"), (2.0, 900, 85, 150, 60, "sw_power_cap"))
"""Seconds, longer than a round, after which reasons are read; then MHz, degrees, watts, per cent, and the reason."""
PLANTED = ("sm_clock_mhz", "temperature_c", "power_w", "utilization_pct")
WORDS = ("--suite", "mlp", "--set", "width=64", "--set", "batches=1500", "--batch-sizes", 64, "--quick", "--epochs", 1)


@pytest.fixture(scope="module")
def hot(host):
    course = " ".join(f"{s}:{mhz},{c},{w},{pct},{4 * (word != 'none'):x}" for s, mhz, c, w, pct, word in COURSE)
    machine = host("A100", SIM_COURSE=course)
    words = ("--gpus", 0, "--precisions", "fp32,amp-fp16", "--phases", "memory,speed,energy,train")
    machine.run(*WORDS, *words, "--out", "out")
    return machine


@pytest.mark.needs_nvml("power", "event_reasons")
def test_the_planted_course_is_read(hot):
    rows = load(hot.folder / "out").telemetry
    steps = [rows[rows["throttle_reasons"] == step[-1]] for step in COURSE]
    assert min(map(len, steps)) > 5
    for (_, *values, _), read in zip(COURSE, steps, strict=True):
        assert [read[name].mode()[0] for name in PLANTED] == values  # a reading may span both


@pytest.mark.needs_nvml("event_reasons")
def test_speeds_timed_while_the_power_limit_held_the_clock_down_are_marked(hot):
    speeds = [row for row in hot.rows("out") if row["phase"] == "speed"]
    assert {row["power_capped"] for row in speeds} == {"yes"}


@pytest.mark.needs_nvml("power", "event_reasons")
def test_at_the_power_limit_both_speedups_are_shown_and_the_advice_follows_the_one_alone(hot):
    folder = hot.folder / "reports" / "out"
    drawn = {row["precision"]: row for row in hot.rows("out") if row["phase"] == "energy"}
    alone = float(drawn["amp-fp16"]["alone_samples_per_s"]) / float(drawn["fp32"]["alone_samples_per_s"])
    summary = load(hot.folder / "out").summary.set_index("precision").loc["amp-fp16"]
    assert (summary["speedup"], summary["doubts"].split(", ")[-1]) == (pytest.approx(alone), "alone")
    turns = [math.exp(row["log_speedup"]) for row in trial_figures(hot.folder / "out") if row["log_speedup_error"] > 0]
    assert min(turns) <= summary["turns_speedup"] <= max(turns)
    assert "; in turns " in (folder / "report.md").read_text()
    assert "alone (in turns " in text_of(folder / "report.html")
    advised = document.report(load_runs([hot.folder / "out"]))["answers"][0]["use"]
    assert advised == ("amp-fp16" if summary["speed_verdict"] == "FASTER" else "fp32")


def test_memory_of_the_whole_gpu_is_the_processes_and_more(hot):
    memory = [row for row in hot.rows("out") if row["phase"] == "memory"]
    assert all(float(row["gpu_used_bytes"]) >= float(row["driver_used_bytes"]) > 300 * 2**20 for row in memory)
    assert "| peak (MiB) |" in text_of(hot.folder / "reports" / "out" / "report.html")
