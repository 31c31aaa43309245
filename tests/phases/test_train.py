import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from PIL import Image
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LinearLR

from bench.cli.display import describe_results
from bench.phases.train import measure
from bench.results.records import EpochResult
from bench.spec.data_source import DataSource
from bench.spec.suite import Data, Quality
from tests.arms import arms
from tests.derived import figured
from tests.phases.conftest import of_kind, result_of

IMAGES = {
    "train": {"dark": 6, "light": 6},
    "test": {"dark": 1, "light": 3},
}
DARKEST = {"dark": 10, "light": 150}
STEPS = 2 * 3
"""Of two epochs of these images in batches of 4."""


def paint(root):
    """Write images of 8 × 8 of one colour each, no two of a split alike; return a source."""
    for split, counts in IMAGES.items():
        for label, count in counts.items():
            folder = root / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                level = DARKEST[label] + 10 * number
                image = Image.new("L", (8, 8), level)
                image.save(folder / f"{number}.png")
    return DataSource(
        kind="folder",
        path=str(root / "images"),
        directory=str(root / "kept"),
    )


def layers(data):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(192, 16),
        nn.ReLU(),
        nn.Linear(16, 2),
    )


@pytest.fixture
def train(use_suite, tiny_trial, cpu, tmp_path):
    """Train the suite, usually two layers, in this process; return the epochs and the result."""
    use_suite(layers)
    images = paint(tmp_path)
    cell = replace(tiny_trial.cell, data=images)
    usual = replace(tiny_trial, phase="train", epochs=2, cell=cell)

    def run(checkpoint=None, **changes):
        trial = replace(usual, **changes)
        sent = []
        measure.run(trial, cpu, sent.append, checkpoint)
        rows = of_kind(EpochResult, sent)
        result = result_of(figured(trial, sent))
        return rows, result

    return run


def test_precisions_of_a_seed_see_the_same_batches_and_each_epoch_others(train, use_suite):
    seen = []

    class Recorder(nn.Flatten):
        def forward(self, inputs):
            if self.training:
                seen.append(inputs.clone())
            return super().forward(inputs)

    def batches(name, seed):
        seen.clear()
        train(arms=arms(name), seed=seed)
        return torch.stack(seen[:STEPS])

    def model(data):
        return nn.Sequential(Recorder(), nn.Linear(192, 2))

    data = Data(
        input_shape=(3, 8, 8),
        classes=2,
        crop_padding=2,
        flip=True,
    )
    use_suite(model, data=data)
    plain = batches("fp32", seed=0)
    mixed = batches("amp-bf16", seed=0)
    other = batches("fp32", seed=1)
    assert torch.equal(plain, mixed)
    assert not torch.equal(plain, other)
    first, second = plain.chunk(2)
    assert not torch.equal(first, second)


def test_an_accuracy_that_16_bits_cost_shows_against_that_of_fp32(train, use_suite):
    def close(data):
        layer = nn.Linear(192, 2, bias=False)
        first, second = layer.weight.data
        first.fill_(1.0)
        second.fill_(1.001)  # bfloat16 cannot tell them apart
        return nn.Sequential(nn.Flatten(), layer)

    data = Data(
        input_shape=(3, 8, 8),
        classes=2,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )
    use_suite(close, data=data, optimizer=partial(SGD, lr=0.0))
    _, mixed = train(arms=arms("amp-bf16"))
    _, plain = train(arms=arms("fp32"))
    assert mixed.row.test_accuracy_pct == 25.0
    assert plain.row.test_accuracy_pct == 75.0


def test_a_training_has_its_whole_time_and_the_size_of_its_weights(train):
    (first, last), result = train()
    tests_s = first.test_s + last.test_s
    assert result.row.total_s == pytest.approx(last.elapsed_s + tests_s)
    weights = 192 * 16 + 16 + 16 * 2 + 2
    assert result.row.checkpoint_bytes == 4 * weights  # fp32


