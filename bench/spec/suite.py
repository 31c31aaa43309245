"""Suites: the recipes that are trained in each precision.

Plain data, without torch, so that planning, ``--help`` and reporting start at once. A suite's functions import torch
when they are called, in the process that measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bench.spec.errors import require

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

Parameter = int | float | str | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The shapes of a model's input, and what is done to an image before the model sees it."""

    input_shape: tuple[int, ...]
    """Shape of one sample: (channels, height, width) of an image, (features,), or (length,) of a sequence of tokens."""
    classes: int | None = None
    """Number of classes, or size of the vocabulary; None for regression. A folder of images replaces it by its own
    count, and a text by that of the bytes."""
    target_shape: tuple[int, ...] | None = None
    """Shape of one regression target."""
    tokens: bool = False
    """Whether a sample is a sequence of tokens, of each of which the next one is predicted."""
    source: Literal["cifar10", "digits", "markov", "synthetic"] = "synthetic"
    """Where samples come from unless ``--data`` says otherwise."""
    steps_per_epoch: int = 50
    """Batches in an epoch of generated data; real data have as many as they have."""
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    """Per-channel mean of images scaled to 0..1."""
    std: tuple[float, ...] = (0.2470, 0.2435, 0.2616)
    """Per-channel standard deviation of images scaled to 0..1."""
    crop_padding: int = 0
    """Training images are padded by this many pixels and cropped at random; 0 is off."""
    flip: bool = False
    """Whether training images are mirrored at random."""
    validation_share: float = 0.0
    """Share of each class's training images that is set apart, and tested on where there is no test set."""

    def __post_init__(self) -> None:
        sizes = bool(self.input_shape) and all(size > 0 for size in self.input_shape)
        require(sizes, "Data.input_shape", "a tuple of sizes above 0", self.input_shape)
        require(
            (self.classes is None) != (self.target_shape is None),
            "Data.classes",
            "given for classification, or else target_shape for regression",
            self.classes,
        )
        sequence = len(self.input_shape) == 1 and self.classes is not None
        require(sequence or not self.tokens, "Data.tokens", "False, or input_shape (length,) and classes", self.tokens)
        require(self.tokens or self.source != "markov", "Data.source", "other than markov without tokens", self.source)
        require(self.steps_per_epoch > 0, "Data.steps_per_epoch", "1 or more", self.steps_per_epoch)
        require(self.crop_padding >= 0, "Data.crop_padding", "0 or more", self.crop_padding)
        share = self.validation_share
        require(0 <= share < 1, "Data.validation_share", "a share such as 0.2, from 0 and below 1", share)

    @property
    def tokens_per_sample(self) -> int | None:
        """Length of a sequence of tokens; None where samples are none."""
        return self.input_shape[0] if self.tokens else None

    @property
    def is_image(self) -> bool:
        """Whether a sample is an image with a class, and so may come from image files."""
        return len(self.input_shape) == 3 and self.classes is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """A recipe: everything about a training run but its precision and its device.

    Its functions are called in the measuring process, after the random seeds of torch, Python and NumPy are set.
    """

    name: str
    title: str
    """One line for ``list`` and the report."""
    data: Data
    model: Callable[[Data], nn.Module]
    """Build the model for the data's shape and number of classes, on the CPU, in fp32."""
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    loss: Callable[[], nn.Module] | None = None
    """Build the loss, called with (output, target); None is cross entropy, or mean square for regression."""
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    """Build the learning-rate schedule over that many optimizer steps, stepped once a step."""
    batch_size: int
    """The recipe's batch size: what is trained with unless ``--batch-sizes`` says otherwise."""
    batch_sizes: tuple[int, ...] = ()
    """The batch sizes whose speed and memory are compared on a GPU; empty is the recipe's alone."""
    cpu_batch_sizes: tuple[int, ...] = ()
    """The same on a CPU, where the large ones take too long; empty is ``batch_sizes``."""
    cpu_parameters: dict[str, Parameter] = field(default_factory=dict)
    """Arguments of the suite's function where only a CPU measures and they are not named: a smaller model."""
    epochs: int = 1
    """Epochs of the short form, which is what is trained unless ``--epochs`` says otherwise."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the trainings unless ``--seeds`` says otherwise; parity of accuracies needs five."""
    full_epochs: int | None = None
    """Epochs of the published recipe."""
    source: str = ""
    """Where the recipe comes from."""
    trainer: Literal["plain", "lightning"] = "plain"
    """The code that runs the epochs of training: the loop of bench/training/step.py, or Lightning's Trainer."""
    devices: int = 1
    """Devices that Lightning trains on, each with its part of every batch."""
    variants: tuple[dict[str, Parameter], ...] = ()
    """Arguments of the suite's function that make a row of the comparison each; empty is this suite alone."""

    def __post_init__(self) -> None:
        require(self.name.isidentifier(), "Suite.name", "letters, digits and underscores", self.name)
        for name in ("batch_size", "epochs"):
            value = getattr(self, name)
            require(isinstance(value, int) and value > 0, f"Suite.{name}", "a whole number above 0", value)
        for name in ("batch_sizes", "cpu_batch_sizes"):
            sizes = getattr(self, name)
            good = all(isinstance(size, int) and size > 0 for size in sizes)
            require(good, f"Suite.{name}", "whole numbers above 0", sizes)
        require(bool(self.seeds), "Suite.seeds", "at least one seed", self.seeds)
        require(self.trainer in ("plain", "lightning"), "Suite.trainer", "plain or lightning", self.trainer)
        require(self.devices > 0, "Suite.devices", "1 or more", self.devices)
        plain = self.trainer == "plain" and self.devices > 1
        require(not plain, "Suite.devices", "1 where the trainer is plain", self.devices)
