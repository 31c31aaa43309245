import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from PIL import Image
from torch import nn

from bench.cli.display import describe_results
from bench.phases.train import measure as train
from bench.results.records import EpochResult
from bench.spec.data_source import DataSource
from bench.spec.suite import Data, Quality
from tests.arms import arms
from tests.derived import figured
from tests.devices.fake_nvml import FakeClock
from tests.phases.conftest import of_kind, result_of

IMAGES = {"train": {"dark": 6, "light": 6}, "test": {"dark": 1, "light": 3}}
DARKEST = {"dark": 10, "light": 150}
DATA = Data(input_shape=(3, 8, 8), classes=2, crop_padding=2, flip=True)


def paint(root):
    """Write images of 8 × 8 of one colour each, no two of a split alike; return a source."""
    for split, counts in IMAGES.items():
        for label, count in counts.items():
            folder = root / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                level = DARKEST[label] + 10 * number
                image = Image.new("RGB", (8, 8), (level, level + 5, level + 9))
                image.save(folder / f"{number}.png")
    return DataSource(kind="folder", path=str(root / "images"), directory=str(root / "kept"))


class Recorder(nn.Flatten):
    """Keeps what it is given; its forward passes take time."""

    def __init__(self, seen, clock):
        super().__init__()
        self.seen, self.clock = seen, clock

    def forward(self, inputs):
        self.clock.advance(1.0 if self.training else 60.0)
        self.seen.append((self.training, inputs.clone()))
        return super().forward(inputs)


class Bench:
    """The phase on a suite of the test's own, in this process; ``change`` changes the suite."""

    def __init__(self, use_suite, trial, device, source):
        self.use_suite, self.device, self.seen, self.clock = use_suite, device, [], FakeClock()
        self.trial = replace(trial, phase="train", epochs=2, cell=replace(trial.cell, data=source))
        self.change()

    def change(self, **changes):
        def model(data):
            recorder = Recorder(self.seen, self.clock)
            return nn.Sequential(recorder, nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 2))

        usual = {"data": DATA, "model": model, "optimizer": partial(torch.optim.SGD, lr=0.05)}
        self.use_suite(**{**usual, **changes})

    def run(self, checkpoint=None, **changes):
        """Train; return the epochs and the result. What was seen is of the epochs alone."""
        self.seen.clear()
        messages, counts = [], [0]

        def take(message):
            messages.append(message)
            counts.append(len(self.seen))

        trial = replace(self.trial, **changes)
        train.run(trial, self.device, take, checkpoint)
        del self.seen[counts[-2] :]  # what follows the last epoch is no training
        return of_kind(EpochResult, messages), result_of(figured(trial, messages))


@pytest.fixture
def bench(use_suite, tiny_trial, cpu, tmp_path):
    return Bench(use_suite, tiny_trial, cpu, paint(tmp_path))


def test_precisions_of_a_seed_see_the_same_batches_and_each_epoch_others(bench):
    given = {}
    for seed, name in ((0, "fp32"), (0, "amp-bf16"), (1, "fp32")):
        bench.run(arms=arms(name), seed=seed)
        given[seed, name] = torch.stack([inputs for train, inputs in bench.seen if train])
    assert torch.equal(given[0, "fp32"], given[0, "amp-bf16"])
    assert not torch.equal(given[0, "fp32"], given[1, "fp32"])
    first, second = given[0, "fp32"].chunk(2)
    assert not torch.equal(first, second)


def test_an_accuracy_that_16_bits_cost_shows_against_that_of_fp32(bench):
    def close(data):
        layer = nn.Linear(3, 2, bias=False)
        # bfloat16 cannot tell them apart.
        layer.weight.data = torch.tensor([[1.0] * 3, [1.001] * 3])
        return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), layer)

    data = replace(DATA, mean=(0.0,) * 3, std=(1.0,) * 3)
    bench.change(model=close, data=data, optimizer=partial(torch.optim.SGD, lr=0.0))
    _, mixed = bench.run(arms=arms("amp-bf16"))
    _, plain = bench.run(arms=arms("fp32"))
    assert (mixed.row.test_accuracy_pct, plain.row.test_accuracy_pct) == (25.0, 75.0)


