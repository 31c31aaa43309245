"""Training from the initial weights, with an evaluation after each epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bench.results.records import Derived, DerivedCount, EpochResult, Positive, TrialResult
from bench.spec.metric import QUALITY_OF, Metric
from bench.spec.phase import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Summary of a whole training run."""

    epochs: DerivedCount = None
    """Epochs trained."""
    time_per_epoch_s: Derived = None
    """Median over epochs after the first, which warms up, of the training time, evaluation apart;
    of one epoch its own."""
    fastest_epoch_s: Derived = None
    """The shortest of these epochs."""
    slowest_epoch_s: Derived = None
    """The longest of them."""
    total_s: float
    """All epochs, the evaluation in the own precision included."""
    train_samples_per_s: Derived = None
    """Throughput of training, loading included."""
    train_loss: Derived = None
    """Mean training loss of the last epoch."""
    test_loss: Derived = None
    """Loss on the test set after the last epoch."""
    test_nats: Derived = None
    """The same where it is a cross entropy of classes, in nats; empty for regression."""
    test_accuracy_pct: Derived = None
    """Accuracy on the test set after the last epoch; empty for regression."""
    data_wait_pct: Derived = None
    """Share of training time that the host waited for batches."""
    checkpoint_bytes: int | None = None
    """Size of the weights that the model computes with, without an fp32 master copy."""
    data_storage: str = ""
    """Where the samples were while training: `device`; `file`, mapped from the disk and gathered
    one batch ahead; `host` memory of a suite's own batches."""
    quality: Derived = None
    """The suite's own figure of merit on the test set after the last epoch; empty where it has
    none."""
    quality_name: str = ""
    """Its name."""
    quality_unit: str = ""
    """Its unit."""
    quality_better: Literal["", "more", "less"] = ""
    """Whether more or less of it is better."""
    quality_margin: Positive | None = None
    """A difference within it does not matter, in its unit."""
    entropy_nats: float | None = None
    """Entropy rate of the source of the samples, in nats a token, where it is known: the least that
    a model's test loss is expected to be."""
    regression: bool | None = None
    """Whether there is a loss on the test set that is no cross entropy of classes, and so no
    accuracy."""
    first_loss: Derived = None
    """Mean training loss of the first epoch."""
    last_loss: Derived = None
    """That of the last one."""


def derive(rows: Any, details: Any) -> Any:
    """Return rows with the figures that follow from their epochs (``phases.train.figures``)."""
    from bench.phases.train import figures  # with pandas, which planning does without

    return figures.derive(rows, details)


def describe(result: TrialResult) -> str:
    """Return an arm's line on the terminal."""
    training: Training = result.row
    text = f"{training.time_per_epoch_s:.2f} s/epoch, loss {training.train_loss:#.4g}"
    if training.quality is not None:
        text += f", {training.quality_name} {training.quality:.4g} {training.quality_unit}".rstrip()
    elif training.test_accuracy_pct is not None:
        text += f", {training.test_accuracy_pct:.2f} % right"
    if result.detail:
        text += f"; {result.detail}"
    return text


LEARNED: Any = {
    "scale": "difference",
    "replicate": "seed",
    "seed_is_input": True,
    "alike": ("epochs",),
    "fewest": 5,
    "tabled": True,
}
METRICS = (
    Metric(
        name="epoch",
        phase="train",
        place=7,
        label="time per epoch",
        unit="s",
        about=(
            "Time of an epoch after the first, loading included: median over seeds of each one's "
            "median."
        ),
        columns=("time_per_epoch_s",),
        replicate="seed",
        shown_as="speedup",
        change="epoch_speedup",
        compared=False,
        tabled=True,
    ),
    Metric(
        name="accuracy",
        phase="train",
        place=8,
        label="test accuracy",
        unit="points",
        short="pt",
        about="Test accuracy: mean over seeds.",
        columns=("test_accuracy_pct",),
        better="more",
        margin=0.5,
        figure="accuracy_pct",
        change="accuracy_change_points",
        **LEARNED,
    ),
    Metric(
        name="loss",
        phase="train",
        place=9,
        label="test loss",
        unit="nats",
        about="Loss of tokens on test data: mean over seeds.",
        columns=("test_nats",),
        unless="test_accuracy_pct",
        margin=0.01,  # 1 % of the perplexity (docs/measuring.md)
        figure="test_loss_nats",
        change="loss_change_nats",
        decimals=4,
        **LEARNED,
    ),
    Metric(
        name="quality",
        phase="train",
        place=10,
        label="figure of merit",
        unit="",
        about="The suite's own figure of merit on test data: mean over seeds.",
        columns=("quality",),
        is_described=True,
        **LEARNED | {"alike": ("epochs", *QUALITY_OF)},
    ),
)
MEANS = (
    "train_loss",
    "test_loss",
    "data_wait_pct",
    "train_samples_per_s",
    "total_s",
    "checkpoint_bytes",
    "entropy_nats",
)
PHASE = Phase(
    name="train",
    order=60,
    summary="training with an evaluation after each epoch",
    row=Training,
    details={EpochResult: "epochs.csv"},
    metrics=METRICS,
    summarised={
        **dict.fromkeys(MEANS, "mean"),
        **dict.fromkeys(("epochs", "slowest_epoch_s"), "max"),
        "fastest_epoch_s": "min",
        **dict.fromkeys(("data_storage", "regression", *QUALITY_OF), "first"),
    },
    derive=derive,
    describe=describe,
    key="seed",
    default=True,
    joint=True,
    trains_on_data=True,
    recipe_batch=True,
    checkpoints=True,
    uses_epochs=True,
    # Samples are read, and models tested.
    estimate=lambda work: 1.0 + work.epochs * work.steps_per_epoch * work.step_s,
)
