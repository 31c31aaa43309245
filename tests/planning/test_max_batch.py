"""The search for the largest batch, with attempts that answer by a rule instead of starting processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli.display import PlainDisplay
from bench.cli.parser import parse
from bench.devices.cpu import available_bytes
from bench.launch.launcher import Ending
from bench.launch.local import LocalLauncher
from bench.measure.sampler import Sampler
from bench.planning.max_batch import Search, at_any_size, between, fitting_at
from bench.planning.plan import Plan, PreparedData, make_plan
from bench.results.records import Fit, TrialResult
from bench.results.store import Store
from bench.run.execute import Execution
from bench.run.prepare import prepare
from bench.spec.errors import UsageError
from bench.spec.trial import DataSource, Request
from tests.planning.test_plan import REF, SUITE, gpu
from tests.results.test_store import rows

MIB = 2**20


def search(
    trial, most, *, kind="cuda", free=2**40, sample_bytes=MIB, fixed_bytes=0, sample_s=1e-9, wall_s=0.0, other="oom"
):
    """Search where batches up to ``most`` fit; return size, row and the sizes that were really tried."""
    tried = []

    def attempt(one):
        size = one.cell.batch_size
        tried.append(size)
        if size > most:
            return TrialResult(precision="fp32", status=other, detail="too big")
        peak = fixed_bytes + sample_bytes * size
        fit = Fit(fit_peak_bytes=peak, fit_free_bytes=free, fit_step_s=sample_s * size)
        return TrialResult(precision="fp32", status="ok", fit=fit, wall_s=wall_s * size)

    size, found = Search(trial, kind == "cuda", attempt).run()
    return size, found, tried


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 15, 31, 100, 127, 128, 129, 1000, 4097, 65_536])
def test_the_size_found_fits_and_a_sixteenth_more_does_not(tiny_trial, most):
    size, found, tried = search(replace(tiny_trial, phase="fit"), most)
    assert size <= most
    assert most - size <= max(1, size // 16)
    assert (found.status, found.fit.fit_bound) == ("ok", "memory")
    assert len(tried) == len(set(tried)) <= 24
    assert size % 8 == 0 or size < 128
    assert f"{size} fits" in found.detail
    assert "too big" in found.detail


@pytest.mark.parametrize("most", [3, 5, 6, 20, 47, 100, 500, 4097])
@pytest.mark.parametrize("parts", [3, 8, 10])
def test_only_what_can_be_cut_into_the_parts_is_tried(tiny_trial, most, parts):
    cell = replace(tiny_trial.cell, techniques=(f"grad-accumulation={parts}",), batch_size=64)
    size, found, tried = search(replace(tiny_trial, cell=cell), most)
    assert {one % parts for one in tried} == {size % parts} == {0}
    assert len(tried) == len(set(tried))
    if most < parts:
        assert (size, found.status) == (parts, "oom")
    else:
        assert (found.status, size <= most < size + max(parts, size // 16) + 1) == ("ok", True)
    assert size % 8 == 0 or size < 128 * parts


def test_where_not_even_one_sample_fits_the_row_says_so(tiny_trial):
    size, found, tried = search(tiny_trial, 0)
    assert (size, found.status, tried) == (1, "oom", [4, 2, 1])


def test_what_fails_otherwise_is_not_tried_smaller(tiny_trial):
    size, found, tried = search(tiny_trial, 0, other="failed")
    assert (size, found.status, tried) == (4, "failed", [4])
    size, found, _ = search(tiny_trial, 40, other="failed")
    assert (found.status, found.fit.fit_bound) == ("ok", "error")


def test_on_a_cpu_nothing_is_tried_that_would_not_leave_a_fifth_of_memory(tiny_trial):
    free = 1000 * MIB
    size, found, tried = search(tiny_trial, 10**9, kind="cpu", free=free, fixed_bytes=200 * MIB)
    assert max(tried) <= 600
    assert size == max(tried)
    assert size > 600 - 600 // 16 - 8
    assert found.fit.fit_bound == "predicted memory"
    assert search(tiny_trial, 4096, free=free)[1].fit.fit_bound == "memory"  # a GPU says itself when it is full


def test_steps_that_would_take_too_long_end_the_search(tiny_trial):
    size, found, tried = search(tiny_trial, 10**9, kind="cpu", sample_s=0.01)
    assert (size, max(tried), found.fit.fit_bound) == (128, 128, "time")
    size, found, tried = search(tiny_trial, 10**9, wall_s=1.0)
    assert (size, max(tried), found.fit.fit_bound) == (64, 64, "time")


def test_neighbouring_sizes_are_near_enough():
    assert between(1, 2) == between(256, 272) == 0
    assert between(10, 20) == 15
    assert between(1000, 2000) == 1496


def test_sizes_to_measure_at_are_the_common_one_for_all_and_each_ones_own():
    found = fitting_at({"fp32": 96, "amp-bf16": 160, "tf32": 96, "fp16": None})
    assert found == {96: ("fp32", "amp-bf16", "tf32"), 160: ("amp-bf16",)}


def test_a_containers_limit_counts_where_it_is_less_than_the_machines(tmp_path: Path):
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("5000000\n")
    used.write_text("1000000\n")
    assert available_bytes(((str(limit), str(used)),)) == 4_000_000
    limit.write_text("max\n")
    assert available_bytes(((str(limit), str(used)),)) > 4_000_000


def test_max_is_a_batch_size_beside_others_or_alone():
    assert parse(["--suite", "mlp"]).largest_batch is False
    mixed, alone = (parse(["--suite", "mlp", "--batch-sizes", text]) for text in ("64,128,max", "max"))
    assert (mixed.batch_sizes, mixed.largest_batch) == ((64, 128), True)
    assert (alone.batch_sizes, alone.largest_batch) == ((), True)
    with pytest.raises(UsageError, match="not 'most'"):
        parse(["--suite", "mlp", "--batch-sizes", "most"])


def plan(machine, largest=None, **asked):
    data = PreparedData(source=DataSource(kind="synthetic"))
    request = Request(
        suites=(REF,), largest_batch=True, precisions=("fp32", "amp-fp16"), **{"batch_sizes": (), **asked}
    )
    one_gpu = replace(machine, devices=(gpu(energy="counter"),))
    return make_plan(request, {REF: SUITE}, {REF: data}, one_gpu, {REF: 1e9}, largest=largest)


def test_the_plan_looks_first_and_is_made_anew_with_what_was_found(machine):
    first = plan(machine)
    assert [trial.phase for trial in first.trials] == ["fit", "fit", "train", "train"]
    assert first.seconds[0] is None
    assert {trial.cell.batch_size for trial in first.trials if trial.phase == "train"} == {SUITE.batch_size}
    searches = first.only("fit").trials
    found = {(at_any_size(trial.cell), trial.precisions[0]): 96 + 64 * n for n, trial in enumerate(searches)}
    again = plan(machine, found).trials
    at = {(t.phase, t.cell.batch_size): t.precisions for t in again if t.phase in ("speed", "train")}
    assert at == {
        ("speed", 96): ("fp32", "amp-fp16"),
        ("speed", 160): ("amp-fp16",),
        ("train", SUITE.batch_size): ("amp-fp16",),  # the second of two
    }
    assert not [trial for trial in again if trial.phase == "fit"]
    named = plan(machine, found, batch_sizes=(96,)).trials
    assert len({trial.config for trial in named}) == len(named)
    assert {t.cell.batch_size for t in named if t.phase == "train"} == {96}


def test_a_floor_at_the_largest_batch_is_timed_only_where_fp32_fits(machine):
    cell = at_any_size(plan(machine).trials[0].cell)
    again = plan(machine, {(cell, "fp32"): 96, (cell, "amp-fp16"): 160}, phases=("floor", "speed")).trials
    assert {trial.cell.batch_size for trial in again if trial.phase == "floor"} == {96}


class Surveyed:
    """A launcher of this machine, and of suites whose steps nobody counts."""

    def __init__(self, environment):
        self.environment = environment

    def survey(self, gpus):
        return self.environment

    def call(self, target, refs):
        assert target == "bench.training.flops:count_all"
        return dict.fromkeys(ref.name for ref in refs)


def test_the_plan_that_is_made_anew_is_checked_as_the_first_was(machine, tiny_file):
    words = ["--suite", str(tiny_file), "--batch-sizes", "max", "--precisions", "fp32", "--phases", "speed"]
    prepared = prepare(parse([*words, "--techniques", "grad-accumulation=3"]), Surveyed(machine))
    (first,) = prepared.plan.trials  # it begins at 4, which the search makes a multiple
    cell = at_any_size(first.cell)
    again = prepared.replan({(cell, "fp32"): 9})
    assert {(trial.phase, trial.cell.batch_size) for trial in again.trials} == {("speed", 9)}
    with pytest.raises(UsageError, match="10 cannot be divided into 3 equal parts"):
        prepared.replan({(cell, "fp32"): 10})


class Counting:
    """A launcher on which batches up to 20 fit."""

    def __init__(self):
        self.tried = []

    def run(self, trial, device, on_message):
        self.tried.append(trial.cell.batch_size)
        if trial.cell.batch_size > 20:
            return Ending(kind="oom", text="CUDA out of memory")
        fit = Fit(fit_peak_bytes=1, fit_step_s=1e-6)
        on_message(TrialResult(precision=trial.precisions[0], status="ok", fit=fit))
        return Ending(kind="done")


def test_a_search_is_one_row_and_is_read_back_when_resuming(tmp_path, tiny_trial, cpu):
    trial = replace(tiny_trial, phase="fit")
    planned = Plan(trials=(trial,), seconds=(None,))
    for attempts in (True, False):
        launcher = Counting()
        with Store(tmp_path / "run") as store:
            execution = Execution(
                store=store, devices={"cpu": cpu}, launcher=launcher, sampler=Sampler(()), display=PlainDisplay()
            )
            assert execution.run(planned)
            assert execution.largest(planned) == {(at_any_size(trial.cell), "fp32"): 20}
        assert bool(launcher.tried) == attempts
    (row,) = rows(tmp_path / "run", "trials.csv")
    assert (row["phase"], row["batch_size"], row["status"], row["fit_bound"]) == ("fit", "20", "ok", "memory")
    assert "CUDA out of memory" in row["detail"]


def test_an_attempt_trains_in_a_process_and_says_what_it_took(tiny_trial, cpu):
    sent = []
    trial = replace(tiny_trial, phase="fit")
    ending = LocalLauncher().run(trial, cpu, sent.append)
    assert ending.kind == "done", ending.text
    (result,) = (message for message in sent if isinstance(message, TrialResult))
    assert result.fit.fit_peak_bytes > 0
    assert result.fit.fit_free_bytes > result.fit.fit_peak_bytes
    assert result.fit.fit_step_s > 0


def test_sizes_are_multiples_of_8_from_16_times_that_on():
    assert between(127, 137) == 132
    assert between(128, 138) == 136