def test_a_training_has_its_whole_time_and_the_size_of_its_weights(bench):
    rows, result = bench.run()
    first, last = rows
    assert result.row.total_s == pytest.approx(last.elapsed_s + first.test_s + last.test_s)
    assert result.row.checkpoint_bytes == 4 * (192 * 16 + 16 + 16 * 2 + 2)  # fp32


def test_a_loss_that_is_not_finite_ends_training_with_its_epochs(bench):
    bench.change(optimizer=partial(torch.optim.SGD, lr=1e30))
    rows, result = bench.run(epochs=5)
    assert len(rows) == 1
    assert result.status == "nonfinite"
    assert "in epoch 1" in result.detail


def test_a_model_that_answers_nan_after_its_last_step_diverged_and_is_right_about_nothing(bench):
    class Broken(nn.Flatten):
        def forward(self, inputs):
            return super().forward(inputs) * (1.0 if self.training else math.nan)

    bench.change(model=lambda data: nn.Sequential(Broken(), nn.Linear(192, 2)))
    rows, result = bench.run()
    assert (result.status, result.detail) == ("nonfinite", "the test loss became nan in epoch 2")
    assert [row.test_accuracy_pct for row in rows] == [0.0, 0.0]


@pytest.mark.parametrize(("nan", "status"), [("f1", "nonfinite"), ("precision", "ok")])
def test_only_the_figure_that_is_judged_makes_a_training_nonfinite(bench, nan, status):
    figures = {"f1": 0.5, "precision": 0.5, nan: math.nan}
    bench.change(
        evaluate=lambda model, batches: figures,
        quality=Quality(name="f1", better="more", margin=0.01),
    )
    (row,), result = bench.run(epochs=1)
    assert result.status == status
    assert row.figures[nan] is None


def noise(split, batch_size, seed):
    for _ in range(2):
        yield torch.randn(batch_size, 8), torch.randint(4, (batch_size,))


def of_tokens(model, batch):
    scores = model(batch[0])[:, :, None].float()
    return nn.functional.cross_entropy(scores, batch[1][:, None])


def of_values(model, batch):
    return (model(batch[0]).float().mean(1) - batch[1]).square().mean()


@pytest.mark.parametrize(("loss", "in_nats"), [(of_tokens, True), (of_values, False)])
def test_whether_a_loss_is_in_nats_is_seen_in_it(bench, loss, in_nats):
    bench.use_suite(lambda: nn.Linear(8, 4), batches=noise, loss=loss)
    _, result = bench.run(epochs=1)
    assert (result.row.test_nats is not None) == in_nats
    assert result.row.regression != in_nats


def test_a_finished_checkpoint_is_reported_again_without_training(bench, tmp_path):
    path = tmp_path / "checkpoints" / "a.pt"
    rows, result = bench.run(checkpoint=path)
    again, same = bench.run(checkpoint=path)
    assert again == rows
    assert same.row == result.row
    assert bench.seen == []


def test_a_checkpoint_that_cannot_be_read_is_told_and_training_begins_anew(bench, tmp_path):
    path = tmp_path / "a.pt"
    rows, _ = bench.run(checkpoint=path)
    path.write_bytes(path.read_bytes()[:500])
    again, result = bench.run(checkpoint=path)
    assert [row.train_loss for row in again] == [row.train_loss for row in rows]
    assert result.status == "ok"
    assert "could not be read, so training began anew" in result.detail
    assert result.detail in describe_results("train", [result])
    _, result = bench.run(checkpoint=path)
    assert result.detail == ""  # for now it can be read


def test_a_checkpoint_of_another_trial_is_not_gone_on_with(bench, tmp_path):
    path = tmp_path / "a.pt"
    bench.run(checkpoint=path)
    rows, _ = bench.run(checkpoint=path, seed=1)
    assert [row.seed for row in rows] == [1, 1]
    assert sum(train for train, _ in bench.seen) == 6


def test_a_schedule_runs_over_all_steps_of_all_epochs(bench):
    lengths = []

    def falling(optimizer, steps):
        lengths.append(steps)
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)

    bench.change(schedule=falling)
    rows, _ = bench.run(epochs=2)
    assert lengths == [2 * 3]  # 12 images in batches of 4
    assert [row.learning_rate for row in rows] == pytest.approx([0.05, 0.025])
