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
from tests.report.tables.lines import column, lines

FIRST = "× step of the first value"


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")


def request(run, **sweep):
    """Let a run have asked for a sweep of these parameters."""

    def ask(info):
        info["request"]["sweep"] = list(sweep.items())

    edit_run(run.folder, ask)


def variant(run, step_ms, **parameters):
    """Add the speed of fp32 in a suite with these parameters."""
    given = tuple(parameters.items())
    run.suite = SuiteRef(name="mlp", parameters=given)
    batch = parameters.get("batch_size", 128)
    run.alone("fp32", [step_ms, step_ms], batch=batch)


def sweeps(run):
    runs = load([run.folder])
    summary = summarise(runs.trials)
    return tables(summary, runs)


def test_each_value_stands_against_the_first_in_a_section_of_its_own(run):
    request(run, width=["4097", "4096"])
    # The first measured is the first.
    variant(run, 15.0, width=4097)
    run.alone("amp-fp16", [7.5, 7.5])
    variant(run, 10.0, width=4096)
    run.alone("amp-fp16", [5.0, 5.0])
    runs = load([run.folder])
    sections = compose(material_of(runs)).sections
    _, *titles = sections
    assert titles[:3] == ["Sweeps", "mlp (width=4096)", "mlp (width=4097)"]
    (table,) = sections["Sweeps"].tables
    values = column(table, "width")
    assert values == ["4097", "4097", "4096", "4096"]
    precisions = column(table, "precision")
    assert precisions == ["fp32", "amp-fp16", "fp32", "amp-fp16"]
    changes = column(table, FIRST)
    assert changes == ["first", "first", "0.667", "0.667"]
    *_, last = column(table, "speedup [95 % interval]")
    assert last.startswith("2.000 [")


def test_a_product_is_compared_along_each_parameter_with_the_others_alike(run):
    request(
        run,
        width=["4096", "4097"],
        batch_size=["512", "513"],
    )
    variant(run, 10.0, batch_size=512, width=4096)
    variant(run, 15.0, batch_size=513, width=4096)
    variant(run, 20.0, batch_size=512, width=4097)
    variant(run, 45.0, batch_size=513, width=4097)
    of_width, of_size = sweeps(run)
    assert of_width.title == "Sweep of mlp's width"
    assert of_size.title == "Sweep of mlp's batch_size"
    others = column(of_width, "other parameters")
    assert others == ["batch_size=512", "batch_size=512", "batch_size=513", "batch_size=513"]
    changes = column(of_width, FIRST)
    assert changes == ["first", "2.000", "first", "3.000"]
    sizes = column(of_size, "batch_size")
    assert sizes == ["512", "513", "512", "513"]
    changes = column(of_size, FIRST)
    assert changes == ["first", "1.500", "first", "2.250"]
    assert "batch size" in of_width.headers
    assert "batch size" not in of_size.headers


def test_what_was_only_set_is_no_sweep(run):
    variant(run, 10.0, lr=0.1, width=8)
    variant(run, 10.0, lr=0.1, width=16)
    assert sweeps(run) == []
    request(run, width=["8", "16"])
    assert len(sweeps(run)) == 1


def test_a_single_value_is_no_sweep_and_neither_is_what_was_not_timed(run):
    request(run, width=["8", "16"])
    variant(run, 10.0, width=8)
    run.suite = SuiteRef(
        name="mlp",
        parameters=(("width", 16),),
    )
    run.lost("memory", "fp32", "failed")
    assert sweeps(run) == []


# The scaling table: several devices over one of them, strong and weak.

CPU = replace(GPU, kind="cpu", name="Test CPU")


def measure(run, placement, pace, *techniques, batch=64, processes=2):
    """Add the speed of fp32 in some processes, each of so many samples a second."""
    device = CPU if placement.startswith("cpu") else GPU
    run.device = replace(device, placement=placement)
    step_ms = 1000 * batch / pace
    result = TrialResult(
        arm="fp32",
        status="ok",
        row=timed(step_ms, batch),
    )
    for replicate in range(processes):
        trial = run.trial("speed", ["fp32"], batch, replicate=replicate)
        cell = replace(trial.cell, techniques=techniques)
        trial = replace(trial, cell=cell)
        run.add(trial, result)


def scaling_in(*runs):
    """Return the scaling table; None if there is none."""
    loaded = load([run.folder for run in runs])
    summary = summarise(loaded.trials)
    return scaling(summary, summary)


def test_speedup_and_efficiency_over_one_device_at_the_same_batch_and_at_the_same_part(run):
    measure(run, "0", 1000.0)
    measure(run, "0", 800.0, batch=32)
    measure(run, "0+1", 1500.0)
    table = scaling_in(run)
    kinds = column(table, "scaling")
    assert kinds == ["strong", "weak, 32 a device"]
    joint = column(table, "throughput (samples/s)")
    assert joint == ["1,500", "1,500"]
    throughputs = column(table, "its throughput")
    assert throughputs == ["1,000", "800.0"]
    speedups = column(table, "speedup over one [95 % interval]")
    assert speedups == ["1.500 [1.500, 1.500]", "1.875 [1.875, 1.875]"]
    efficiencies = column(table, "efficiency (%)")
    assert efficiencies == ["75.0", "93.8"]


def test_devices_of_several_nodes_are_all_counted(run):
    measure(run, "0", 1000.0)
    measure(run, "0", 800.0, batch=16)
    measure(run, "0+1@2", 2400.0)
    measure(run, "0@2", 1500.0)
    efficiencies = column(scaling_in(run), "efficiency (%)")
    assert efficiencies == ["60.0", "75.0", "75.0"]  # four and two over one, four over a quarter


def test_the_reference_is_one_of_the_devices_in_the_same_run_at_the_same_batch_size(run, tmp_path):
    other = RunBuilder(tmp_path / "other")
    measure(other, "0", 500.0)
    measure(run, "2", 500.0)
    measure(run, "0", 500.0, batch=48)
    measure(run, "0+1", 1500.0)
    assert scaling_in(other, run) is None
    measure(run, "0", 1000.0)
    throughputs = column(scaling_in(other, run), "its throughput")
    assert throughputs == ["1,000"]


def test_what_means_nothing_on_one_device_does_not_keep_it_from_being_compared(run):
    measure(run, "0", 1000.0, "channels-last")
    measure(run, "0", 700.0)
    measure(run, "0+1", 1500.0, "channels-last", "sync-bn")
    throughputs = column(scaling_in(run), "its throughput")
    assert throughputs == ["1,000"]


def test_on_a_cpu_there_is_no_efficiency_and_with_one_process_no_interval(run):
    measure(run, "cpu", 1000.0, processes=1)
    measure(run, "cpu+cpu", 900.0, "sync-bn", processes=1)
    table = scaling_in(run)
    (row,) = lines(table)
    assert row["devices"] == "Test CPU (cpu+cpu)"
    assert row["one device"] == "cpu"
    assert row["speedup over one [95 % interval]"] == "0.900"
    assert row["efficiency (%)"] == "–"
