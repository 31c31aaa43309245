"""Why a script is no faster: what is planted in small scripts is found in their own processes, and
named.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from bench.phases.explain import Explained
from bench.phases.explain.reasons import explanations
from bench.phases.explain.script import figures_of
from bench.report.reading.load import CELL
from bench.script.launcher import ScriptLauncher
from bench.spec.request import Script
from tests.script.test_hook import EXAMPLES
from tests.script.test_launcher import CPU, trial

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
        sent = []
        with closing(ScriptLauncher(script)) as launcher:
            asked = replace(trial("fp32", "amp-bf16", phase="explain"), silence_s=300.0)
            ending = launcher.run(asked, CPU, sent.append)
        assert ending.kind == "done", ending.text
        frame = pd.DataFrame([message for message in sent if isinstance(message, Explained)])
        frame[[*CELL, "workload", "where"]] = "x"
        (explanation,) = explanations(frame.assign(placement="cpu"))
        return explanation

    return explained


@pytest.mark.slow
@pytest.mark.parametrize("cause", PLANTED)
def test_a_cause_that_is_planted_in_a_script_is_named(explained, cause):
    text, named = PLANTED[cause]
    sentences = {reason.name: reason.sentence for reason in explained(START + text).reasons}
    assert named in sentences[cause]


@pytest.mark.slow
def test_modules_of_lightnings_trainer_are_named(explained):
    pytest.importorskip("lightning")
    explanation = explained((EXAMPLES / "lightning_mlp.py").read_text())
    assert {"parameters", "addmm"} <= set(explanation.baseline.of("held")["name"])
    products = explanation.baseline.of("operator").query("name == 'aten::addmm'")
    assert all(products["module"] != "")


TIMED = {"step_ms": 10.0, "wait_pct": 30.0}


def event(name, category, start_us, time_us):
    span = {"ts": start_us, "dur": time_us, "ph": "X", "tid": 1, "args": {}}
    return {"name": name, "cat": category} | span


def recorded(*optimizer_ends_us):
    """Return a profiled process whose optimizer's steps end at these times; a product follows."""
    events = []
    for end_us in optimizer_ends_us:
        events.append(event("Optimizer.step#SGD.step", "user_annotation", end_us - 5, 5))
        events.append(event("aten::mm", "cpu_op", end_us + 1, 500))
    steps = [{"skipped": True}, *[{"skipped": False}] * 3]
    return {"trace": {"traceEvents": events}, "observed": [], "steps": steps}


def test_an_iteration_goes_from_the_end_of_an_optimizers_step_to_that_of_the_next_iteration():
    rows = figures_of(recorded(0, 1000, 2000, 3000, 4000), **TIMED, length=2, gpu=False)
    values = {row["name"]: row["value"] for row in rows if row["kind"] != "operator"}
    assert values["timed"] == 10.0
    assert values["other products"] == pytest.approx(1.0)
    assert (values["skipped"], values["waiting"]) == (25.0, 30.0)


def test_a_trace_without_steps_is_refused():
    with pytest.raises(ValueError, match="no step of its optimizers"):
        list(figures_of(recorded(0), **TIMED, length=1, gpu=False))
