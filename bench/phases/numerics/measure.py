"""The numerics phase: losses, gradients, activations and errors of a training's first steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle, islice

import torch
from torch import Tensor, nn

from bench.data import Batches
from bench.data.batch import Batch
from bench.measure import gradients
from bench.results.records import Device, Kind, Numeric, Progress, Send
from bench.spec.errors import UnsupportedError
from bench.spec.trial import Trial
from bench.training.arms import Context, TrainingRunner, open_context
from bench.training.own_step import loss_in
from bench.training.step import BuiltArm, build_model, pair_loss, training_step

STEPS = 60
# Gradients are counted in so many of the last steps, and in the first.
LAST = 5
# Share of the updates that rounding loses from which the result says so: from then on most weights
# stand still.
MENTIONED = 0.5


def run(
    trial: Trial,
    _device: Device,
    send: Send,
    steps: int = STEPS,
) -> None:
    """Train the trial's only precision for some steps; send the figures, then the result.

    There are fewer ``steps`` where the loss ceases to be finite.
    """
    context = open_context(trial)
    if context.suite.step is not None:
        raise UnsupportedError(
            f"numerics needs the loss of one backward pass, and {context.suite.name} has its own "
            "step"
        )
    (name,) = trial.arm_names
    batches = context.open_batches()
    # A schedule goes as far in these steps as it does in the training.
    planned = context.suite.schedule_length(trial.epochs, batches.steps_per_epoch)
    total = max(steps, planned)
    context = replace(context, data=batches.data)
    arm = context.build(name, steps=total)
    observation = _Observation(arm=arm, context=context, send=send)
    failure = observation.train(batches, steps)
    losses = observation.losses
    first = losses[0]
    last = losses[-1]
    course = f"loss {first:#.4g} in the first step, {last:#.4g} in the last of {len(losses)}"
    lost = min(observation.lost, default=0.0)
    if lost >= MENTIONED:
        course += f"; {100 * lost:.0f} % of the weights' updates were lost to rounding"
    one_batch = cycle(context.resident_batches(1))
    runner = TrainingRunner(name, arm, one_batch)
    result = runner.result(
        "nonfinite" if failure else "ok",
        failure or course,
        switches=runner.read_back(),
        operations=runner.operations(),
        conversion=arm.conversion,
    )
    send(result)


@dataclass(slots=True)
class _Observation:
    """A training in progress, and where its figures go."""

    arm: BuiltArm
    context: Context
    send: Send
    largest: dict[str, tuple[float, int]] = field(default_factory=dict)
    """For each layer its largest activation so far, and the step."""
    losses: list[float] = field(default_factory=list)
    """Of each step so far."""
    lost: list[float] = field(default_factory=list)
    """The share of the updates that rounding lost, of each step in which that was counted."""

    def train(self, batches: Batches, steps: int) -> str:
        """Train; return which quantity ceased to be finite, and when, or an empty string."""
        failure = ""
        first_of_last = max(0, steps - LAST)
        counted = {0, *range(first_of_last, steps)}
        endless = (batch for epoch in count(1) for batch in batches.train(epoch))
        with gradients.watch_activations(self.arm.model) as largest_activations:
            for step, batch in enumerate(islice(endless, steps)):
                if step in (0, steps - 1):
                    self._errors(step, batch)
                    largest_activations()  # forgets those of the copies
                scale = self.arm.loss_scale
                if step in counted:
                    before = []
                    for weight in self.arm.weights.trained():
                        before.append(weight.detach().clone())
                    watched = gradients.watch_output_gradients(self.arm.model, scale or 1.0)
                    with watched as of_outputs:
                        failure = self._step(step, batch, scale, largest_activations, before)
                    self._counts("output_gradient", step, of_outputs)
                else:
                    failure = self._step(step, batch, scale, largest_activations)
                if step in counted or failure:  # the scaler has divided them by the scale again
                    bins = []
                    for _, gradient in self._named():
                        bins.append(gradients.count_bins(gradient))
                    self._counts("gradient", step, bins)
                if failure:
                    break
                number = step + 1
                text = f"{self.arm.precision.name}: step {number}"
                self.send(Progress(text=text, done=number / steps))
        for layer, (value, step) in self.largest.items():
            self._send("activation", step, "largest", value, layer)
        return failure

    def _send(
        self,
        kind: Kind,
        step: int,
        name: str,
        value: float,
        layer: str = "",
    ) -> None:
        figure = Numeric(
            trial=self.context.trial.id,
            precision=self.arm.precision.name,
            kind=kind,
            step=step,
            layer=layer,
            name=name,
            value=value,
        )
        self.send(figure)

    def _step(
        self,
        step: int,
        batch: Batch,
        scale: float | None,
        largest_activations: Callable[[], dict[str, float]],
        before: Sequence[Tensor] | None = None,
    ) -> str:
        """Train on a batch; return which quantity was not finite, if skipping does not mend it.

        Where the weights as they are ``before`` it are given, it also counts the updates that are
        lost.
        """
        arm = self.arm
        taken = arm.taken.count
        loss = training_step(arm, batch).item()
        values = largest_activations()
        bad = gradients.nonfinite_layers(self._named())
        self.losses.append(loss)
        is_skipped = arm.taken.count <= taken
        figures = {"loss": loss, "loss_scale": scale, "skipped": is_skipped}
        if before is not None and not is_skipped:
            lost = gradients.lost_updates(before, arm.weights.trained())
            self.lost.append(lost)
            figures["lost_updates"] = lost
        for name, figure in figures.items():
            if figure is not None:
                self._send("step", step, name, float(figure))
        for layer, value in values.items():
            # Magnitudes, so that the first of a layer is larger.
            largest, _ = self.largest.get(layer, (-1.0, 0))
            if not value <= largest:  # a NaN is kept, for it is what is looked for
                self.largest[layer] = (value, step)
        if not math.isfinite(loss):
            where = "with every layer's output finite"
            for layer, value in values.items():
                if not math.isfinite(value):
                    where = f"first in the output of layer {layer}"
                    break
            return f"the loss became {loss} at step {step}, {where}"
        if bad and scale is None:
            # The backward pass runs from the last layer to the first.
            first = bad[-1]
            return f"gradients became infinite or NaN at step {step}, first in layer {first}"
        return ""

    def _counts(self, kind: Kind, step: int, counts: list[Tensor]) -> None:
        """Send the sums of counts of ``gradients.BINS``; empty bins are left out."""
        if not counts:
            return
        # Of all tensors together: a row for each of them would be a file of megabytes.
        sums = torch.stack(counts).sum(dim=0).tolist()
        for name, value in zip(gradients.BINS, sums, strict=True):
            if value:
                self._send(kind, step, name, value)

    def _errors(self, step: int, batch: Batch) -> None:
        """Compare with the same step in float64, with the arm's weights or their master copy."""
        arm = self.arm
        with torch.random.fork_rng(devices=[]):
            exact = build_model(self.context.suite, self.context.data)
        exact = exact.to(arm.device).double().train()
        for tensor in (*exact.parameters(), *exact.buffers()):
            if tensor.is_complex():  # double() leaves it
                tensor.data = tensor.data.to(torch.complex128)
        state = arm.weights.state_dict()
        # Converted layers may hold more.
        common = {name: state[name] for name in exact.state_dict()}
        exact.load_state_dict(common)
        exact_loss = arm.loss
        if arm.criterion is not None:
            exact_criterion = copy.deepcopy(arm.criterion).double()
            exact_loss = pair_loss(exact_criterion)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            with arm.autocast():
                return loss_in(arm.loss(model, batch))

        errors = gradients.errors_against_float64(
            arm.model,
            exact,
            loss,
            batch,
            exact_loss=lambda model, batch: loss_in(exact_loss(model, batch)),
            scale=arm.loss_scale or 1.0,
        )
        self._send("error", step, "loss", errors.loss)
        self._send("error", step, "output", errors.output)
        self._send("error", step, "gradient", errors.gradients)

    def _named(self) -> gradients.Named:
        return gradients.named_gradients(self.arm.model, self.arm.weights.trained())
