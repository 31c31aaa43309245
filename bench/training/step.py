"""Training and evaluation in plain sight, by one step and one loop for every precision.

What differs by precision is what ``BuiltArm`` holds: an autocast region, a GradScaler that scales,
weights that are 16-bit copies of a master copy, or none of these.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.overrides import TorchFunctionMode

from bench.data.batch import Batch, channels_last, cut, first_dimension
from bench.devices.backend import backend_of
from bench.measure.memory import updated
from bench.results.records import Conversion
from bench.spec.errors import UsageError
from bench.spec.precisions import Precision
from bench.spec.suite import Data, Suite
from bench.spec.techniques import PLAIN, Techniques
from bench.training import amp, distributed
from bench.training.amp import Weights
from bench.training.conversions import convert
from bench.training.keep import keep
from bench.training.own_step import Training, loss_in, take_steps
from bench.training.techniques import (
    GraphedStep,
    checkpoint_activations,
    compiled,
    fused,
    require_supported,
)

# Computes the loss of (model, batch): a tensor, or an output that has it.
Loss = Callable[[Any, Batch], Any]


class TakenSteps:
    """Counts the training steps, less the optimizer steps in them that a GradScaler skipped.

    Skipped are those that training steps asked for and that never reached the optimizer, where a
    hook counts. A fused optimizer is called all the same, with a device tensor that makes the step
    a no-op; these tensors are kept, and read when the count is asked for.
    """

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._can_skip = scaler.is_enabled()
        self._steps = 0
        self._skipped = 0
        self._found_inf = list[Tensor]()

    def watch(self, optimizer: Optimizer) -> None:
        """Count the steps that reach an optimizer."""
        # Without a GradScaler no step is skipped, and a hook costs some microseconds a step.
        if self._can_skip:
            optimizer.register_step_post_hook(self._reached)

    def _reached(self, optimizer: Optimizer, *_: Any) -> None:
        self._skipped -= 1
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            self._found_inf.append(found_inf)

    def end_step(self, asked: int) -> None:
        """Count a training step, which asked for so many optimizer steps."""
        self._steps += 1
        if self._can_skip:
            self._skipped += asked

    @property
    def count(self) -> int:
        """Steps taken so far.

        With a fused optimizer under a GradScaler, this waits for the device.
        """
        if self._found_inf:
            self._skipped += int(torch.stack(self._found_inf).count_nonzero())
            self._found_inf.clear()
        return self._steps - self._skipped


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltArm:
    """A model in training at one precision on one device."""

    precision: Precision
    device: torch.device
    model: nn.Module
    loss: Loss
    criterion: nn.Module | None
    """The module of (output, target) that the loss of a pair is computed by; None where the suite
    computes its own."""
    count: Callable[[Batch], int]
    """Returns the samples of a batch."""
    optimizers: dict[str, Optimizer]
    """By the suite's names; one alone is called optimizer."""
    scaler: torch.amp.GradScaler
    """A disabled one passes losses and steps on."""
    taken: TakenSteps
    weights: Weights
    """The model's weights, and the master copy that the optimizer updates where there is one."""
    forward: Any
    """The model in the training step: itself, compiled, or wrapped for several devices; of several
    models a mapping."""
    step: Callable[[BuiltArm, Batch], Tensor]
    """Trains on one batch: ``training_step``, or the suite's own."""
    gradients: Callable[[BuiltArm, Batch], Tensor]
    """Does the same without the updates: ``leave_gradients``, or the suite's own."""
    step_autocast: AbstractContextManager[None]
    """The region of ``autocast()``, built once for all training steps: building one takes 3 µs.
    A region cannot be entered within itself, so what is not the training step calls
    ``autocast()``."""
    conversion: Conversion | None = None
    """Which layers were converted, where the precision converts any."""
    schedules: Sequence[torch.optim.lr_scheduler.LRScheduler] = ()
    """Of each optimizer, where the suite has a schedule."""
    schedule_every: Literal["step", "epoch"] = "step"
    clip_grad: float | None = None
    """The norm over all parameters that gradients are clipped to."""
    techniques: Techniques = PLAIN
    graph: GraphedStep | None = None
    """The CUDA graph that computes the gradients, where one is used."""

    @property
    def optimizer(self) -> Optimizer:
        """The first of the optimizers."""
        return next(iter(self.optimizers.values()))

    def zero_grad(self, optimizers: Iterable[Optimizer] | None = None) -> None:
        """Drop the gradients of some optimizers' weights; None is all of the arm's."""
        for optimizer in self.optimizers.values() if optimizers is None else optimizers:
            optimizer.zero_grad(set_to_none=self.techniques.set_to_none)

    def end(self, what: Literal["step", "epoch"], loss: float = math.nan) -> None:
        """Let the schedules that follow steps, or epochs, go on; a plateau looks at the loss."""
        if what != self.schedule_every:
            return
        for schedule in self.schedules:
            if isinstance(schedule, ReduceLROnPlateau):
                schedule.step(loss)
            else:
                schedule.step()

    @property
    def loss_scale(self) -> float | None:
        """The GradScaler's scale; None where the precision has none."""
        if self.scaler.is_enabled():
            return self.scaler.get_scale()
        return None

    def autocast(self) -> AbstractContextManager[None]:
        """Return a new region in which the forward pass and the loss run under the precision."""
        return amp.autocast(self.precision, self.device)

    def arranged(self, batch: Batch) -> Batch:
        """Return a batch in the layout of the model's weights."""
        if self.techniques.channels_last:
            return channels_last(batch)
        return batch


