"""Why a script is no faster: what is planted in small scripts is found in their own processes, and
named.
"""

from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from bench.phases.explain import Explained
from bench.phases.explain.reasons import explanations
from bench.phases.explain.script import figures_of
from bench.report.reading.load import CELL
from bench.script.launcher import ScriptLauncher
from bench.spec.request import Script
from tests.phases.conftest import of_kind
from tests.script.test_hook import EXAMPLES
from tests.script.test_launcher import CPU, trial
from tests.traces import Trace

START = """
import time
import torch
from torch import nn

class Expanded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 256, 256) / 16)
    def forward(self, inputs):
        return torch.matmul(inputs[:, None], self.table.expand(len(inputs), -1, -1))[:, 0]

class Spectrum(nn.Module):
    def forward(self, inputs):
        return torch.fft.ifft(torch.fft.fft(inputs.float())).real

class Broken(nn.Module):
    def forward(self, inputs):
        return inputs * float("nan" if torch.is_autocast_enabled("cpu") else 1)

def net(part):
    return nn.Sequential(nn.Linear(256, 256), part, nn.Linear(256, 8))

def train(model, parts=1, batch=512, wait_s=0.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 1000
        def __getitem__(self, place):
            time.sleep(wait_s)
            return torch.ones(batch, 256), torch.zeros(batch, dtype=torch.int64)
    for inputs, targets in torch.utils.data.DataLoader(Samples(), batch_size=None):
        for _ in range(parts):
            nn.functional.cross_entropy(model(inputs).float(), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PLANTED = {
    "expanded": ("train(net(Expanded()), batch=64)", "_to_copy in 1 64x256x256 bfloat16"),
    "left in fp32": (
        "train(nn.Sequential(*(net(Spectrum())[:2] for _ in range(3)), nn.Linear(256, 8)))",
        "_fft_c2c in",
    ),
    "loader": ("train(net(nn.ReLU()), wait_s=0.05)", "waits for batches"),
    "casts": (
        "train(nn.Linear(256, 4096), parts=4, batch=8)",
        "_to_copy in Linear 4096x256 bfloat16 (4 times)",
    ),
    "not finite": ("train(net(Broken()))", "is Linear in 0 forward"),
}


@pytest.fixture
def explained(tmp_path, monkeypatch):
    """Return a function that explains a script under the injected autocast: its reasons' sentences
    by their rules.
    """
    monkeypatch.chdir(tmp_path)

    def explained(text):
        Path("train.py").write_text(text)
        arms = (("fp32", ""), ("amp-bf16", ""))
        script = Script(command=("train.py",), arms=arms, warmup=4, inject=True, explain=True)
        asked = trial("fp32", "amp-bf16", phase="explain")
        sent = []
        with closing(ScriptLauncher(script)) as launcher:
            ending = launcher.run(asked, CPU, sent.append)
        assert ending.kind == "done", ending.text
        frame = pd.DataFrame(of_kind(Explained, sent))
        frame[[*CELL, "workload", "where"]] = "x"
        (explanation,) = explanations(frame.assign(placement="cpu"))
        return explanation

    return explained


@pytest.mark.slow
@pytest.mark.parametrize("cause", PLANTED)
def test_a_cause_that_is_planted_in_a_script_is_named(explained, cause):
    text, named = PLANTED[cause]
    explanation = explained(START + text)
    sentences = {reason.name: reason.sentence for reason in explanation.reasons}
    assert named in sentences[cause]


@pytest.mark.slow
def test_modules_of_lightnings_trainer_are_named(explained):
    pytest.importorskip("lightning")
    explanation = explained((EXAMPLES / "lightning_mlp.py").read_text())
    held = set(explanation.baseline.of("held")["name"])
    assert {"parameters", "addmm"} <= held
    products = explanation.baseline.of("operator").query("name == 'aten::addmm'")
    assert all(products["module"] != "")


def figures(*optimizer_ends_us):
    """Return those of a process whose optimizers' steps end at these times; a product follows."""
    trace = Trace()
    for end_us in optimizer_ends_us:
        trace.range("Optimizer.step#SGD.step", end_us - 5, 5)
        trace.op("aten::mm", end_us + 1, 500)
    skipped = [True, False, False, False]
    record = {
        "trace": trace.document(),
        "observed": [],
        "steps": [{"skipped": each} for each in skipped],
    }
    return list(figures_of(record, step_ms=10.0, wait_pct=30.0, length=2, gpu=False))


def test_an_iteration_goes_from_the_end_of_an_optimizers_step_to_that_of_the_next_iteration():
    values = {row["name"]: row["value"] for row in figures(0, 1000, 2000, 3000, 4000)}
    assert values["timed"] == 10.0
    assert values["other products"] == pytest.approx(1.0)
    assert values["skipped"] == 25.0
    assert values["waiting"] == 30.0


def test_a_trace_without_steps_is_refused():
    with pytest.raises(ValueError, match="no step of its optimizers"):
        figures(0)
