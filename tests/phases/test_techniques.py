"""Techniques through the phases, in this process, and from the command line to the rows.

Compiling is done before anything is observed or timed, and told apart, in every phase that times.
"""

import itertools
import re
import time
from dataclasses import replace

import pytest
import torch

from bench.cli.parser import parse
from bench.data.transfer import prefetched
from bench.phases.train import measure as train
from bench.results.records import EpochResult, Progress
from bench.spec.errors import UsageError
from bench.spec.techniques import Techniques
from bench.training import techniques
from bench.training.arms import TrainingRunner
from bench.training.techniques import compilations
from tests.conftest import call
from tests.devices.fake_nvml import FakeGpu
from tests.phases.conftest import install_gpus, of_kind, result_of, run_phase, shorten_energy
from tests.report.builders import text_of
from tests.rows import trial_rows
from tests.training.conftest import IMAGES, batches, compiled_s, layers, make, norms, state


@pytest.mark.parametrize("phase", ["fit", "memory", "speed", "train", "numerics", "inference"])
def test_every_phase_builds_its_arms_with_the_cells_techniques(tiny_trial, cpu, built, phase):
    names = ("channels-last", "fused-optimizer", "grad-accumulation=2")
    result = result_of(run_phase(tiny_trial, cpu, phase, techniques=names))
    assert result.status in ("ok", "unconverged")
    assert set(built) == {Techniques(channels_last=True, fused_optimizer=True, grad_accumulation=2)}
    assert built
    assert result.compile_s is None


def test_training_with_a_prefetcher_is_the_same_training_fed_by_it(tiny_trial, cpu, monkeypatch):
    sources = []

    def kept(source, *given):
        sources.append(source)
        return prefetched(source, *given)

    monkeypatch.setattr(train, "prefetched", kept)
    losses = []
    for names in ((), ("prefetcher",)):
        sent = run_phase(tiny_trial, cpu, "train", techniques=names, epochs=2)
        losses.append([epoch.train_loss for epoch in of_kind(EpochResult, sent)])
    assert losses[0] == losses[1]
    assert len(sources) == 2  # one an epoch
    for source in sources:
        assert next(source, None) is None


CPU = ("--suite", "tiny.py", "--gpus", "cpu", "--batch-sizes", "4", "--quick", "--out", "run")


