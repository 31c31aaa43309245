"""Six ways to get a training of one's own wrong: each is one sentence and a row, and nothing else is lost."""

import json

import pytest

SUITE = """
from types import SimpleNamespace

import torch
from torch import nn

from bench.spec import Quality, Suite


def suite(way="none"):
    def batches(split, batch_size, seed):
        inputs = torch.ones(batch_size, 4)
        held = SimpleNamespace(targets=torch.ones(batch_size, 1))
        return iter([{"x": inputs, "held": held}] * (1 if way == "one batch" else 3))

    def loss(model, batch):
        errors = (model(batch["inputs" if way == "key" else "x"]).float() - 1).square()
        if way == "cpu":
            errors = errors + batch["held"].targets
        return errors.mean(dim=1) if way == "shape" else errors.mean()

    def step(training, batch):
        for optimizer in training.optimizers.values():
            optimizer.zero_grad()
            last = loss(training.model, batch)
            last.backward()
            optimizer.step()
        return last

    return Suite(
        name="wrong",
        title="wrong",
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)),
        batches=batches,
        loss=loss,
        step=step if way == "scaler" else None,
        optimizer=lambda model: [torch.optim.SGD(layer.parameters(), 0.1) for layer in model],
        evaluate=lambda model, batches: {"f1": float("nan") if way == "nan" else 1.0},
        quality=Quality(name="f1", better="more", margin=0.01),
        batch_size=4,
    )
"""
WAYS = {
    "none": ("ok", ""),
    "key": ("failed", "KeyError: 'inputs' (wrong.py:"),
    "cpu": ("failed", "on the same device"),
    "scaler": ("unsupported", "the step calls an optimizer's .step() itself, and amp-fp16 scales losses"),
    "one batch": ("failed", "batches('train', 4, 0) ended after 1 of the 2 batches that an epoch needs."),
    "shape": ("failed", "has shape (4,), and must be one number, such as its mean."),
    "nan": ("nonfinite", "evaluate's figure 'f1' was NaN or infinite in epoch 1"),
}


@pytest.fixture(scope="module")
def wrong(host):
    """A machine on which every way was tried in two precisions, in one run."""
    server = host("A100")
    (server.folder / "wrong.py").write_text(SUITE)
    words = ("--sweep", f"way={','.join(WAYS)}", "--precisions", "fp32,amp-fp16", "--phases", "train", "--epochs", 1)
    server.run("--suite", "wrong.py", *words, "--seeds", 0, "--out", "out", code=1)
    return {(json.loads(row["parameters"])["way"], row["precision"]): row for row in server.rows("out")}


@pytest.mark.slow
@pytest.mark.xdist_group("wrong")
@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_one_sentence_and_a_row_and_nothing_else_is_lost(way, wrong):
    status, sentence = WAYS[way]
    row = wrong[way, "amp-fp16"]
    assert (row["status"], sentence in row["detail"]) == (status, True), row["detail"]
    assert wrong[way, "fp32"]["status"] == ("ok" if way == "scaler" else status)
