"""The explain phase on small suites: what it sends, and which causes are planted and found."""

import re
import time
from dataclasses import asdict, dataclass, replace
from functools import partial

import pandas as pd
import pytest
import torch
from torch import nn

from bench.phases.explain import Explained
from bench.phases.explain import measure as explain
from bench.phases.explain.reasons import explanations
from bench.phases.explain.trace import CLASSES
from bench.report.reading.load import CELL
from bench.results.records import TrialResult
from bench.spec.data_source import DataSource
from bench.spec.own_modules import ROOT
from bench.spec.suite import Data
from tests.conftest import call
from tests.devices.fake_nvml import FakeGpu
from tests.phases.conftest import install_gpus, of_kind, run_phase, shorten_explain
from tests.report.builders import text_of

EMULATED = {"no gain from products", "casts"}
"""Reasons that hold for any suite on a CPU without instructions for bfloat16, and for a suite of
small products."""


@pytest.fixture(scope="module", autouse=True)
def short():
    """Explain quickly."""
    with pytest.MonkeyPatch.context() as patched:
        shorten_explain(patched)
        yield


def explained(trial, device, *names, **changes):
    """Run the phase; return its figures, its results, and what is made of them."""
    sent = run_phase(trial, device, "explain", *names, **changes)
    figures = of_kind(Explained, sent)
    frame = pd.DataFrame([asdict(row) for row in figures])
    frame = frame.assign(**dict.fromkeys([*CELL, "workload", "where"], "x") | {"placement": "cpu"})
    return figures, of_kind(TrialResult, sent), explanations(frame)


VECTORS = Data(input_shape=(64,), target_shape=(1,), classes=None, steps_per_epoch=2)


def of_batches(trial, device, size):
    """Explain amp-bf16 with batches of a size; return what is made of it."""
    cell = replace(trial.cell, batch_size=size, data=DataSource(kind="synthetic"))
    _, _, (explanation,) = explained(trial, device, "fp32", "amp-bf16", cell=cell)
    return explanation


@pytest.mark.slow
def test_every_arm_is_timed_profiled_and_taken_apart(tiny_trial, cpu):
    figures, results, (explanation,) = explained(tiny_trial, cpu, "fp32", "amp-bf16")
    statuses = {result.arm: result.status for result in results}
    assert statuses == {"fp32": "ok", "amp-bf16": "ok"}
    for precision in statuses:
        of_arm = [row for row in figures if row.precision == precision]
        assert [row.name for row in of_arm if row.kind == "class"] == list(CLASSES)
        assert "operator" in {row.kind for row in of_arm}
    assert explanation.arm.ms["casts and layout"] > explanation.baseline.ms["casts and layout"]


def test_one_precision_alone_is_explained_without_a_comparison(tiny_trial, cpu):
    figures, results, explanation = explained(tiny_trial, cpu, "fp32")
    assert (len(results), explanation) == (1, [])
    assert {row.kind for row in figures} == {"step", "class", "operator", "peak", "held"}


@pytest.mark.slow
def test_a_model_that_cannot_be_observed_is_explained_as_far_as_it_goes(
    tiny_trial, cpu, monkeypatch
):
    def refuse(*_):
        raise RuntimeError("no such thing under a dispatch mode")

    monkeypatch.setattr(explain.PeakHolders, "__torch_dispatch__", refuse)
    figures, results, (explanation,) = explained(tiny_trial, cpu, "fp32", "amp-bf16")
    assert {result.status for result in results} == {"ok"}
    assert explanation.speedup > 0
    assert not [row for row in figures if row.kind == "held"]


class Elementwise(nn.Module):
    def forward(self, inputs):
        for _ in range(12):
            inputs = (inputs * 1.01 + 0.1).sigmoid()
        return inputs


class Alternating(nn.Module):
    """A product between many changes of type."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(512, 128)

    def forward(self, inputs):
        narrow = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        for _ in range(40):
            inputs = inputs.to(narrow).float()
        return self.out(inputs)


class Missed(nn.Module):
    """Two products, one of which turns autocast off."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        with torch.autocast("cpu", enabled=False):
            return self.second(hidden.float())


