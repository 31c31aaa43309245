"""The numerics phase: the first steps of training, watched: loss, loss scale, gradients, activations, errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

import torch
from torch import Tensor, nn

from bench.data import Batches, open_batches
from bench.measure import gradients
from bench.phases.context import Setting, enter, open_setting
from bench.results.records import Device, Kind, Message, Numeric, Progress, TrialResult
from bench.spec.suite import Data
from bench.spec.trial import Trial
from bench.training.amp import apply, read_back
from bench.training.step import Arm, build_arm, training_step

STEPS = 60
LAST = 5
"""Gradients are looked at in so many of the last steps, in the first and in the middle one."""


def run(trial: Trial, device: Device, send: Callable[[Message], None], steps: int = STEPS) -> None:
    """Train the trial's only precision for some steps; send what was seen, then the result.

    Args:
        trial: what to train.
        device: where.
        send: takes the records.
        steps: how many steps; fewer where the loss ceases to be finite.
    """
    del device
    setting = open_setting(trial)
    precision, _ = enter(trial.precisions[0], setting.device)
    batches = open_batches(
        setting.data, trial.cell.data, batch_size=trial.cell.batch_size, device=setting.device, seed=trial.seed
    )
    arm = build_arm(
        setting.suite,
        batches.data,
        precision,
        setting.device,
        seed=trial.seed,
        steps=max(steps, trial.epochs * batches.steps_per_epoch),
        clip_grad=trial.clip_grad,
        techniques=setting.techniques,
    )
    apply(precision)  # again: a model may have set switches of its own
    watch = _Watch(arm=arm, trial=trial, send=send, setting=setting, data=batches.data)
    failure = watch.train(batches, steps)
    send(
        TrialResult(
            precision=precision.name,
            status="nonfinite" if failure else "ok",
            detail=failure,
            switches=read_back(precision, setting.device),
        )
    )


def looked_at(steps: int) -> set[int]:
    """Return the steps whose gradients are counted: the first, the middle one and the last five."""
    return {0, steps // 2, *range(max(0, steps - LAST), steps)}


@dataclass(slots=True)
class _Watch:
    """A training in progress, and where its figures go."""

    arm: Arm
    trial: Trial
    send: Callable[[Message], None]
    setting: Setting
    data: Data
    """With the number of classes that there really are."""
    largest: dict[str, tuple[float, int]] = field(default_factory=dict)
    """For each layer its largest activation so far, and the step."""

    def train(self, batches: Batches, steps: int) -> str:
        """Train; return what ceased to be finite, and when, or an empty string."""
        failure, chosen = "", looked_at(steps)
        with gradients.watch_activations(self.arm.model) as activations:
            for step, batch in enumerate(islice(_endless(batches), steps)):
                if step in (0, steps - 1):
                    self._errors(step, batch)
                activations.seen.clear()
                scale = _scale(self.arm)
                failure = self._step(step, batch, scale, activations)
                if step in chosen or failure:
                    self._gradients(step, scale)
                if failure:
                    break
                self.send(Progress(text=f"{self.arm.precision.name}: step {step + 1}", done=(step + 1) / steps))
        for layer, (value, step) in self.largest.items():
            self._say("activation", step, "largest", value, layer)
        return failure

    def _say(self, kind: Kind, step: int, name: str, value: float, layer: str = "") -> None:
        self.send(
            Numeric(
                trial=self.trial.id,
                precision=self.arm.precision.name,
                kind=kind,
                step=step,
                layer=layer,
                name=name,
                value=value,
            )
        )

    def _step(
        self, step: int, batch: tuple[Tensor, Tensor], scale: float | None, activations: gradients.LargestActivations
    ) -> str:
        """Train on a batch; return what of it was not finite and cannot be mended by skipping the step."""
        arm = self.arm
        taken = arm.taken.count
        loss = training_step(arm, *batch).item()
        values = activations.read()
        bad = gradients.nonfinite_layers(self._named())
        self._say("step", step, "loss", loss)
        if scale is not None:
            self._say("step", step, "loss_scale", scale)
        self._say("step", step, "skipped", float(arm.taken.count == taken))
        self._say("step", step, "finite", float(math.isfinite(loss) and not bad))
        for layer, value in values.items():
            if not value <= self.largest.get(layer, (-1.0, 0))[0]:  # a NaN is kept, for it is what is looked for
                self.largest[layer] = (value, step)
        if not math.isfinite(loss):
            first = next((layer for layer, value in values.items() if not math.isfinite(value)), None)
            where = f"first in the output of layer {first}" if first else "with every layer's output finite"
            return f"the loss became {loss} at step {step}, {where}"
        if bad and scale is None:
            # The backward pass runs from the last layer to the first.
            return f"gradients became infinite or NaN at step {step}, first in layer {bad[-1]}"
        return ""

    def _gradients(self, step: int, scale: float | None) -> None:
        """Count the gradients that a step left behind, which the scaler has divided by the scale again."""
        named = self._named()
        self._counts("gradient", step, gradients.BINS, gradients.histograms(named))
        self._counts("float16", step, gradients.FATES, gradients.float16_fates(named))
        scaled = gradients.float16_fates(named, scale or gradients.REFERENCE_SCALE)
        self._counts("float16_scaled", step, gradients.FATES, scaled)

    def _counts(self, kind: Kind, step: int, names: tuple[str, ...], groups: dict[str, list[int]]) -> None:
        for layer, counts in groups.items():
            for name, value in zip(names, counts, strict=True):
                if value or kind != "gradient":
                    self._say(kind, step, name, value, layer)

    def _errors(self, step: int, batch: tuple[Tensor, Tensor]) -> None:
        arm = self.arm
        found = gradients.errors_against_float64(
            arm.model, self._exact(), arm.loss, batch, autocast=arm.autocast, scale=_scale(arm) or 1.0
        )
        self._say("error", step, "loss", found.loss)
        for layer, error in found.gradients.items():
            self._say("error", step, "gradient", error, layer)

    def _named(self) -> gradients.Named:
        return gradients.named_gradients(self.arm.model, self.arm.weights.trained())

    def _exact(self) -> nn.Module:
        """Build the model anew in float64, with the arm's weights, or the master copy that they are rounded from."""
        with torch.random.fork_rng(devices=[]):
            model = self.setting.suite.model(self.data).to(self.arm.device).double().train()
        model.load_state_dict(self.arm.weights.state_dict())
        return model


def _scale(arm: Arm) -> float | None:
    return arm.scaler.get_scale() if arm.scaler.is_enabled() else None


def _endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in count(1):
        yield from batches.train(epoch)