def build_arm(
    suite: Suite,
    data: Data,
    precision: Precision,
    device: torch.device,
    *,
    seed: int,
    steps: int | None = None,
    clip_grad: float | None = None,
    techniques: Techniques = PLAIN,
) -> BuiltArm:
    """Build a suite's model, loss and optimizers.

    Initial weights are the same for every precision but for rounding.

    Args:
        suite: the recipe.
        data: the suite's data, with the number of classes that there really are.
        precision: the arm's.
        device: takes the model after it has been initialised on the CPU.
        seed: of the initial weights and of dropout.
        steps: optimizer steps of the whole run, for the schedule; None trains at a constant rate.
        clip_grad: the norm to clip gradients to; None is the recipe's.
        techniques: to train with.

    Raises:
        UnsupportedError: a technique does not go with this suite or device.
        UsageError: the suite's loss is a module, or an optimizer has no parameter of the model.
    """
    require_supported(techniques, suite, data, device)
    seed_all(seed)
    # Weights are drawn on the CPU, so that they are the same on every device.
    model = build_model(suite, data).to(device).train()
    if techniques.sync_bn:
        model = distributed.synchronised_norms(model)
    if techniques.channels_last:
        model.to(memory_format=torch.channels_last)
    # Before checkpointing, which replaces the forward of blocks, and converting, which spares them.
    kept = keep(model, precision, device)
    if techniques.checkpointing:
        checkpoint_activations(model, compiled=bool(techniques.compile))
    loss, criterion = loss_of(suite, data)
    conversion = convert(model, precision, kept) if precision.conversion else None
    weights = Weights(model, precision)
    scaler = amp.grad_scaler(precision, device)
    taken = TakenSteps(scaler)
    # They are built of the model's own parameters; ``attach`` then gives them the masters.
    optimizers = build_optimizers(suite, model)
    for name, built in optimizers.items():
        optimizer = fused(built) if techniques.fused_optimizer else built
        optimizers[name] = optimizer
        weights.attach(optimizer)
        taken.watch(optimizer)
        # One that averages the weights, as schedule-free ones do, has two modes.
        if hasattr(optimizer, "train"):
            optimizer.train()
    step = training_step
    gradients = leave_gradients
    if suite.step:
        training = Training(suite.step)
        step = training.train
        gradients = training.gradients
        # Without scaling, an optimizer's own .step() is as good as training.step.
        if scaler.is_enabled():
            training.refuse_unscaled(optimizers)
    if criterion is not None:
        criterion.to(device)  # it may have weights, such as those of classes
    arm = BuiltArm(
        precision=precision,
        device=device,
        model=model,
        loss=loss,
        criterion=criterion,
        count=suite.count or first_dimension,
        optimizers=optimizers,
        scaler=scaler,
        taken=taken,
        weights=weights,
        conversion=conversion,
        forward=_forward(suite, model, device, techniques, seed),
        step=step,
        gradients=gradients,
        step_autocast=amp.autocast(precision, device),
        schedules=_build_schedules(suite, optimizers, steps),
        schedule_every=suite.schedule_every,
        clip_grad=suite.clip_grad if clip_grad is None else clip_grad,
        techniques=techniques,
    )
    if not techniques.cuda_graphs:
        return arm
    # The graph is of the arm without it, for its warm-up and its capture take ordinary steps.
    graph = GraphedStep(gradients=partial(leave_gradients, arm), device=device)
    return replace(arm, graph=graph)


