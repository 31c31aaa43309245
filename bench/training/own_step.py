"""A suite's own training step, for what one backward pass cannot express, such as a GAN.

The step is written with ``Training``, which scales, clips and steps as each precision needs it. The
harness's own step takes from here which tensor is the loss, and how optimizers step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.data.batch import Batch
from bench.measure.memory import updated
from bench.spec.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from bench.training.step import BuiltArm


class Training:
    """An arm in training, as a suite's ``step(training, batch)`` gets it."""

    def __init__(self, step: Callable[[Training, Batch], Any]) -> None:
        """Take the suite's step."""
        self._suite_step = step
        self._arm: BuiltArm = None  # type: ignore[assignment]  # that of the step in progress
        self._learns = False
        self._updating = False
        self._asked = 0
        """Optimizer steps, in the training step in progress."""
        self._stepped = set[Optimizer]()
        """With the scale as it is."""
        self._used = set[Optimizer]()
        """Whose gradients have been used, and go before others are added."""

    @property
    def model(self) -> Any:
        """The suite's model, or a mapping of its models: call these.

        They are as the precision and the techniques have them.
        """
        return self._arm.forward

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """The suite's optimizers by their names."""
        return self._arm.optimizers

    @property
    def device(self) -> torch.device:
        """Where the model and the batch lie."""
        return self._arm.device

    @property
    def scale(self) -> float:
        """The factor of losses before their backward pass; 1.0 where the precision scales none."""
        return self._arm.loss_scale or 1.0

    def autocast(self) -> AbstractContextManager[None]:
        """Return the region in which forward passes and losses run under the precision."""
        return self._arm.autocast()

    def update(
        self,
        loss: Tensor,
        optimizer: str | None = None,
        retain_graph: bool = False,
        clip: float | None = None,
    ) -> None:
        """Drop an optimizer's gradients, compute those of a loss, and take a step.

        Call it outside the region.

        Args:
            loss: of one number.
            optimizer: its name; None is all of the suite's.
            retain_graph: whether a later update needs the graph.
            clip: the norm to clip the optimizer's gradients to; None is the recipe's.

        Raises:
            KeyError: there is no such optimizer.
            UsageError: the loss is not one number.
        """
        chosen = self._chosen(optimizer)
        self._arm.zero_grad(chosen)
        self._used.difference_update(chosen)
        scalar = _scalar(loss, "The loss given to training.update")
        self._arm.scaler.scale(scalar).backward(retain_graph=retain_graph)
        self.step(optimizer, clip)

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        """Scale a loss and add its gradients to those that are there, any number of times.

        Call it outside the region. The first one after an optimizer's step drops the gradients
        which that has used.

        Args:
            loss: of one number.
            retain_graph: whether a later pass needs the graph.

        Raises:
            UsageError: the loss is not one number.
        """
        scalar = _scalar(loss, "The loss given to training.backward")
        self._arm.zero_grad(self._used)
        self._used.clear()
        self._arm.scaler.scale(scalar).backward(retain_graph=retain_graph)

    def step(self, optimizer: str | None = None, clip: float | None = None) -> None:
        """Take a step with the gradients that ``backward`` has left.

        Args:
            optimizer: its name; None is all of the suite's.
            clip: the norm to clip the optimizer's gradients to; None is the recipe's.

        Raises:
            KeyError: there is no such optimizer.
        """
        arm = self._arm
        chosen = self._chosen(optimizer)
        self._used.update(chosen)
        # ``gradients`` runs the suite's step for its products alone.
        if not self._learns:
            return
        # A GradScaler lets each optimizer step once, until its scale is updated.
        if not self._stepped.isdisjoint(chosen):
            arm.scaler.update()
            self._stepped.clear()
        self._updating = True
        take_steps(arm, chosen, arm.clip_grad if clip is None else clip)
        self._updating = False
        self._stepped.update(chosen)
        self._asked += len(chosen)

    def _chosen(self, optimizer: str | None) -> list[Optimizer]:
        optimizers = self._arm.optimizers
        if optimizer is None:
            return [*optimizers.values()]
        return [optimizers[optimizer]]

    def train(self, arm: BuiltArm, batch: Batch) -> Tensor:
        """Run the suite's step; return its loss, or the sum of its losses, without a graph.

        Raises:
            UnsupportedError: the step calls an optimizer's ``.step()`` itself, and the precision
                scales losses.
            UsageError: it returned no loss.
        """
        self._learns = True
        self._asked = 0
        loss = self._run(arm, batch)
        # The scale follows once from all that stepped with it.
        if self._stepped:
            arm.scaler.update()
        self._stepped.clear()
        arm.taken.end_step(self._asked)
        arm.end("step")
        return loss

    def gradients(self, arm: BuiltArm, batch: Batch) -> Tensor:
        """Run the suite's step without the updates."""
        self._learns = False
        return self._run(arm, batch)

    def refuse_unscaled(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Let an optimizer's step that a suite's step takes past the GradScaler be refused."""

        def refuse(*_: Any) -> None:
            # The GradScaler's own call of the optimizer comes here, too.
            if not self._updating:
                name = self._arm.precision.name
                raise UnsupportedError(
                    f"the step calls an optimizer's .step() itself, and {name} scales losses: use "
                    "training.step"
                )

        for optimizer in optimizers.values():
            optimizer.register_step_pre_hook(refuse)

    def _run(self, arm: BuiltArm, batch: Batch) -> Tensor:
        self._arm = arm
        self._updating = False
        # A step that only calls ``backward`` would add to the gradients of the last batch.
        arm.zero_grad()
        self._used.clear()
        losses = self._suite_step(self, arm.arranged(batch))
        if not isinstance(losses, Mapping):
            return _scalar(losses, "The loss that step returned").detach()
        scalars = []
        for name, loss in losses.items():
            scalar = _scalar(loss, f"The loss {name!r} that step returned")
            scalars.append(scalar.detach().reshape(()))
        # On the device: reading a loss would wait for it in every step.
        return torch.stack(scalars).sum()


def take_steps(
    arm: BuiltArm,
    optimizers: Collection[Optimizer],
    clip: float | None,
) -> None:
    """Let optimizers step, after the gradients of their weights are clipped to a norm, if any."""
    if clip is not None:
        # The norm is the gradients' own, not the scaled ones'.
        for optimizer in optimizers:
            arm.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(updated(optimizers), clip)
    for optimizer in optimizers:
        arm.scaler.step(optimizer)  # skips the step where a gradient overflowed


def _scalar(loss: Any, name: str) -> Tensor:
    if not isinstance(loss, Tensor):
        raise UsageError(f"{name} is a {type(loss).__name__}, and must be a tensor of one number.")
    if loss.numel() != 1:
        raise UsageError(
            f"{name} has shape {tuple(loss.shape)}, and must be one number, such as its mean."
        )
    return loss


def loss_in(output: Any) -> Tensor:
    """Return the loss in what a suite's loss returned: that, or the ``loss`` of it.

    Raises:
        UsageError: there is none, or it is not one number.
    """
    if isinstance(output, Mapping):
        output = output.get("loss")
    # transformers' outputs have it as an attribute.
    elif not isinstance(output, Tensor):
        output = getattr(output, "loss", output)
    return _scalar(output, "The loss, or what the suite's loss returned as 'loss',")
