"""Suites: the recipes that are trained in each precision.

Plain data, without torch, so that planning, ``--help`` and reporting start at once. A suite's
functions import torch when they are called, in the process that measures.

A batch is a pair of inputs and targets, or with a suite's ``batches`` anything: a tensor, or any
nesting of dicts, lists, tuples, named tuples, dataclasses and objects with a method ``to(device)``.
Parts of a batch are named in messages as they are in Python: ``batch['labels']``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

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
    """Shape of one sample: (channels, height, width) of an image, (features,), or (length,) of a
    sequence of tokens."""
    classes: int | None = None
    """Number of classes, or size of the vocabulary; None for regression. A folder of images
    replaces it by its own count, and a text by that of the bytes."""
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
    keep_last: bool = False
    """Whether an epoch of images ends with a smaller batch, of those that are left."""
    crop_padding: int = 0
    """Training images are padded by this many pixels and cropped at random; 0 is off."""
    flip: bool = False
    """Whether training images are mirrored at random."""
    validation_share: float = 0.0
    """Share of each class's training images in a folder that is set apart, and tested on where
    there is no test set."""

    def __post_init__(self) -> None:
        shape = self.input_shape
        is_shape = isinstance(shape, Sequence) and len(shape) > 0 and min(shape) > 0
        require(is_shape, "Data.input_shape", "a tuple of sizes above 0", shape)
        is_either = (self.classes is None) != (self.target_shape is None)
        either = "given, or else target_shape for regression"
        require(is_either, "Data.classes", either, self.classes)
        require(self.steps_per_epoch > 0, "Data.steps_per_epoch", "1 or more", self.steps_per_epoch)
        share = self.validation_share
        shares = "a share such as 0.2, from 0 and below 1"
        require(0 <= share < 1, "Data.validation_share", shares, share)

    @property
    def tokens_per_sample(self) -> int | None:
        """Length of a sequence of tokens; None where samples are none."""
        return self.input_shape[0] if self.tokens else None

    @property
    def is_image(self) -> bool:
        """Whether a sample is an image with a class, and so may come from image files."""
        return len(self.input_shape) == 3 and self.classes is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """The figure of merit that parity is judged on, of those that ``evaluate`` returns."""

    name: str
    """As ``evaluate`` calls it."""
    unit: str = ""
    better: Literal["more", "less"]
    margin: float
    """A difference from fp32 within it does not matter, in the unit. Choose it before you
    measure."""

    def __post_init__(self) -> None:
        require(self.better in ("more", "less"), "Quality.better", "more or less", self.better)
        require(self.margin > 0, "Quality.margin", "a number above 0", self.margin)


# Stands for the data of a suite with ``batches``, which need not describe them.
NO_DATA = Data(input_shape=(1,), target_shape=(1,))


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """A recipe: everything about a training run but its precision and its device.

    Its functions are called in the measuring process, after the random seeds of torch, Python and
    NumPy are set.
    """

    name: str
    title: str
    """One line for ``list`` and the report."""
    data: Data = NO_DATA
    """May be left out where there are ``batches``."""
    model: Callable[..., nn.Module | dict[str, nn.Module]]
    """Build the model, or a dict of several, on the CPU, in fp32. A function whose first parameter
    has no default, or is called ``data``, gets the data's shape and number of classes. A dict is a
    mapping in the other functions."""
    batches: Callable[[str, int, int], Iterable[Any] | None] | None = None
    """``batches(split, batch_size, seed)``: the batches of an epoch in host memory.

    They are any iterable, such as a DataLoader. None takes them from ``data`` and ``--data``.

    ``split`` is ``train`` or ``test``; return None for ``test`` where there are none. It is called
    anew for each epoch of training, with another seed each, so that a training that is resumed goes
    on with the same batches; keep what takes long, such as a data set, in a ``functools.cache``.
    torch's CPU generator is set to ``seed`` until the first batch is there, so a DataLoader that
    shuffles is in the same order for each precision. Where the iterable has a ``len``, it must
    hold. An epoch has two batches or more.

    The train phase reads the iterable, and reports the wait for it. The other phases put the first
    few batches of the train split on the device, and take them in turn, in the same order for each
    precision. Where several devices train together, each takes its part of every batch, cut along
    the first dimension of each tensor."""
    count: Callable[[Any], int] | None = None
    """``count(batch)``: the samples of a batch. None is the first dimension of its first tensor."""
    optimizer: Callable[..., Any]
    """``optimizer(parameters)``, or ``optimizer(model)``.

    It returns a ``torch.optim.Optimizer``, or a list or a dict of several. It gets the model if its
    first parameter is called ``model``, or if it asks the parameters, which it gets otherwise, for
    what only a model has, such as ``named_parameters``. Several optimizers all take a step after
    each backward pass. Each must have a parameter of the model."""
    loss: Callable[[], nn.Module] | Callable[[Any, Any], Any] | None = None
    """``loss(model, batch)``, or ``loss()``.

    None is cross entropy, or mean square error for regression. A function with two required
    parameters computes the loss of a batch: a tensor of one number, or a mapping or object that has
    it as ``loss``. It runs within the precision's autocast. ``model`` is the module, or what
    torch.compile or DistributedDataParallel made of it: call it, and use no other method of it. A
    class, or a function that can be called without arguments, builds a module that is called with
    (output, target): then a batch must be a pair of the model's input and a target."""
    step: Callable[[Any, Any], Any] | None = None
    """``step(training, batch)``: a whole training step.

    It is for what one backward pass cannot express, such as a GAN. Call ``training.model`` and
    compute losses within ``training.autocast()``; ``training.update(loss, optimizer)`` drops the
    gradients of the optimizer of that name (or of all), scales the loss, computes gradients, clips
    them and takes the step, as the precision needs it. Return the loss, or a dict of losses, whose
    sum is reported. A step that calls ``.backward()`` or an optimizer of ``training.optimizers``
    itself cannot be scaled, and is refused in precisions that scale the loss. It trains on one
    device, and schedules step after it."""
    evaluate: Callable[[Any, Iterable[Any]], Any] | None = None
    """``evaluate(model, batches)``: figures on the test split after each epoch.

    They stand instead of loss and accuracy. Return a dict of numbers, or what has a ``compute()``
    that does, such as a collection of torchmetrics; one number is the ``quality``. It runs without
    gradients, in eval mode, under the precision's autocast; the batches lie on the device. Of
    devices that train together, each evaluates all of them."""
    quality: Quality | None = None
    """The one of these figures that parity is judged on, as on accuracy."""
    clip_grad: float | None = None
    """The norm, over all parameters, to which gradients are clipped unless ``--clip-grad`` says
    otherwise."""
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    """Build the learning-rate schedule over that many optimizer steps, stepped once a step; one for
    each optimizer. Where there are ``batches``, they need a ``len``."""
    schedule_every: Literal["step", "epoch"] = "step"
    """With ``epoch`` the schedule is over that many epochs, and stepped after each; a
    ReduceLROnPlateau, which needs that, gets the epoch's training loss. Phases that do not train
    whole epochs leave the rate as it is at first."""
    schedule_epochs: int | None = None
    """The epochs that the schedule spans, however many are trained; None is as many."""
    batch_size: int
    """The recipe's batch size: what is trained with unless ``--batch-sizes`` says otherwise."""
    batch_sizes: tuple[int, ...] = ()
    """The batch sizes whose speed and memory are compared on a GPU; empty is the recipe's alone."""
    cpu_batch_sizes: tuple[int, ...] = ()
    """The same on a CPU, where the large ones take too long; empty is ``batch_sizes``."""
    cpu_parameters: dict[str, Parameter] = field(default_factory=dict)
    """Arguments of the suite's function where only a CPU measures and they are not named: a smaller
    model."""
    epochs: int = 1
    """Epochs of the short form, which is what is trained unless ``--epochs`` says otherwise."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the trainings unless ``--seeds`` says otherwise; parity of accuracies needs five."""
    full_epochs: int | None = None
    """Epochs of the published recipe."""
    source: str = ""
    """Where the recipe comes from."""
    sized: bool = False
    """Whether the model can be built on the meta device. Planning then computes how much memory it
    takes: what cannot fit a device is out of memory before anything is allocated, and batch sizes
    that nobody named are halved until they should fit."""

    def schedule_length(self, epochs: int, steps_per_epoch: int) -> int:
        """Return the steps, or the epochs, that the schedule spans."""
        spanned = self.schedule_epochs or epochs
        return spanned if self.schedule_every == "epoch" else spanned * steps_per_epoch

    @property
    def model_takes_data(self) -> bool:
        """Whether the model is built for the data, and not without arguments or with defaults."""
        return _required(self.model) > 0 or _first_name(self.model) == "data"

    @property
    def optimizer_takes_model(self) -> bool:
        """Whether the optimizer is built for the model, and not for its parameters."""
        return _first_name(self.optimizer) == "model"

    @property
    def loss_takes_batch(self) -> bool:
        """Whether the loss is a function of (model, batch), and does not build a module."""
        if self.loss is None or isinstance(self.loss, type):
            return False
        return _required(self.loss) == 2

    @property
    def has_loss(self) -> bool:
        """Whether a batch has one loss, and not only the losses of a step."""
        return self.loss is not None or self.step is None or self.batches is None

    def __post_init__(self) -> None:
        # The name of a library may stand before a model's.
        is_name = re.fullmatch(r"\w+(:[\w./-]+)?", self.name) is not None
        require(is_name, "Suite.name", "letters, digits and underscores", self.name)
        has_batches = self.data is not NO_DATA or self.batches is not None
        require(has_batches, "Suite.data", "given, unless batches are", None)
        is_loss = self.loss is None or isinstance(self.loss, type) or _required(self.loss) in (0, 2)
        losses = "a function of (model, batch), or of nothing that builds a module"
        require(is_loss, "Suite.loss", losses, self.loss)
        for name in ("batch_size", "epochs", "batch_sizes", "cpu_batch_sizes"):
            value = getattr(self, name)
            counts = value if isinstance(value, tuple) else (value,)
            are_counts = all(isinstance(count, int) and count > 0 for count in counts)
            require(are_counts, f"Suite.{name}", "whole numbers above 0", value)
        is_evaluated = self.quality is None or self.evaluate is not None
        require(is_evaluated, "Suite.quality", "left out without evaluate", self.quality)


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a call can give by position, without ``*args``."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each for each in inspect.signature(function).parameters.values() if each.kind in kinds]


def _first_name(function: Callable[..., Any]) -> str:
    """Return the name of the first of them; empty where there is none."""
    parameters = _positional(function)
    return parameters[0].name if parameters else ""


def _required(function: Callable[..., Any]) -> int:
    """Return how many of them have no default."""
    return sum(each.default is inspect.Parameter.empty for each in _positional(function))
