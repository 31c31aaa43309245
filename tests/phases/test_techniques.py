"""Techniques through the phases, in this process, and from the command line to the rows."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace

import pytest
import torch

from bench.cli.parser import parse
from bench.data.transfer import Prefetcher
from bench.launch.local import LocalLauncher
from bench.phases import fit, paired
from bench.phases.arms import TrainingRunner, compile_s
from bench.planning import suite_registry
from bench.report.reading.load import load
from bench.report.tables import diagnostics
from bench.results.records import Block, EpochResult, TrialResult
from bench.spec.errors import UnsupportedError, UsageError
from bench.spec.precisions import PRECISIONS
from bench.spec.techniques import Techniques
from bench.training.cuda_graphs import WARM_UP, GraphedStep
from bench.training.step import build_arm, leave_gradients
from bench.training.techniques import compilations
from tests import fake_graph
from tests.conftest import call
from tests.phases.run_phase import result_of, run_phase
from tests.report.builders import RunBuilder, timed
from tests.training.conftest import CPU, IMAGES, batches, layers, make, norms, state


@pytest.fixture
def built(monkeypatch):
    """The techniques of every arm that a phase builds."""
    seen = []

    def spy(*given, **asked):
        seen.append(asked["techniques"])
        return build_arm(*given, **asked)

    monkeypatch.setattr("bench.phases.arms.build_arm", spy)
    return seen


@pytest.mark.parametrize("phase", ["fit", "memory", "speed", "train", "numerics", "inference"])
def test_every_phase_builds_its_arms_with_the_cells_techniques(tiny_trial, cpu, built, phase):
    names = ("channels-last", "fused-optimizer", "grad-accumulation=2", "checkpointing")
    result = result_of(run_phase(tiny_trial, cpu, phase, techniques=names))
    assert result.status in ("ok", "unconverged", "invalid")
    assert set(built) == {Techniques(channels_last=True, fused_optimizer=True, grad_accumulation=2, checkpointing=True)}
    assert built
    assert result.compile_s is None


def test_the_search_for_the_largest_batch_captures_before_it_times(tiny_trial, cpu, monkeypatch):
    fake_graph.install(monkeypatch)
    built = []

    def graphed(*given, techniques, **asked):  # as on a GPU, which alone may be asked for it
        arm = build_arm(*given, techniques=replace(techniques, cuda_graphs=False), **asked)
        step = GraphedStep(gradients=lambda *batch: leave_gradients(arm, *batch), device=fake_graph.CUDA)
        built.append(replace(arm, techniques=techniques, graph=step))
        return built[-1]

    monkeypatch.setattr("bench.phases.arms.build_arm", graphed)
    result = result_of(run_phase(tiny_trial, cpu, "fit", techniques=("cuda-graphs",)))
    (arm,) = built
    assert result.status == "ok"
    assert arm.graph.done == WARM_UP
    assert arm.graph.graph.graph.replays == 1 + fit.STEPS  # the one that captures is not timed


def test_training_with_a_prefetcher_is_the_same_training_fed_by_it(tiny_trial, cpu, monkeypatch):
    made = []
    monkeypatch.setattr("bench.data.transfer.Prefetcher", lambda *given: made.append(Prefetcher(*given)) or made[-1])
    plain, ahead = (
        [row for row in run_phase(tiny_trial, cpu, "train", techniques=names, epochs=2) if isinstance(row, EpochResult)]
        for names in ((), ("prefetcher",))
    )
    assert [epoch.train_loss for epoch in ahead] == [epoch.train_loss for epoch in plain]
    assert len(made) == 2  # one an epoch
    assert all(next(one, None) is None for one in made)


def test_a_recompilation_while_timing_voids_the_quad_and_says_so(tiny_trial, cpu, monkeypatch):
    looks = iter([0, 0, 1])  # when timing begins, before the first quad, after it; then never again
    monkeypatch.setattr(paired, "compilations", lambda: next(looks, 1))
    sent = run_phase(tiny_trial, cpu, "speed")
    causes = {message.round: message.discarded for message in sent if isinstance(message, Block)}
    assert causes[0] == "recompiled"
    assert set(causes.values()) == {"recompiled", ""}


def rows(folder):
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


TINY = ("--suite", "tiny.py", "--gpus", "cpu", "--batch-sizes", "4", "--quick", "--time-budget", "0.1")


def test_what_a_suite_cannot_do_ends_its_process_as_unsupported_with_the_reason(tiny_trial, tiny_file, cpu):
    tiny_file.write_text(tiny_file.read_text().replace("optim.SGD(parameters", "optim.RMSprop(parameters"))
    trial = replace(tiny_trial, cell=replace(tiny_trial.cell, techniques=("fused-optimizer",)))
    ending = LocalLauncher().run(trial, cpu, print)
    why = "fused-optimizer needs an optimizer with torch's fused=True, which RMSprop lacks"
    assert (ending.kind, ending.text) == ("unsupported", why)


def test_a_run_with_techniques_is_told_by_them_in_rows_and_report(tmp_path, tiny_file):
    words = (*TINY, "--precisions", "fp32", "--phases", "memory,speed")
    done = call(*words, "--techniques", "prefetcher,channels-last", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "prefetcher changes how batches reach the device in training; memory, speed: measured" in done.stdout
    assert {row["techniques"] for row in rows(tmp_path / "run")} == {"prefetcher+channels-last"}
    assert "tiny (prefetcher+channels-last)" in (tmp_path / "reports" / "run" / "report.md").read_text()


@pytest.mark.parametrize("more", [(), ("--ladder",)])
def test_a_batch_that_cannot_be_cut_evenly_is_refused_before_anything_runs(tmp_path, tiny_file, more):
    done = call(*TINY, *more, "--techniques", "grad-accumulation=3", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "The batch size 4 cannot be divided into 3 equal parts for grad-accumulation." in done.stderr
    assert "multiples of 3" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("compiled", "There is no technique 'compiled'. Did you mean 'compile'?"),
        ("grad-accumulation", "must be a whole number above 1"),
        ("channels-last=2", "takes no value"),
        ("", "There is no technique ''"),
        ("grad-accumulation=2,grad-accumulation=4", "grad-accumulation=2 and grad-accumulation=4 say two things"),
    ],
)
def test_techniques_that_mean_nothing_get_a_sentence(words, said):
    with pytest.raises(UsageError) as error:
        parse(["--suite", "mlp", f"--techniques={words}"])
    assert said in str(error.value)


def test_what_a_device_cannot_do_is_said_before_it_starts_and_takes_no_time(tmp_path, tiny_file):
    dry = call(*TINY, "--techniques", "cuda-graphs", "--phases", "speed,numerics", "--dry-run", cwd=tmp_path)
    assert "Warning: On cpu, speed, numerics will be unsupported: cuda-graphs needs a CUDA device." in dry.stdout
    assert "about 0 s in all" in dry.stdout
    alone = call(*TINY, "--sync-bn", "--dry-run", cwd=tmp_path)
    assert "Warning: On cpu, memory, speed will be unsupported: sync-bn is for devices that train toge" in alone.stdout
    assert "unsupported" not in call(*TINY, "--techniques", "channels-last", "--dry-run", cwd=tmp_path).stdout


def test_techniques_are_listed_and_brought_into_one_order():
    assert parse(["--suite", "mlp", "--techniques", "compile, set-to-none"]).techniques == ("set-to-none", "compile")
    assert parse(["--suite", "mlp"]).techniques == ()
    listed = "\n".join(suite_registry.overview())
    assert "cuda-graphs" in listed
    assert "--techniques" in listed


@pytest.mark.parametrize("devices", [1, 2])
def test_a_suite_that_lightning_trains_takes_no_techniques_before_any_process_is_started(
    tiny_trial, cpu, monkeypatch, devices
):
    suite = replace(suite_registry.load(tiny_trial.cell.suite), trainer="lightning", devices=devices)
    monkeypatch.setattr(suite_registry, "load", lambda ref: suite)
    with pytest.raises(UnsupportedError, match="Lightning's Trainer runs steps of its own"):
        run_phase(tiny_trial, cpu, "train", techniques=("fused-optimizer",))


def test_compile_time_has_a_table_where_there_is_one(tmp_path):
    arms = [TrialResult(precision="fp32", status="ok", speed=timed(10.0, 128), compile_s=time_s) for time_s in (4, 6)]
    run_ = RunBuilder(tmp_path / "run")
    run_.add(run_.trial("memory", ["fp32"], 128), TrialResult(precision="fp32", status="ok"))
    assert diagnostics.compiling(named(run_)) is None
    for replicate, arm in enumerate(arms):
        run_.add(run_.trial("speed", ["fp32"], 128, replicate=replicate), arm)
    table = diagnostics.compiling(named(run_))
    assert table.headers == ["device", "batch size", "precision", "compiling (s)", "processes"]
    assert table.rows == [["somewhere", "128", "fp32", "5.00", "2"]]


def named(built):
    return load([built.folder]).trials.assign(where="somewhere")


@pytest.fixture
def compiling_here():
    """A process that compiled something leaves no trace in the tests after it."""
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiling_here")
def test_compiling_is_timed_apart_and_learns_nothing():
    plain, arm = make(model=norms), make(techniques=Techniques(compile=True), model=norms)
    before, chance = state(arm), torch.get_rng_state()
    spent = compile_s(arm, IMAGES, 8)
    assert spent > 0.1
    assert torch.equal(state(arm), before)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(weight.grad is None for weight in arm.model.parameters())
    assert compile_s(plain, IMAGES, 8) is None
    known = compilations()
    losses = [[speed_step(one, batch).item() for batch in batches()] for one in (plain, arm)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    torch.testing.assert_close(state(arm), state(plain), rtol=1e-4, atol=1e-4)
    assert compilations() == known  # all of it was in compile_s
    recompilations = paired.Recompilations()
    inputs, targets = batches(1)[0]
    speed_step(arm, (inputs[:4], targets[:4]))
    assert [recompilations.cause(), recompilations.cause()] == ["recompiled", ""]


def speed_step(arm, batch):
    runner = TrainingRunner("", arm, itertools.repeat(batch))
    runner.run(1)
    return runner.loss


@pytest.mark.slow
def test_a_compiled_run_has_its_compile_time_in_rows_and_report(tmp_path, tiny_file):
    words = (*TINY, "--precisions", "fp32,amp-bf16", "--phases", "speed")
    call(*words, "--techniques", "compile", "--out", "run", cwd=tmp_path)
    found = rows(tmp_path / "run")
    assert [row["status"] in ("ok", "unconverged", "invalid") for row in found] == [True, True]
    assert all(float(row["compile_s"]) > 0 for row in found)
    assert all(row["compute_dtypes"] for row in found)  # seen in a step that is not compiled
    assert "### Compiling" in (tmp_path / "reports" / "run" / "report.md").read_text()


def test_watching_a_step_is_done_without_compiled_code():
    arm = replace(make(model=layers), forward=lambda inputs: pytest.fail("compiled code was watched"))
    runner = TrainingRunner("", arm, iter(batches()))
    runner.observable().run(1)
    assert arm.taken.count == 1
    assert arm.device == CPU
    assert arm.precision == PRECISIONS["fp32"]