def _build_schedules(
    suite: Suite,
    optimizers: Mapping[str, Optimizer],
    steps: int | None,
) -> list[torch.optim.lr_scheduler.LRScheduler]:
    schedules = []
    if suite.schedule and steps:
        for optimizer in optimizers.values():
            schedule = suite.schedule(optimizer, steps)
            if suite.schedule_every == "step" and isinstance(schedule, ReduceLROnPlateau):
                raise UsageError(
                    "ReduceLROnPlateau looks at epochs: give the suite schedule_every='epoch'."
                )
            schedules.append(schedule)
    return schedules


def _forward(
    suite: Suite,
    model: nn.Module,
    device: torch.device,
    techniques: Techniques,
    seed: int,
) -> Any:
    if distributed.ranks() > 1:
        # Dropout must differ between the parts of a batch, so each rank goes on from a seed of its
        # own; any step that is larger than the repetitions' would do.
        seed_all(seed + 7919 * distributed.rank())
        return distributed.parallel(model, device)
    if not techniques.compile:
        return model
    mode = None
    if isinstance(techniques.compile, str):
        mode = techniques.compile
    forward = partial(compiled, mode=mode, one_shape=suite.batches is None)
    # A suite with several models calls each by itself.
    if isinstance(model, nn.ModuleDict):
        return {name: forward(each) for name, each in model.items()}
    return forward(model)


def seed_all(seed: int) -> None:
    """Seed the global generators that a suite may draw from: torch's, Python's and NumPy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    # NumPy takes 32 bits.
    np.random.seed(seed % 2**32)


def build_model(suite: Suite, data: Data) -> nn.Module:
    """Build the suite's model, on the CPU, in fp32.

    Raises:
        UsageError: it is no module.
    """
    build: Callable[..., Any] = suite.model
    model = build(data) if suite.model_takes_data else build()
    if isinstance(model, dict):
        return nn.ModuleDict(model)
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"Suite.model returned a {type(model).__name__}, which is no torch module."
        )
    return model


def build_optimizers(suite: Suite, model: nn.Module) -> dict[str, Any]:
    """Build the suite's optimizers by their names; those of a list are numbered from 0.

    Raises:
        UsageError: one of them is no optimizer, or has no parameter of the model.
    """
    parameters = [*model.parameters()]
    try:
        built = suite.optimizer(model if suite.optimizer_takes_model else parameters)
    except AttributeError as error:
        if error.obj is not parameters:
            raise
        built = suite.optimizer(model)  # it asked the list for named_parameters, or the like
    if isinstance(built, list | tuple):
        built = {str(number): each for number, each in enumerate(built)}
    elif not isinstance(built, Mapping):
        built = {"optimizer": built}
    for name, optimizer in built.items():
        if not hasattr(optimizer, "param_groups"):
            raise UsageError(
                f"Suite.optimizer returned a {type(optimizer).__name__}, which is no optimizer."
            )
        if set(parameters).isdisjoint(updated([optimizer])):
            raise UsageError(f"Suite.optimizer: {name!r} has no parameter of the model.")
    return dict(built)


def build_loss(suite: Suite, data: Data) -> nn.Module:
    """Build the loss of (output, target) that a suite has.

    The default is cross entropy, of every token, or mean square error for regression.
    """
    if isinstance(suite.loss, nn.Module):
        raise UsageError(
            "Suite.loss is a module: give a function that builds it, or a function of (model, "
            "batch)."
        )
    if suite.loss is not None:
        build: Callable[..., nn.Module] = suite.loss
        return build()
    if data.tokens:
        return TokenLoss()
    if data.classes is None:
        return nn.MSELoss()
    return nn.CrossEntropyLoss()


class TokenLoss(nn.CrossEntropyLoss):
    """Mean cross entropy over the tokens of all sequences, in nats."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits, (B, length, vocabulary), for the next tokens, (B, length)."""
        return super().forward(input.flatten(0, 1), target.flatten())


def loss_of(suite: Suite, data: Data) -> tuple[Loss, nn.Module | None]:
    """Return a suite's loss of (model, batch), and the module that computes a pair's, if any."""
    if suite.loss_takes_batch or not suite.has_loss:
        loss: Any = suite.loss
        return loss, None
    criterion = build_loss(suite, data)
    return pair_loss(criterion), criterion