@pytest.mark.parametrize("more", [(), ("--ladder",)])
def test_a_batch_that_cannot_be_cut_evenly_is_refused_before_anything_runs(
    tmp_path, tiny_file, more
):
    done = call(*CPU, *more, "--techniques", "grad-accumulation=3", cwd=tmp_path)
    assert done.returncode == 2
    assert "The batch size 4 cannot be divided into 3 equal parts" in done.stderr
    assert "multiples of 3" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("compiled", "There is no technique 'compiled'. Did you mean 'compile'?"),
        ("grad-accumulation", "takes the number of parts of a batch, above 1"),
        ("channels-last=2", "is given without a value"),
        ("compile=fast", "alone, or with one of reduce-overhead, max-autotune"),
        (
            "grad-accumulation=2,grad-accumulation=4",
            "grad-accumulation=2 and grad-accumulation=4 say two things",
        ),
    ],
)
def test_techniques_that_mean_nothing_get_a_sentence(words, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse(["--suite", "mlp", f"--techniques={words}"])


def test_techniques_are_brought_into_one_order():
    options = parse(["--suite", "mlp", "--techniques", "compile, set-to-none"])
    assert options.techniques == ("set-to-none", "compile")


@pytest.fixture
def compiling_here():
    """A process that compiled something leaves no trace in the tests after it."""
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiling_here")
def test_each_arm_compiles_from_an_empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for precision in ("fp32", "amp-bf16"):
        compiled_s(make(precision, techniques=Techniques(compile=True), model=norms), IMAGES, 8)
    caches = [folder for folder in tmp_path.glob("tmp*") if any(folder.rglob("*.so"))]
    assert len(caches) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("compiling_here")
def test_compiling_is_timed_apart_and_learns_nothing():
    plain, arm = make(model=norms), make(techniques=Techniques(compile=True), model=norms)
    before, random_state = state(arm), torch.get_rng_state()
    assert compiled_s(arm, IMAGES, 8) > 0.1
    assert torch.equal(state(arm), before)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(weight.grad is None for weight in arm.model.parameters())
    assert compiled_s(plain, IMAGES, 8) is None
    known = compilations()
    losses = [[speed_step(runner, batch).item() for batch in batches()] for runner in (plain, arm)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    torch.testing.assert_close(state(arm), state(plain), rtol=1e-4, atol=1e-4)
    assert compilations() == known  # all of it was in compile_s
    inputs, targets = batches(1)[0]
    speed_step(arm, (inputs[:4], targets[:4]))
    assert compilations() != known


def speed_step(arm, batch):
    runner = TrainingRunner("", arm, itertools.repeat(batch))
    runner.run_steps(1)
    return runner.loss


@pytest.mark.slow
def test_a_compiled_run_has_its_compile_time_in_rows_and_report(tmp_path, tiny_file):
    words = ("--precisions", "fp32,amp-bf16", "--phases", "speed", "--time-budget", "0.1")
    call(*CPU, *words, "--techniques", "compile", cwd=tmp_path)
    trials = trial_rows(tmp_path / "run")
    assert [row["status"] in ("ok", "unconverged") for row in trials] == [True, True]
    for row in trials:
        assert float(row["compile_s"]) > 0
        assert row["compute_dtypes"]  # seen in a step that is not compiled
    assert "compiling (s)" in text_of(tmp_path / "reports" / "run" / "report.html")


def test_a_step_is_observed_without_compiled_code():
    def compiled_code(_inputs):
        pytest.fail("compiled code was observed")

    arm = replace(make(model=layers), forward=compiled_code)
    TrainingRunner("", arm, iter(batches())).observable().run_steps(1)
    assert arm.taken.count == 1


# Compiling.

COMPILING_S = 0.2


@pytest.fixture
def run(monkeypatch, tiny_trial, cpu):
    """Run a phase quickly, with a GPU whose energy is measured; return its result."""
    shorten_energy(monkeypatch)
    install_gpus(monkeypatch, FakeGpu("GPU-a", power_w=100.0, energy_tick_s=0.01))
    device = replace(cpu, uuid="GPU-a")

    def go(phase, **more):
        return result_of(run_phase(tiny_trial, device, phase, **more))

    return go


@pytest.fixture
def compiler(monkeypatch):
    """A compiler that takes its time at each new shape; keeps when it was called."""
    monkeypatch.setattr(techniques, "load_compiler", lambda kind: None)
    sent, during = [], []
    # The number of compilations, as torch would count them.
    for module in ("training.arms", "phases.speed.paired", "phases.energy.measure"):
        monkeypatch.setattr(f"bench.{module}.compilations", lambda: len(during))

    def compiled(model, mode=None, *, one_shape=True):
        seen = set()

        def forward(inputs):
            if inputs.shape not in seen:
                seen.add(inputs.shape)
                *_, last = of_kind(Progress, sent)
                during.append(last.text)
                time.sleep(COMPILING_S)
            return model(inputs)

        return forward

    monkeypatch.setattr("bench.training.step.compiled", compiled)
    return sent, during


@pytest.mark.parametrize(
    ("phase", "shapes"), [("speed", 1), ("energy", 1), ("train", 1), ("inference", 2)]
)
def test_all_that_is_compiled_is_compiled_first_and_told_apart(run, compiler, phase, shapes):
    sent, during = compiler
    result = run(phase, sent=sent, techniques=("compile",))
    assert result.status in ("ok", "unconverged")
    assert "recompiled" not in result.detail
    assert during == ["fp32: compiling"] * shapes
    assert result.compile_s > 0.8 * shapes * COMPILING_S


RECOMPILED = "recompiled while energy was measured, so compiling is in it"


@pytest.mark.parametrize(
    ("phase", "status", "detail"),
    [("speed", "ok", ""), ("inference", "ok", "recompiled"), ("energy", "invalid", RECOMPILED)],
)
def test_what_is_compiled_while_timing_is_named(run, monkeypatch, phase, status, detail):
    looks = itertools.count()
    for module in ("speed.paired", "energy.measure"):
        monkeypatch.setattr(f"bench.phases.{module}.compilations", lambda: next(looks))
    result = run(phase)
    assert (result.status, result.detail) == (status, detail)
    if phase == "speed":
        assert result.row.disturbance == "recompiled"
    assert result.compile_s is None


def test_a_compiler_that_is_missing_is_the_reason(monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    techniques.load_compiler.cache_clear()
    with techniques.fresh_compiler_cache(), pytest.raises(Exception) as raised:  # noqa: PT011  # of torch's own class
        make(techniques=Techniques(compile=True))
    assert "no-such-compiler" in techniques.refused(raised.value)