class Expanded(nn.Module):
    """A small table that is expanded over the batch: a view in fp32, a copy under autocast."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 512, 512))

    def forward(self, inputs):
        return torch.matmul(inputs[:, None], self.table.expand(len(inputs), -1, -1))


class Spectrum(nn.Module):
    """A Fourier transform, which is computed in fp32, between two products."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, inputs):
        return self.second(torch.fft.ifft(torch.fft.fft(self.first(inputs).float())).real)


class Rows(nn.Module):
    """Many weights, of which a batch uses few."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(40_000, 64), nn.Linear(64, 64)

    def forward(self, inputs):
        return self.out(self.table(inputs.abs().long()))


class Repeated(nn.Module):
    """A product that autocast has computed many times: slower in bf16, on whatever processor."""

    def __init__(self):
        super().__init__()
        self.product = nn.Linear(512, 512)

    def forward(self, inputs):
        times = 12 if torch.is_autocast_enabled("cpu") else 1
        return sum(self.product(inputs) for _ in range(times))


@dataclass(frozen=True)
class Planted:
    """A suite that has one cause."""

    model: object
    batch: int = 128
    # Small enough for a loss that stays finite, however many steps.
    optimizer: object = partial(torch.optim.SGD, lr=1e-4)


PLANTED = {
    "memory-bound": Planted(
        lambda _data: nn.Sequential(Elementwise(), nn.Linear(512, 8)), batch=1024
    ),
    "left in fp32": Planted(lambda _data: Missed()),
    "casts": Planted(lambda _data: Alternating(), batch=1024),
    "expanded": Planted(lambda _data: Expanded()),
    "left in fp32, between products": Planted(
        lambda _data: nn.Sequential(*(Spectrum() for _ in range(3))), batch=512
    ),
    "optimizer-bound": Planted(
        lambda _data: Rows(), batch=16, optimizer=partial(torch.optim.AdamW, lr=1e-4)
    ),
    "no gain from products": Planted(lambda _data: Repeated()),
}


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_found_and_no_other(cause, tiny_trial, cpu, use_suite):
    planted = PLANTED[cause]
    data = replace(VECTORS, input_shape=(512,))
    use_suite(planted.model, data=data, loss=Summed, optimizer=planted.optimizer)
    explanation = of_batches(tiny_trial, cpu, planted.batch)
    fired = {reason.name for reason in explanation.reasons}
    rule = cause.partition(",")[0]
    assert rule in fired, explanation
    assert fired - EMULATED - {rule} == set()


class Summed(nn.Module):
    """A loss of any outputs."""

    def forward(self, outputs, _targets):
        return outputs.float().square().mean()


IN_OWN_STEPS = {
    "expanded": (PLANTED["expanded"].model, 64, 1, "_to_copy in Expanded"),
    "left in fp32": (PLANTED["left in fp32, between products"].model, 512, 1, "_fft"),
    "casts": (
        lambda _data: nn.Linear(512, 4096),
        64,
        4,
        "_to_copy in Linear 4096x512 bfloat16 (4 times)",
    ),
}
"""The model, the batch size, the parts of a batch that are accumulated, and what is named."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", IN_OWN_STEPS)
def test_a_cause_in_a_step_of_ones_own_is_named(rule, tiny_trial, cpu, use_suite):
    model, batch, parts, named = IN_OWN_STEPS[rule]

    def step(training, samples):
        losses = []
        for part in samples[0].chunk(parts):
            with training.autocast():
                losses.append(training.model(part).float().square().mean())
        loss = sum(losses)
        training.update(loss)
        return loss

    def batches(_split, batch_size, _seed):
        return [(torch.ones(batch_size, 512), torch.ones(batch_size, 1))] * 2

    use_suite(model, batches=batches, step=step)
    explanation = of_batches(tiny_trial, cpu, batch)
    sentences = {reason.name: reason.sentence for reason in explanation.reasons}
    assert rule in sentences
    assert named in sentences[rule]