def pair_loss(criterion: nn.Module) -> Loss:
    """Return the loss of (model, batch) for batches of inputs and targets."""
    takes_tensor = type(criterion).__module__.startswith(("torch.", "bench."))

    def loss(model: Any, batch: Batch) -> Any:
        if not (isinstance(batch, list | tuple) and len(batch) == 2):
            raise UsageError(
                f"The batch is a {type(batch).__name__}, not inputs and targets: give the suite a "
                "loss(model, batch)."
            )
        inputs, targets = batch
        outputs = model(inputs)
        # A suite's own loss may take what its model returns; others take one tensor.
        if takes_tensor and not isinstance(outputs, Tensor):
            raise UsageError(
                f"The model returned a {type(outputs).__name__}, not a tensor: give the suite a "
                "loss(model, batch)."
            )
        return criterion(outputs, targets)

    return loss


def training_step(arm: BuiltArm, batch: Batch) -> Tensor:
    """Train on one batch, on the arm's device.

    Returns:
        The loss, a scalar on the device that nothing has waited for; its graph is used up.

    Raises:
        UsageError: the suite's loss is no tensor of one number, or the batch is not what it can be
            computed of.
    """
    loss = arm.graph(batch) if arm.graph else leave_gradients(arm, batch)
    take_steps(arm, arm.optimizers.values(), arm.clip_grad)
    arm.scaler.update()
    arm.taken.end_step(len(arm.optimizers))
    arm.end("step")
    return loss


def leave_gradients(arm: BuiltArm, batch: Batch) -> Tensor:
    """Drop the gradients and compute those of a batch, in as many parts as the techniques say.

    Returns the mean of the parts' losses.
    """
    arm.zero_grad()
    batch = arm.arranged(batch)
    parts = arm.techniques.grad_accumulation
    if parts == 1:
        return _add_gradients(arm, batch)
    samples = arm.count(batch)
    # The mean of the means of unequal parts is not the mean of the batch.
    if samples % parts:
        raise ValueError(
            f"a batch of {samples} cannot be cut into {parts} equal parts for grad-accumulation"
        )
    size = samples // parts
    slices = [slice(start, start + size) for start in range(0, samples, size)]
    losses = []
    for chunk in cut(batch, slices, samples, "grad-accumulation"):
        losses.append(_add_gradients(arm, chunk, parts).detach())
    return torch.stack(losses).sum()


def _add_gradients(arm: BuiltArm, batch: Batch, parts: int = 1) -> Tensor:
    """Add the gradients of one part of a batch; return its share of the loss."""
    # Forward and loss in one region; backward runs outside it, in the types that forward chose.
    with arm.step_autocast:
        loss = loss_in(arm.loss(arm.forward, batch))
    if parts > 1:
        loss = loss / parts
    arm.scaler.scale(loss).backward()
    return loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """The result of one pass over the training data."""

    loss: float
    """Mean over the epoch's batches."""
    seconds: float
    wait_seconds: float
    """Host time spent waiting for the next batch."""
    samples: int
    skipped_steps: int


def train_epoch(arm: BuiltArm, batches: Iterator[Batch]) -> Epoch:
    """Train on every batch once.

    The clock covers loading and training, and stops when the device is done.
    """
    losses = []
    wait_ns = samples = 0
    taken = arm.taken.count
    # What is queued already is not this epoch's.
    backend_of(arm.device).synchronize()
    clock = distributed.clock()
    start = clock()
    wait_start = time.perf_counter_ns()
    for batch in batches:
        wait_ns += time.perf_counter_ns() - wait_start
        # Losses stay on the device: reading one would wait for it in every step.
        losses.append(arm.step(arm, batch).detach())
        samples += arm.count(batch)
        wait_start = time.perf_counter_ns()
    wait_ns += time.perf_counter_ns() - wait_start
    backend_of(arm.device).synchronize()
    seconds = (clock() - start) / 1e9
    mean_loss = float(torch.stack(losses).float().mean())
    # Each rank has as many batches, so the mean of the ranks' means is that of all batches.
    (loss,) = distributed.summed([mean_loss])
    loss /= distributed.ranks()
    arm.end("epoch", loss)
    return Epoch(
        loss=loss,
        seconds=seconds,
        wait_seconds=wait_ns / 1e9,
        samples=samples * distributed.ranks(),
        skipped_steps=len(losses) - (arm.taken.count - taken),
    )


