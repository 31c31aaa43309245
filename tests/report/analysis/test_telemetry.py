"""Telemetry by arm: which samples belong to whom, what is summed up, and what is drawn and said of it."""

from dataclasses import replace

import pandas as pd
import pytest

from bench.phases.energy import Energy
from bench.report import load as typed
from bench.report.analysis.telemetry import telemetry
from bench.report.figures.telemetry import courses
from bench.report.reading.load import load
from bench.results.records import Sample, TrialResult
from tests.report.builders import GPU, MIB, RunBuilder, block, epoch_of, timed
from tests.report.tables.lines import lines, titled

START_S = 1_800_000_000.0
FIELDS = ("utilization_pct", "power_w", "temperature_c", "sm_clock_mhz")


def samples(seconds, course, *, gpu="0", start_s=START_S):
    """Five samples a second from a course: values of ``FIELDS`` and the reasons at each second."""
    for number in range(5 * seconds):
        *figures, reasons = course(number / 5)
        yield Sample(
            time_s=start_s + number / 5,
            placement=gpu,
            uuid=f"GPU-{gpu}",
            memory_used_bytes=(100 + number) * MIB,
            throttle_reasons=reasons,
            **dict(zip(FIELDS, figures, strict=True)),
        )


def hot(second):
    """A GPU that heats up for ten seconds, and whose clocks heat then holds down."""
    return (50.0, 200.0, 60.0 + second, 1410, "none") if second < 10 else (90.0, 300.0, 80.0, 900, "sw_thermal+idle")


@pytest.fixture
def run(tmp_path):
    """A GPU on which speed, energy and train ran for four seconds each, with pauses."""
    run = RunBuilder(tmp_path / "run", device=replace(GPU, uuid="GPU-0"))
    run.store.add(samples(20, hot))
    trial = run.trial("speed", ["fp32", "amp-fp16"], 128, replicate=0)
    blocks = [block(trial.id, "fp32", start_s=START_S), block(trial.id, "amp-fp16", start_s=START_S + 3, time_ms=1e3)]
    results = [TrialResult(precision=name, status="ok", row=timed(1.0, 128)) for name in trial.precisions]
    stamp = {"started": pd.Timestamp(START_S, unit="s", tz="UTC").isoformat(), "wall_s": 4.0}
    run.add(trial, *(replace(result, **stamp) for result in results), records=blocks)
    run.result("energy", "amp-fp16", row=Energy(energy_start_s=START_S + 8, energy_window_s=4.0))
    trial = run.trial("train", ["fp32"], 128, seed=0, epochs=2)
    course = {"seed": 0, "accuracy": None, "epoch_s": 1.0}
    epochs = [epoch_of(trial.id, "fp32", epoch=number, **course) for number in (1, 2)]
    run.add(trial, TrialResult(precision="fp32", status="nonfinite"))
    return run.append(*(replace(epoch, start_s=START_S + 15 + 2 * place) for place, epoch in enumerate(epochs)))


def test_each_arm_has_the_samples_of_its_own_steps(run):
    rows = telemetry(load([run.folder])).set_index(["phase", "precision"])
    assert list(rows.index) == [("speed", "fp32, amp-fp16"), ("energy", "amp-fp16"), ("train", "fp32")]
    assert list(rows["samples"]) == [21, 21, 12]  # both ends included; without the evaluation between the epochs
    assert list(rows["highest_sm_clock_mhz"]) == [1410, 1410, 900]
    assert rows.loc["speed", "temperature_c"].item() == pytest.approx(62.0)
    energy = rows.loc["energy"].iloc[0]
    assert (energy["throttled_pct"], energy["throttle_reasons"]) == (pytest.approx(100 * 11 / 21), "sw_thermal:52%")
    assert energy["power_w"] == pytest.approx((10 * 200 + 11 * 300) / 21)
    assert energy["memory_used_bytes"] == (100 + 60) * MIB


def test_gpus_that_train_together_have_a_row_each(tmp_path):
    run = RunBuilder(tmp_path / "run", device=replace(GPU, placement="0+1"))
    run.store.add(samples(5, hot)), run.store.add(samples(5, lambda _second: (10.0, 70.0, 40.0, 600, "idle"), gpu="1"))
    run.result("energy", "fp32", row=Energy(energy_start_s=START_S, energy_window_s=4.0))
    rows = telemetry(load([run.folder])).set_index("gpu")
    assert list(rows["power_w"]) == [200.0, 70.0]
    assert list(rows["throttled_pct"]) == [0.0, 0.0]


def test_what_nobody_read_is_unknown_and_without_samples_there_is_no_row(tmp_path):
    run = RunBuilder(tmp_path / "run")
    run.result("energy", "fp32", row=Energy(energy_start_s=START_S, energy_window_s=4.0))
    assert telemetry(load([run.folder])).empty
    run.store.add(samples(5, lambda _second: (None, None, None, None, None)))
    (row,) = telemetry(load([run.folder])).to_dict("records")
    assert row["throttle_reasons"] == ""
    assert all(pd.isna(row[name]) for name in (*FIELDS, "throttled_pct"))
    assert list(courses(load([run.folder]))) == []
    run.store.add(samples(1, lambda _second: (0.0, None, None, None, None), start_s=START_S + 5))
    ((_, chart),) = courses(load([run.folder]))
    assert [panel.title for panel in chart.panels] == ["Utilisation"]


def test_the_table_and_the_frame_have_what_was_read(run):
    sections = {line["phase"]: line for line in lines(titled(run.folder, "Clocks, power and temperature"))}
    energy = sections["energy"]
    assert (energy["held down (%)"], energy["by"], energy["SM clock (MHz)"]) == (
        "52",
        "sw_thermal:52%",
        "1143",
    )
    frame = typed(run.folder).telemetry
    assert list(frame["samples"]) == [21, 21, 12]


def test_a_gpus_course_is_drawn_with_its_trials(run):
    ((_, chart),) = courses(load([run.folder]))
    assert [panel.title for panel in chart.panels] == ["Power", "SM clock", "Temperature", "Utilisation"]
    *bars, _, line = chart.panels[0].marks
    assert line.points[-1] == pytest.approx((19.8, 300.0))
    assert [(bar.x, bar.tint) for bar in bars] == [((0.0, 4.0), "fp32"), ((0.0, 4.0), "amp-fp16")]
    run.store.add(samples(60, lambda second: (0.0, 100.0 * (second % 2 >= 1), 0.0, 0, "none"), start_s=START_S + 30))
    ((_, longer),) = courses(load([run.folder]))
    *_, band, line = longer.panels[0].marks
    assert len(line.points) <= 150
    assert ((band.low == 0.0) & (band.high == 100.0)).any()
