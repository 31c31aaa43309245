"""A/A noise, what ran, and notes on trials."""

import math
from dataclasses import replace

import pytest

from bench.phases.speed.report import how_measured
from bench.report.analysis.summary import summarise, without_unsupported
from bench.report.reading.load import load
from bench.report.tables.diagnostics import (
    LONGEST,
    failures,
    machines,
    not_measured,
    notes,
    warnings,
)
from bench.results.records import Operations
from tests.report.builders import GPU, RunBuilder, timed, write_report
from tests.report.fleet import edit_run
from tests.report.tables.lines import column


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")


def test_a_small_gain_is_faster_above_the_noise_and_not_below_it(run):
    run.speed(speedups=[1.006, 1.0062, 1.0058, 1.006, 1.006] * 2)
    run.floor([3.0, 2.0, 1.0], status="invalid")
    row = run.row()
    assert row["speed_verdict"] == "SAME"  # its noise is assumed
    assert math.isnan(row["noise_ratio"])
    run.floor([1.0002, 0.9998] * 5)
    assert run.row()["speed_verdict"] == "FASTER"
    run.floor([1.02, 0.97, 1.01])
    assert run.row()["speed_verdict"] == "SAME"


def test_what_ran_and_how_it_was_timed_are_a_table(run):
    computed = Operations(compute_dtypes="float32:100%", flops_per_step=2e9)
    run.result("speed", "fp32", operations=computed, row=timed(10.0, 128, rounds=30))
    measured = how_measured(run.summary())
    assert column(measured, "computed in") == ["float32:100%"]
    assert column(measured, "rounds") == ["30"]


def test_processes_with_equal_notes_share_a_row(tmp_path):
    run = RunBuilder(tmp_path / "run", target_ci=0.01)
    for replicate in range(3):
        for name in ("fp32", "amp-bf16"):
            speed = timed(4.0, 128, steady=name == "fp32")
            run.result("speed", name, replicate=replicate, status="unconverged", row=speed)
    table = notes(load([run.folder]).trials)
    assert column(table, "status") == ["unconverged", "unconverged", "not steady"]
    assert column(table, "precision") == ["fp32", "amp-bf16", "amp-bf16"]
    assert column(table, "trials") == ["3", "3", "3"]


def test_what_happened_in_a_phase_that_went_well_is_among_the_notes_and_its_result_is_not(run):
    run.memory("fp32", 100)
    trials = load([run.folder]).trials
    assert notes(trials) is None
    happened = trials.assign(detail="computed 90 % of its products in float32")
    assert column(notes(happened), "status") == ["ok"]
    result = happened.assign(phase="fit")
    assert notes(result) is None


def test_variables_that_may_change_figures_are_told_of_the_machines_that_had_some(run):
    run.memory("fp32", 100)
    header = "environment variables"
    hosts, _ = machines(load([run.folder]).runs)
    assert header not in hosts.headers
    variables = ["CUDA_LAUNCH_BLOCKING=1", "MKL_X=2"]
    edit_run(run.folder, lambda info: info["environment"].update(variables=variables))
    hosts, _ = machines(load([run.folder]).runs)
    assert column(hosts, header) == ["CUDA_LAUNCH_BLOCKING=1, MKL_X=2"]


def test_warnings_name_their_run_where_there_are_several(tmp_path):
    for name in ("a", "b"):
        RunBuilder(tmp_path / name).memory("fp32", 100)
        edit_run(tmp_path / name, lambda run: run.update(warnings=["The GPU is shared."]))
    runs = load([tmp_path]).runs
    assert warnings(runs[:1]) == ["The GPU is shared."]
    assert warnings(runs) == [
        "a: The GPU is shared.",
        "b: The GPU is shared.",
    ]


def test_what_failed_is_a_line_and_what_does_not_fit_or_is_not_supported_is_none(run):
    for phase in ("memory", "train"):
        run.lost(phase, "bf16", "failed", "odd")
    run.lost("memory", "fp16", "oom")
    run.lost("memory", "fp8-tensorwise", "unsupported")
    run.lost("memory", "amp-fp16", "timeout")
    assert failures(load([run.folder])) == [
        "mlp on Test 1: bf16 failed (memory, train): odd",
        "mlp on Test 1: amp-fp16 timeout (memory)",
    ]
    page = write_report([run.folder], run.folder, figures="none")
    head = page.with_name("report.md").read_text()
    assert "\n- mlp on Test 1: amp-fp16 timeout (memory)\n" in head


NO_LAYER = "converts none of the model's linear layers (fc: 64 to 10, not multiples of 16)"


def sentences_on(*builders):
    """What could not be measured: once, whatever the number of suites and batch sizes."""
    runs = load([run.folder for run in builders])
    return not_measured(summarise(runs.trials), runs)


def test_what_is_unsupported_is_said_once_and_what_did_not_fit_from_which_batch_on(run):
    run.speed()
    for batch in (64, 128):
        run.lost("speed", "tf32", "unsupported", "no TF32", batch=batch)
    for batch in (512, 1024):
        for name in ("fp32", "amp-bf16"):
            run.lost("memory", name, "oom", batch=batch)
    assert sentences_on(run) == [
        "tf32 (speed): no TF32.",
        "mlp on Test 1, out of memory: fp32 from batch 512, amp-bf16 from batch 512.",
    ]


def test_only_rows_that_nothing_was_measured_of_leave_the_tables(run):
    run.speed().memory("amp-fp16", 60)
    for name in ("tf32", "amp-fp16"):
        run.lost("speed", name, "unsupported")
    run.lost("speed", "fp8-tensorwise", "unsupported", batch=64)
    kept = without_unsupported(run.summary())
    by_batch = kept.groupby("batch_size")["precision"]
    assert by_batch.agg(set).to_dict() == {
        128: {"amp-bf16", "amp-fp16", "fp32"},
        64: {"fp8-tensorwise"},  # or its batch size would have no row
    }


@pytest.mark.parametrize(
    ("names", "detail", "expected"),
    [
        (["fp16", "bf16"], NO_LAYER, f"fp16, bf16 (memory): {NO_LAYER}."),
        (["tf32"], "", "tf32 (memory): unsupported."),
        (["bf16"], "layer " * 100, f"bf16 (memory): {'layer ' * (LONGEST // 6)}…."),
    ],
)
def test_a_reason_is_said_once_without_the_precisions_name_at_its_head_and_not_longer_than_a_line(
    run, names, detail, expected
):
    run.speed()
    for name in names:
        reason = f"{name} {detail}" if detail else ""
        run.lost("memory", name, "unsupported", reason)
    assert sentences_on(run) == [expected]


def test_a_reason_that_holds_somewhere_names_the_phases_the_suite_and_the_device(tmp_path):
    small = RunBuilder(tmp_path / "mlp", suite="mlp").speed()
    large = RunBuilder(tmp_path / "vit", suite="vit").speed()
    old = RunBuilder(tmp_path / "old", device=replace(GPU, name="Tesla V100"))
    old.lost("speed", "tf32", "unsupported", "tf32 needs Ampere or later")
    assert sentences_on(old) == ["tf32: needs Ampere or later."]
    assert sentences_on(small, old) == ["tf32 (V100): needs Ampere or later."]
    for name in ("fp32", "amp-bf16"):
        small.lost("energy", name, "unsupported", "NVML does not start")
    assert sentences_on(small, large, old) == [
        "fp32, amp-bf16 (energy; mlp; Test 1): NVML does not start.",
        "tf32 (speed; mlp; V100): needs Ampere or later.",
    ]
