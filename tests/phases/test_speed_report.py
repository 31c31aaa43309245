"""The tables of swept parameters, and of scaling over one device, from speeds that are known."""

from dataclasses import replace

import pytest

from bench.phases.speed.report import scaling
from bench.phases.speed.sweeps import tables
from bench.report.analysis.summary import summarise
from bench.report.page import compose
from bench.report.reading.load import load
from bench.report.tables.table import material_of
from bench.results.records import TrialResult
from bench.spec.trial import SuiteRef
from tests.report.builders import GPU, RunBuilder, timed
from tests.report.fleet import edit_run
from tests.report.tables.lines import column, lines, words

FIRST = "× step of the first value"


def run_of(folder, sweep, *variants):
    """Write a run that swept these parameters; its variants are parameters and a step's time."""
    run = RunBuilder(folder)
    edit_run(folder, lambda info: info["request"].update(sweep=[*sweep.items()]))
    for parameters, step_ms in variants:
        run.suite = SuiteRef(name="mlp", parameters=tuple(parameters.items()))
        size = parameters.get("batch_size", 512)
        steps_ms = [step_ms, 1.01 * step_ms, 0.99 * step_ms]
        run.alone("fp32", steps_ms, batch=size)
        run.alone("amp-fp16", [step / 2 for step in steps_ms], batch=size)
    return run


def swept_in(run):
    runs = load([run.folder])
    return tables(summarise(runs.trials), runs)


def test_each_value_stands_against_the_first_in_a_section_of_its_own(tmp_path):
    # The first measured is the first.
    variants = [({"width": 4097}, 15.0), ({"width": 4096}, 10.0)]
    run = run_of(tmp_path / "run", {"width": ["4097", "4096"]}, *variants)
    sections = compose(material_of(load([run.folder]))).sections
    assert [*sections][1:4] == ["Sweeps", "mlp (width=4096)", "mlp (width=4097)"]
    (table,) = sections["Sweeps"].tables
    order = [("4097", "fp32"), ("4097", "amp-fp16"), ("4096", "fp32"), ("4096", "amp-fp16")]
    assert [(line["width"], line["precision"]) for line in lines(table)] == order
    assert column(table, FIRST) == ["first", "first", "0.667", "0.667"]
    assert column(table, "speedup [95 % interval]")[3].startswith("2.000 [")
    assert "batch size" in table.headers


def test_a_product_is_compared_along_each_parameter_with_the_others_alike(tmp_path):
    variants = [
        ({"batch_size": 512, "width": 4096}, 10.0),
        ({"batch_size": 513, "width": 4096}, 15.0),
        ({"batch_size": 512, "width": 4097}, 20.0),
        ({"batch_size": 513, "width": 4097}, 45.0),
    ]
    sweep = {"width": ["4096", "4097"], "batch_size": ["512", "513"]}
    of_width, of_size = swept_in(run_of(tmp_path / "run", sweep, *variants))
    assert (of_width.title, of_size.title) == ("Sweep of mlp's width", "Sweep of mlp's batch_size")
    # Of fp32; amp-fp16 is in the other rows.
    others, changes = column(of_width, "other parameters"), column(of_width, FIRST)
    assert others[::2] == ["batch_size=512", "batch_size=512", "batch_size=513", "batch_size=513"]
    assert changes[::2] == ["first", "2.000", "first", "3.000"]
    assert column(of_size, "batch_size")[::2] == ["512", "513", "512", "513"]
    assert column(of_size, FIRST)[::2] == ["first", "1.500", "first", "2.250"]
    assert "batch size" not in of_size.headers


