"""Which checkpoint of another run a training continues from, and what is refused by name."""

import json
from dataclasses import replace

import pytest

from bench.planning.continuation import continued
from bench.planning.plan import Plan
from bench.results.run_json import FORMAT, planned
from bench.spec.errors import UsageError
from bench.spec.request import Request
from bench.spec.trial import kept_checkpoint
from tests.arms import arms


@pytest.fixture
def training(tiny_trial):
    return replace(tiny_trial, phase="train", epochs=5)


def kept(folder, *trials):
    """Write a run that trained these and kept the checkpoint of the second epoch."""
    (folder / "checkpoints").mkdir(parents=True)
    entries = [planned(replace(trial, keep_checkpoints=True)) for trial in trials]
    (folder / "run.json").write_text(json.dumps({"format": FORMAT, "planned": entries}))
    for trial in trials:
        (folder / kept_checkpoint(trial.id, 2)).touch()
    return folder


def start_of(trial, run, epoch=2):
    plan = continued(Plan(trials=(trial,), seconds=(1.0,)), Request(start=run, from_epoch=epoch))
    return plan.trials[0].start


def test_any_precision_continues_from_fp32_else_from_the_only_precision_of_the_run(tmp_path, training):
    both = kept(tmp_path / "both", training, replace(training, arms=arms("amp-fp16")))
    half = kept(tmp_path / "half", replace(training, arms=arms("amp-fp16")))
    for name in ("fp32", "amp-bf16", "amp-fp16"):
        trial = replace(training, arms=arms(name))
        assert start_of(trial, both).endswith("-train-fp32-s0-e2.pt")
        assert start_of(trial, half).endswith("-train-amp-fp16-s0-e2.pt")


@pytest.mark.parametrize(
    ("change", "epoch", "sentence"),
    [
        ({"epochs": 6}, 2, "--epochs: 6, there 5"),
        ({"seed": 1}, 2, "no checkpoints of tiny-cpu-b4 with seed 1"),
        ({"clip_grad": 1.0}, 2, r"--clip-grad: 1\.0, there None"),
        ({}, 3, "no checkpoint of epoch 3"),
        ({}, 5, "leaves no epoch to train"),
    ],
)
def test_another_recipe_and_a_checkpoint_that_is_not_there_are_refused_by_name(
    tmp_path, training, change, epoch, sentence
):
    run = kept(tmp_path / "run", training)
    with pytest.raises(UsageError, match=sentence):
        start_of(replace(training, **change), run, epoch)


def test_a_run_of_several_precisions_without_fp32_or_without_checkpoints_is_refused(tmp_path, training):
    run = kept(tmp_path / "run", *(replace(training, arms=arms(name)) for name in ("amp-fp16", "amp-bf16")))
    with pytest.raises(UsageError, match="trained amp-fp16, amp-bf16, and not fp32"):
        start_of(training, run)
    with pytest.raises(UsageError, match="has no checkpoints: train it with --keep-checkpoints"):
        start_of(training, kept(tmp_path / "none"))