@pytest.mark.slow
def test_a_loader_that_waits_is_found(tiny_trial, cpu, monkeypatch):
    class Sleeping:
        def train(self, _epoch):
            while True:
                time.sleep(0.01)
                yield torch.ones(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)

    monkeypatch.setattr(explain, "is_synthetic", lambda *_: False)
    monkeypatch.setattr(explain.Context, "open_batches", lambda _self: Sleeping())
    _, _, (explanation,) = explained(tiny_trial, cpu, "fp32", "amp-bf16")
    assert "loader" in {reason.name for reason in explanation.reasons}


@pytest.mark.slow
def test_what_disturbed_an_explanation_is_its_rows_doubt(tiny_trial, cpu, monkeypatch):
    install_gpus(monkeypatch, FakeGpu("GPU-a", reasons=0x20))
    gpu = replace(cpu, kind="cuda", uuid="GPU-a")
    figures, results, _ = explained(tiny_trial, gpu, "fp32", "amp-bf16")
    assert [row for row in figures if row.kind == "class"]
    for result in results:
        assert result.status == "invalid"
        assert result.detail.startswith("thermal slowdown for ")


HEALTHY = {
    "perceptron": lambda: nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
    ),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3),
    ),
    # with dropout torch's attention on a CPU is computed in fp32, which is a cause
    "transformer": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 16)),
        nn.TransformerEncoderLayer(16, 2, 64, dropout=0.0, batch_first=True),
        nn.GELU(),
    ),
    "recurrent": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 16)), nn.LSTM(16, 32, batch_first=True), Last()
    ),
    "video": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4, 4)), nn.Conv3d(1, 16, 3), nn.ReLU(), nn.Flatten()
    ),
    "autoencoder": lambda: nn.Sequential(
        nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 64), nn.Sigmoid()
    ),
}
STRUCTURAL = {
    "left in fp32",
    "expanded",
    "workspace",
    "outside tensors",
    "skipped steps",
    "communication",
    "unknown",
}
"""The rules whose causes these models do not have, however fast or busy the machine is."""


class Last(nn.Module):
    """The outputs of a recurrent network, without its state."""

    def forward(self, outputs):
        return outputs[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_has_none_of_the_causes_that_are_built_in(name, tiny_trial, cpu, use_suite):
    use_suite(lambda _data: HEALTHY[name](), data=VECTORS, loss=Summed)
    explanation = of_batches(tiny_trial, cpu, 256)
    assert {reason.name for reason in explanation.reasons} & STRUCTURAL == set()


@pytest.mark.slow
def test_an_optimizer_that_multiplies_in_16_bits_is_no_fp32_and_has_no_fused_kernel(
    tiny_trial, cpu, use_suite
):
    """Muon multiplies in bfloat16 whatever the precision, and torch has no fused one."""

    def optimizers(model):
        matrices = [weight for weight in model.parameters() if weight.ndim == 2]
        others = [weight for weight in model.parameters() if weight.ndim != 2]
        return {"muon": torch.optim.Muon(matrices), "rest": torch.optim.AdamW(others)}

    model = HEALTHY["perceptron"]
    use_suite(lambda _data: model(), data=VECTORS, loss=Summed, optimizer=optimizers)
    explanation = of_batches(tiny_trial, cpu, 4)
    names = {reason.name for reason in explanation.reasons}
    assert "optimizer-bound" in names
    assert "left in fp32" not in names
    assert explanation.techniques == []


@pytest.mark.slow
def test_devices_that_exchange_many_gradients_are_slowed_by_a_collective_that_is_named(tmp_path):
    suite = str(ROOT / "perf" / "planted_causes.py")
    words = ["--set", "cause=weights", "--gpus", "cpu+cpu", "--batch-sizes", "4", "--out", "out"]
    done = call("explain", "--suite", suite, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Communication between the devices takes .* gloo:all_reduce", done.stdout)
    (page,) = (tmp_path / "reports").glob("*/report.html")
    assert "Communication between the devices takes" in text_of(page)