def test_what_was_only_set_is_no_sweep_and_neither_is_a_single_value_nor_what_was_not_timed(
    tmp_path,
):
    narrow, wide = ({"lr": 0.1, "width": 8}, 10.0), ({"lr": 0.1, "width": 16}, 10.0)
    both = {"width": ["8", "16"]}
    assert len(swept_in(run_of(tmp_path / "a", both, narrow, wide))) == 1
    assert swept_in(run_of(tmp_path / "b", {}, narrow, wide)) == []
    assert swept_in(run_of(tmp_path / "c", both, narrow)) == []
    run = run_of(tmp_path / "d", both)
    run.suite = SuiteRef(name="mlp", parameters=(("width", 8),))
    assert swept_in(run.lost("memory", "fp32", "failed", "it broke")) == []


# The scaling table: several devices over one of them, strong and weak.

CPU = replace(GPU, kind="cpu", name="Test CPU", architecture="CPU")


def measure(run, placement, batch, pace, *techniques, processes=2):
    """Add the speed of fp32 in some processes, each of so many samples a second."""
    device = CPU if placement.startswith("cpu") else GPU
    run.device = replace(device, placement=placement)
    for replicate in range(processes):
        speed = timed(1000 * batch / pace, batch)
        trial = run.trial("speed", ["fp32"], batch, replicate=replicate)
        trial = replace(trial, cell=replace(trial.cell, techniques=techniques))
        run.add(trial, TrialResult(arm="fp32", status="ok", row=speed))


def scaling_in(*runs):
    """Return the scaling table; None if there is none."""
    summary = summarise(load([run.folder for run in runs]).trials)
    return scaling(summary, summary)


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")


def test_speedup_and_efficiency_over_one_device_at_the_same_batch_and_at_the_same_part(run):
    measure(run, "0", 64, 1000.0)
    measure(run, "0", 32, 800.0)
    measure(run, "0+1", 64, 1500.0)
    table = scaling_in(run)
    strong, weak = table.rows
    joint = ["fp32", "64", "strong", "1,500"]
    assert strong[1:] == [*joint, "GPU 0", "1,000", "1.500 [1.500, 1.500]", "75.0"]
    joint = ["fp32", "64", "weak, 32 a device", "1,500"]
    assert weak[1:] == [*joint, "GPU 0", "800.0", "1.875 [1.875, 1.875]", "93.8"]
    assert words(table) == ["devices", "precision", "scaling", "one device"]


def test_devices_of_several_nodes_are_all_counted(run):
    measure(run, "0", 64, 1000.0)
    measure(run, "0", 16, 800.0)
    measure(run, "0+1@2", 64, 2400.0)
    measure(run, "0@2", 64, 1500.0)
    table = scaling_in(run)
    assert column(table, "scaling") == ["strong", "weak, 16 a device", "strong"]
    assert column(table, "efficiency (%)") == ["60.0", "75.0", "75.0"]


def test_the_reference_is_a_device_of_the_same_run(run, tmp_path):
    other = RunBuilder(tmp_path / "other")
    measure(other, "0", 64, 500.0)
    measure(run, "0+1", 64, 1500.0)
    assert scaling_in(other, run) is None
    measure(run, "0", 64, 1000.0)
    assert column(scaling_in(other, run), "its throughput") == ["1,000"]


def test_another_device_of_the_run_and_another_batch_size_are_no_scaling(run):
    measure(run, "2", 64, 1000.0)
    measure(run, "0", 48, 1000.0)
    measure(run, "0+1", 64, 1500.0)
    assert scaling_in(run) is None


def test_what_means_nothing_on_one_device_does_not_keep_it_from_being_compared(run):
    measure(run, "0", 64, 1000.0, "channels-last")
    measure(run, "0", 64, 700.0)
    measure(run, "0+1", 64, 1500.0, "channels-last", "sync-bn")
    assert column(scaling_in(run), "its throughput") == ["1,000"]


def test_on_a_cpu_there_is_no_efficiency_and_with_one_process_no_interval(run):
    measure(run, "cpu", 64, 1000.0, processes=1)
    measure(run, "cpu+cpu", 64, 900.0, "sync-bn", processes=1)
    (row,) = scaling_in(run).rows
    assert row[0] == "Test CPU (cpu+cpu)"
    assert row[5:9] == ["cpu", "1,000", "0.900", "–"]
