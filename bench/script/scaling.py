"""Loss scaling entered into a script from outside: it trains in float16 as with a GradScaler of its own.

The launcher copies this file beside the hook, which installs it for ``--inject amp-fp16``. torch's own GradScaler does
the work: it scales the loss of a backward pass, skips steps with infinities, and updates the scale once all optimizers
of an iteration have stepped.

A script that knows nothing of loss scaling may read gradients wherever it likes: it clips them, logs their norm, or
throws them away. So they are unscaled right after each backward pass, and scaled again before one that adds to them. A
factor is a power of two, so nothing is rounded. Where gradients are not accumulated, that costs what GradScaler costs.
A script that discards infinite gradients by zeros in place of None keeps its loss scale.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, cast


class Scaling:
    """The loss scale of a process, and where each optimizer is in its iteration."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        """Start before the first backward pass; ``refuse`` ends the process with a reason."""
        self.refuse = refuse
        self.scaler: Any = None
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.found: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        """For each optimizer with a backward pass since its last step, whether gradients are infinite, by device."""
        self.stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that have stepped since the scale was updated."""
        self.iteration: weakref.WeakSet[Any] | None = None
        """The optimizers that step in an iteration, once a second one has shown that; until then all there are."""
        self.pending: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that have not stepped since then although a backward pass has made gradients for them."""
        self.is_stepping = False

    def backward(self, old: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> None:
        """Run a backward pass on the scaled loss, and unscale the gradients that it leaves."""
        import torch

        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))
        if self.scaler is None:
            self.scaler = torch.amp.GradScaler(first.device.type)
            self.scaler.scale(first.detach())  # which puts the scale on the device
            self._require_known_leaves(first)
        self._end_discarded()
        kept = []
        for optimizer in self.optimizers:
            kept += [each.grad for each in parameters_of(optimizer) if each.grad is not None]
        if kept:
            torch._foreach_mul_(kept, self.scaler._scale)
        old(self.scaler.scale(tensors), *args, **kwargs)
        inverse = self.scaler._scale.double().reciprocal().float()
        for optimizer in self.optimizers:
            if any(each.grad is not None for each in parameters_of(optimizer)):
                found = inverse.new_zeros(())
                self.found[optimizer] = self.scaler._unscale_grads_(optimizer, inverse, found, False)
                if optimizer not in self.stepped:
                    self.pending.add(optimizer)

    def _require_known_leaves(self, loss: Any) -> None:
        """Refuse a loss whose gradient is taken of a tensor that is no parameter, such as an attacked input."""
        import torch

        seen, left = set(), [loss.grad_fn]
        while left:
            node = left.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None and not isinstance(leaf, torch.nn.Parameter) and not self._has(leaf):
                self.refuse(
                    f"it takes the gradient of a tensor of shape {tuple(leaf.shape)} that no optimizer has, which "
                    "loss scaling from outside would scale"
                )
            left += [following for following, _ in node.next_functions]

    def _has(self, tensor: Any) -> bool:
        return any(tensor is each for optimizer in self.optimizers for each in parameters_of(optimizer))

    def _end_discarded(self) -> None:
        """Update the scale where the script threw the last gradients away, as it may do with infinite ones."""
        discarded = [each for each in self.pending if all(one.grad is None for one in parameters_of(each))]
        for optimizer in discarded:
            self.scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = self.found.pop(optimizer)
            self.pending.discard(optimizer)
        if discarded:
            self._update()

    def step(self, optimizer: Any, take: Callable[..., Any]) -> Any:
        """Take an optimizer's step unless a gradient of it is infinite."""
        from torch.amp.grad_scaler import OptState

        found = self.found.pop(optimizer, None)
        self.pending.discard(optimizer)
        if found is None:  # a further step on the same gradients
            return take(optimizer)
        if optimizer in self.stepped:  # a new iteration, in which other optimizers did not step
            self.iteration = self.stepped
            self._update()
        state = self.scaler._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"], state["stage"] = found, OptState.UNSCALED
        result = self.scaler.step(optimizer)
        self.stepped.add(optimizer)
        if self.stepped >= (self.iteration or self.optimizers):
            self._update()
        return result

    def _update(self) -> None:
        self.scaler.update()
        self.stepped = weakref.WeakSet()

    def install(self) -> None:
        """Hook into torch's optimizers, of which each is known once it has parameters."""
        import torch

        kind: Any = torch.optim.Optimizer
        add_group = kind.add_param_group

        @functools.wraps(add_group)
        def add_param_group(optimizer: Any, group: Any) -> None:
            add_group(optimizer, group)
            self._add(optimizer)
            if "step" not in vars(optimizer):
                optimizer.step = types.MethodType(self._stepping(type(optimizer).step), optimizer)

        kind.add_param_group = add_param_group

    def _add(self, optimizer: Any) -> None:
        """Note an optimizer with all of its parameters."""
        others = {id(each) for other in self.optimizers if other is not optimizer for each in parameters_of(other)}
        for parameter in parameters_of(optimizer):
            if type(parameter).__name__ in ("DTensor", "FlatParameter"):
                self.refuse("its parameters are sharded: loss scaling cannot be entered from outside")
            if id(parameter) in others:
                self.refuse("two optimizers have one parameter: loss scaling from outside would unscale it twice")
        self.optimizers.add(optimizer)

    def _stepping(self, take: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that scales, in the place of an optimizer's own."""
        import torch

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def step(optimizer: Any, closure: Any = None) -> Any:
            if self.is_stepping:  # called by the GradScaler
                return take(optimizer)
            loss = None
            if closure is not None:
                if isinstance(optimizer, torch.optim.LBFGS):
                    self.refuse("LBFGS evaluates its closure several times, which loss scaling cannot follow")
                with torch.enable_grad():
                    loss = closure()
            self.is_stepping = True
            try:
                result = self.step(optimizer, take)
            finally:
                self.is_stepping = False
            return result if closure is None else loss

        return cast(Callable[..., Any], step)


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
