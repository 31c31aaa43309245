"""Loss scaling from outside: a script trains in float16 as with a GradScaler of its own.

The launcher copies this file beside the hook, which installs it for ``--inject amp-fp16``. torch's
own GradScaler does the work: it scales the loss of a backward pass, skips steps with infinities,
and updates the scale.

A script that knows nothing of loss scaling may read gradients wherever it likes: it clips them,
logs their norm, or throws them away. So they are unscaled right after each backward pass, and
scaled again before one that adds to them. A factor is a power of two, so nothing is rounded. Where
gradients are not accumulated, that costs what GradScaler costs. The scale is updated before the
first backward pass after a step: what is unscaled already does not depend on when. A script that
discards infinite gradients by zeros in place of None keeps its loss scale.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, cast

AGAIN = (
    "gradients that a backward pass adds to are scaled again before it: that takes longer than a "
    "GradScaler of the script's own"
)


class Scaling:
    """The loss scale of a process, and what its backward passes have found."""

    def __init__(self, refuse: Callable[[str], None], warnings: set[str]) -> None:
        """Start before the first backward pass.

        Args:
            refuse: ends the process with a reason.
            warnings: is added to.
        """
        self.refuse = refuse
        self.warnings = warnings
        self.scaler: Any = None
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.found: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        """For each optimizer with a backward pass since its last step, whether gradients are
        infinite, by device."""
        self.is_due = False
        """Whether the scale is to be updated, because an optimizer has stepped."""
        self.is_stepping = False

    def backward(self, old: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> None:
        """Run a backward pass on the scaled loss, and unscale the gradients that it leaves."""
        import torch

        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))
        if self.scaler is None:
            self.scaler = torch.amp.GradScaler(first.device.type)
            self.scaler.scale(first.detach())  # which puts the scale on the device
            self._require_known_leaves(first)
        self._update()
        kept = []
        for optimizer in self.optimizers:
            kept += gradients_of(optimizer)
        if kept:
            self.warnings.add(AGAIN)
            torch._foreach_mul_(kept, self.scaler._scale)
        old(self.scaler.scale(tensors), *args, **kwargs)
        inverse = self.scaler._scale.double().reciprocal().float()
        for optimizer in self.optimizers:
            if gradients_of(optimizer):
                is_infinite = inverse.new_zeros(())
                self.found[optimizer] = self.scaler._unscale_grads_(
                    optimizer, inverse, is_infinite, False
                )

    def _update(self) -> None:
        """Update the scale after a step, and where the script threw its gradients away."""
        for optimizer in list(self.found):
            if not gradients_of(optimizer):
                self._state(optimizer)["found_inf_per_device"] = self.found.pop(optimizer)
                self.is_due = True
        if self.is_due:
            self.scaler.update()
            self.is_due = False

    def _state(self, optimizer: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", self.scaler._per_optimizer_states[id(optimizer)])

    def _require_known_leaves(self, loss: Any) -> None:
        """Refuse a loss that has the gradient of a tensor that is no parameter: an attacked input.

        Nothing would unscale it.
        """
        import torch

        known = set()
        for optimizer in self.optimizers:
            known |= {id(parameter) for parameter in parameters_of(optimizer)}
        seen = {None}
        left = [loss.grad_fn]
        while left:
            node = left.pop()
            if node in seen:
                continue
            seen.add(node)
            leaf: Any = getattr(node, "variable", None)
            is_known = leaf is None or isinstance(leaf, torch.nn.Parameter) or id(leaf) in known
            if not is_known:
                self.refuse(
                    f"it takes the gradient of a tensor of shape {tuple(leaf.shape)} that no "
                    "optimizer has, which loss scaling from outside would scale"
                )
            left += [following for following, _ in node.next_functions]

    def step(self, optimizer: Any, take: Callable[..., Any]) -> None:
        """Take an optimizer's step unless a gradient of it is infinite."""
        from torch.amp.grad_scaler import OptState

        found = self.found.pop(optimizer, None)
        if found is None:  # a further step on the same gradients
            take(optimizer)
            return
        state = self._state(optimizer)
        state["found_inf_per_device"] = found
        state["stage"] = OptState.UNSCALED
        self.is_due = True
        self.scaler.step(optimizer)

    def install(self) -> None:
        """Hook into torch's optimizers, of which each is known once it has parameters."""
        import torch

        kind: Any = torch.optim.Optimizer
        add_group = kind.add_param_group

        @functools.wraps(add_group)
        def add_param_group(optimizer, group):
            add_group(optimizer, group)
            self._require_own_parameters(optimizer)
            self.optimizers.add(optimizer)
            if "step" not in vars(optimizer):
                optimizer.step = types.MethodType(self._stepping(type(optimizer).step), optimizer)

        kind.add_param_group = add_param_group

    def _require_own_parameters(self, optimizer: Any) -> None:
        """Refuse an optimizer whose gradients would not be unscaled, or twice."""
        others = set()
        for other in self.optimizers - {optimizer}:
            others |= {id(parameter) for parameter in parameters_of(other)}
        for parameter in parameters_of(optimizer):
            if type(parameter).__name__ in ("DTensor", "FlatParameter"):
                self.refuse(
                    "its parameters are sharded: loss scaling cannot be entered from outside"
                )
            if id(parameter) in others:
                self.refuse(
                    "two optimizers have one parameter: loss scaling from outside would unscale "
                    "it twice"
                )

    def _stepping(self, take: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that scales, in the place of an optimizer's own."""
        import torch

        @torch.compiler.disable
        def step(optimizer, closure=None):
            if self.is_stepping:  # called by the GradScaler
                return take(optimizer)
            loss = None
            if closure is not None:
                if isinstance(optimizer, torch.optim.LBFGS):
                    self.refuse("LBFGS calls its closure several times, unlike loss scaling")
                with torch.enable_grad():
                    loss = closure()
            self.is_stepping = True
            try:
                self.step(optimizer, take)
            finally:
                self.is_stepping = False
            return loss

        return cast("Callable[..., Any]", step)


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def gradients_of(optimizer: Any) -> list[Any]:
    """Return the gradients that are there now of an optimizer's parameters."""
    return [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