def test_a_loss_that_is_not_finite_ends_training_with_its_epochs(train, use_suite):
    use_suite(layers, optimizer=partial(SGD, lr=1e30))
    rows, result = train(epochs=5)
    assert len(rows) == 1
    assert result.status == "nonfinite"
    assert "in epoch 1" in result.detail


def test_a_model_that_answers_nan_after_its_last_step_diverged_and_is_right_about_nothing(
    train, use_suite
):
    class Broken(nn.Flatten):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            return outputs if self.training else outputs * math.nan

    def model(data):
        return nn.Sequential(Broken(), nn.Linear(192, 2))

    use_suite(model)
    rows, result = train()
    assert result.status == "nonfinite"
    assert result.detail == "the test loss became nan in epoch 2"
    assert [row.test_accuracy_pct for row in rows] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("nan", "status"),
    [
        ("f1", "nonfinite"),
        ("precision", "ok"),
    ],
)
def test_only_the_figure_that_is_judged_makes_a_training_nonfinite(train, use_suite, nan, status):
    figures = {"f1": 0.5, "precision": 0.5, nan: math.nan}
    use_suite(
        layers,
        evaluate=lambda model, batches: figures,
        quality=Quality(name="f1", better="more", margin=0.01),
    )
    (row,), result = train(epochs=1)
    assert result.status == status
    assert row.figures[nan] is None


def noise(split, batch_size, seed):
    for _ in range(2):
        inputs = torch.randn(batch_size, 8)
        targets = torch.randint(4, (batch_size,))
        yield inputs, targets


def of_tokens(model, batch):
    inputs, targets = batch
    scores = model(inputs).float()
    return nn.functional.cross_entropy(scores.unsqueeze(2), targets.unsqueeze(1))


def of_values(model, batch):
    inputs, targets = batch
    values = model(inputs).float().mean(1)
    return (values - targets).square().mean()


@pytest.mark.parametrize(
    ("loss", "in_nats"),
    [
        (of_tokens, True),
        (of_values, False),
    ],
)
def test_whether_a_loss_is_in_nats_is_seen_in_it(train, use_suite, loss, in_nats):
    use_suite(
        lambda: nn.Linear(8, 4),
        batches=noise,
        loss=loss,
    )
    _, result = train(epochs=1)
    assert (result.row.test_nats is not None) == in_nats
    assert result.row.regression != in_nats


def test_a_finished_checkpoint_is_reported_again_without_training(train, tmp_path):
    path = tmp_path / "checkpoints" / "a.pt"
    rows, result = train(checkpoint=path)
    again, same = train(checkpoint=path)
    assert again == rows  # with their times
    assert same.row == result.row


def test_a_checkpoint_that_cannot_be_read_is_told_and_training_begins_anew(train, tmp_path):
    path = tmp_path / "a.pt"
    rows, _ = train(checkpoint=path)
    path.write_bytes(b"PK half a file")
    again, result = train(checkpoint=path)
    for row, before in zip(again, rows, strict=True):
        assert row.train_loss == before.train_loss
    assert result.status == "ok"
    assert "could not be read, so training began anew" in result.detail
    assert result.detail in describe_results("train", [result])
    _, result = train(checkpoint=path)
    assert result.detail == ""  # for now it can be read


def test_a_checkpoint_of_another_trial_is_not_gone_on_with(train, tmp_path):
    path = tmp_path / "a.pt"
    train(checkpoint=path)
    rows, _ = train(checkpoint=path, seed=1)
    assert [row.seed for row in rows] == [1, 1]


def test_a_schedule_runs_over_all_steps_of_all_epochs(train, use_suite):
    lengths = []

    def falling(optimizer, steps):
        lengths.append(steps)
        return LinearLR(optimizer, 1.0, 0.0, total_iters=steps)

    use_suite(layers, schedule=falling)
    rows, _ = train()
    assert lengths == [STEPS]
    rates = [row.learning_rate for row in rows]
    assert rates == pytest.approx([0.1, 0.05])
