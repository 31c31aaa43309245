"""The examples of trainings of one's own: each runs, and its losses in fp32 are those of a plain loop."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.data.batches import SuiteBatches
from bench.planning import suite_registry
from bench.spec.precisions import PRECISIONS
from bench.training.step import build_arm, seed_all
from tests.conftest import call
from tests.rows import trial_rows

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(ROOT.glob("docs/examples/*.py"))
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=[pytest.mark.slow] * (file.stem in ("detection", "contrastive")))
        for file in EXAMPLES
        if file.stem != "gan"  # it has a step of its own, and no one loss
    ],
    ids=lambda file: file.stem,
)
def test_the_losses_of_an_example_in_fp32_are_those_of_a_plain_loop(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    suite = suite_registry.load(suite_registry.refer(str(file)))
    data = list(islice(SuiteBatches(suite, batch_size=4, device=CPU, seed=0).train(1), 2))
    seed_all(0)
    expected = of_one_loss(suite, data)
    arm = build_arm(suite, suite.data, PRECISIONS["fp32"], CPU, seed=0)
    assert [arm.step(arm, batch).item() for batch in data] == expected
    assert len(file.read_text().splitlines()) <= 40


def of_one_loss(suite, data):
    model = suite.model().train()
    optimizer, losses = (
        suite.optimizer(model if suite.optimizer_takes_model else model.parameters()),
        [],
    )
    for batch in data:
        optimizer.zero_grad()
        if suite.loss_takes_batch:
            output = suite.loss(model, batch)
            loss = output if isinstance(output, torch.Tensor) else output["loss"]
        else:
            loss = suite.loss()(model(batch[0]), batch[1])
        loss.backward()
        if suite.clip_grad:
            nn.utils.clip_grad_norm_(model.parameters(), suite.clip_grad)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_measured_and_trained_in_two_precisions(file, tmp_path):
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # one of them trains on it
    words = (
        "--precisions",
        "fp32,amp-bf16",
        "--quick",
        "--epochs",
        1,
        "--gpus",
        "cpu",
        "--time-budget",
        0.5,
    )
    done = call("--suite", file, *words, "--batch-sizes", 4, "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = trial_rows(tmp_path / "run")
    statuses = {(row["phase"], row["precision"]): row["status"] for row in trials}
    assert set(statuses) == {(p, a) for p in ("memory", "speed", "train") for a in ("fp32", "amp-bf16")}
    assert set(statuses.values()) <= {"ok", "unconverged"}