@contextmanager
def testing(arm: BuiltArm) -> Iterator[None]:
    """Put the model in evaluation mode, and optimizers that test with other weights."""
    # Schedule-free ones test with an average of the weights that they train.
    switched: list[Any] = [arm.model]
    for optimizer in arm.optimizers.values():
        if hasattr(optimizer, "eval"):
            switched.append(optimizer)
    for each in switched:
        each.eval()
    yield
    for each in switched:
        each.train()


class CrossEntropies(TorchFunctionMode):
    """Records the scores and targets of each call of torch's cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []
        """Scores and targets."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Note the first two arguments of a cross entropy, and call ``func``."""
        if func is nn.functional.cross_entropy:
            self.seen.append(args[:2])
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def evaluate(arm: BuiltArm, batches: Iterator[Batch]) -> tuple[float, float | None]:
    """Return mean loss and, for classes, accuracy in per cent, over all processes' batches.

    Classes are whole numbers, one for each sample, with a score for each class: the targets of a
    loss of (output, target), or with a loss of (model, batch) those of the one call of torch's
    cross entropy in it. A sample whose outputs hold a NaN counts as wrong.

    Raises:
        UsageError: there is no batch.
    """
    # Sums stay on the device, where no batch waits for them, and do not round.
    total = torch.zeros((), device=arm.device, dtype=torch.float64)
    right = torch.zeros((), device=arm.device, dtype=torch.int64)
    count = classified = 0
    with testing(arm):
        for each in batches:
            batch = arm.arranged(each)
            size = arm.count(batch)
            loss, scored = _test(arm, batch)
            total += loss.double() * size
            count += size
            if len(scored) == 1 and _are_classes(*scored[0], size):
                scores, targets = scored[0]
                # The largest of NaNs would be the first class.
                has_nan = scores.isnan().any(dim=1)
                right += ((scores.argmax(dim=1) == targets) & ~has_nan).sum()
                classified += size
    sums = distributed.summed([float(total), int(right), count, classified])
    loss_sum, hits, samples, classes = sums
    if not samples:
        raise UsageError(
            "There is no batch to test on: let batches('test', …) return None where there are none."
        )
    # An accuracy is of all samples, or there is none.
    accuracy_pct = None
    if classes == samples:
        accuracy_pct = 100 * hits / samples
    return loss_sum / samples, accuracy_pct


def _test(arm: BuiltArm, batch: Batch) -> tuple[Tensor, list[tuple[Any, Any]]]:
    """Return the loss of a batch, and the scores and targets that it may have an accuracy of."""
    if arm.criterion is None:
        with arm.autocast(), CrossEntropies() as entropies:
            return loss_in(arm.loss(arm.model, batch)), entropies.seen
    inputs, targets = batch
    with arm.autocast():
        scores = arm.model(inputs)
        return arm.criterion(scores, targets), [(scores, targets)]


def _are_classes(scores: Any, targets: Any, size: int) -> bool:
    """Return whether each of so many samples has a class, and a score for each class."""
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor):
        return False
    has_scores = scores.dim() == 2 and scores.shape[1] > 1
    return has_scores and not targets.is_floating_point() and targets.shape == (size,)


@torch.no_grad()
def evaluate_by(
    suite: Suite,
    arm: BuiltArm,
    batches: Iterator[Batch],
) -> dict[str, float | None]:
    """Return the figures of a suite's own ``evaluate`` under the arm's precision.

    None is one that is not finite. What is no dict of figures is the one that parity is judged on.

    Raises:
        UsageError: a figure is not one number, or the one that parity is judged on is missing.
    """
    assert suite.evaluate is not None
    with testing(arm), arm.autocast():
        output = suite.evaluate(arm.model, map(arm.arranged, batches))
        # A metric of torchmetrics.
        if hasattr(output, "compute"):
            output = output.compute()
    judged = "evaluate"
    if suite.quality:
        judged = suite.quality.name
    # One number without a name is the figure that parity is judged on.
    if not isinstance(output, Mapping):
        output = {judged: output}
    if suite.quality and judged not in output:
        raise UsageError(
            f"evaluate returned no figure {judged!r}, which Suite.quality names: {output}."
        )
    return {str(name): _figure(name, value) for name, value in output.items()}


def _figure(name: str, value: Any) -> float | None:
    try:
        number = float(value + 0)  # a text is no number, whatever it spells
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"evaluate's figure {name!r} is a {type(value).__name__}, not one number."
        ) from error
    if math.isfinite(number):
        return number
    return None
