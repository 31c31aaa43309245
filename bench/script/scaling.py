"""Loss scaling entered into a script from outside: it trains in float16 as with a GradScaler of its own.

The launcher copies this file beside the hook, which installs it for ``--inject amp-fp16``. torch's own GradScaler does
the work; this file calls it where a script would: ``scale`` at a backward pass, ``unscale_`` before gradients are
clipped, ``step`` instead of an optimizer's step, ``update`` once all optimizers of an iteration have stepped.

A script may read gradients itself between a backward pass and a step. The profiled process, in which time does not
count, unscales each gradient as it arrives, so that whatever reads it is right, and notes such reads; if there are any,
the timed processes do the same. Otherwise they unscale once a step, as GradScaler does.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

CLIPPING = ("clip_grad_norm_", "clip_grad_value_")
"""Functions of torch.nn.utils that read the gradients of parameters."""


class Scaling:
    """The loss scale of a process, and where each optimizer is in its iteration."""

    def __init__(self, refuse: Callable[[str], None], *, on_arrival: bool, watch: bool) -> None:
        """Start before the first backward pass.

        Args:
            refuse: ends the process with a reason.
            on_arrival: whether each gradient is unscaled as it arrives, and not all of an optimizer's at once.
            watch: whether to note where the script reads gradients.
        """
        self.refuse, self.on_arrival, self.watch = refuse, on_arrival, watch
        self.scaler: Any = None
        self.optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.owners: dict[int, int] = {}
        """The optimizer of each parameter, both by id."""
        self.waiting: set[int] = set()
        """Optimizers with a backward pass since their last step."""
        self.stepped: set[int] = set()
        """Optimizers that have stepped since the scale was updated."""
        self.iteration: set[int] | None = None
        """The optimizers that step in an iteration, once a second one has shown that; until then all there are."""
        self.is_scaled, self.is_stepping = False, False
        """Whether a scaled backward pass runs, and whether an optimizer's step does."""
        self.reader = ""
        """Where the script reads gradients between a backward pass and a step: file and line."""

    def scale(self, tensors: Any) -> Any:
        """Return what a backward pass begins with, times the loss scale."""
        import torch

        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))
        if self.scaler is None:
            self.scaler = torch.amp.GradScaler(first.device.type)
        if self.watch and self.reader == "":
            self._require_known_leaves(first)
        self.waiting |= {*self.optimizers}
        return self.scaler.scale(tensors)

    def backward(self, old: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> None:
        """Run a backward pass on the scaled loss."""
        scaled = self.scale(tensors)
        self.is_scaled = True
        try:
            old(scaled, *args, **kwargs)
        finally:
            self.is_scaled = False

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
            if leaf is not None and id(leaf) not in self.owners and not isinstance(leaf, torch.nn.Parameter):
                self.refuse(
                    f"it takes the gradient of a tensor of shape {tuple(leaf.shape)} that no optimizer has, which "
                    "loss scaling from outside would scale"
                )
            left += [following for following, _ in node.next_functions]

    def unscale(self, optimizer: Any) -> None:
        """Unscale the gradients of an optimizer that waits for its step, once."""
        from torch.amp.grad_scaler import OptState

        state = self.scaler._per_optimizer_states[id(optimizer)]
        if id(optimizer) not in self.waiting or state["stage"] is not OptState.READY:
            return
        if self.on_arrival:  # what is left is to look for infinities
            self.scaler._check_inf_per_device(optimizer)
            state["stage"] = OptState.UNSCALED
        else:
            self.scaler.unscale_(optimizer)

    def unscale_of(self, parameters: Iterable[Any]) -> None:
        """Unscale the gradients of the optimizers that have any of these parameters."""
        if self.scaler is None:
            return
        owners = {self.owners.get(id(parameter)) for parameter in parameters}
        for number, optimizer in list(self.optimizers.items()):
            if number in owners:
                self.unscale(optimizer)

    def step(self, optimizer: Any, take: Callable[..., Any]) -> Any:
        """Take an optimizer's step unless a gradient of it is infinite."""
        number = id(optimizer)
        has_gradient = any(each.grad is not None for group in optimizer.param_groups for each in group["params"])
        if number not in self.waiting or not has_gradient:  # a further step on gradients that are unscaled
            return take(optimizer)
        if number in self.stepped:  # a new iteration, in which other optimizers did not step
            self.iteration = self.stepped
            self._update()
        if self.on_arrival:
            self.unscale(optimizer)
        result = self.scaler.step(optimizer)
        self.waiting.discard(number)
        self.stepped = self.stepped | {number}
        if self.stepped >= (self.iteration or {*self.optimizers}):
            self._update()
        return result

    def _update(self) -> None:
        self.scaler.update()
        self.stepped = set()

    def arrived(self, gradient: Any) -> Any:
        """Return a gradient that a scaled backward pass has made for a parameter, unscaled."""
        return gradient * self.scaler._scale.double().reciprocal().to(gradient.dtype) if self.is_scaled else gradient

    def add(self, optimizer: Any) -> None:
        """Note an optimizer with all of its parameters."""
        import torch

        self.optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if type(parameter).__name__ in ("DTensor", "FlatParameter"):
                    self.refuse("its parameters are sharded: loss scaling cannot be entered from outside")
                is_new = id(parameter) not in self.owners
                self.owners[id(parameter)] = id(optimizer)
                if self.on_arrival and is_new and isinstance(parameter, torch.Tensor) and parameter.requires_grad:
                    parameter.register_hook(self.arrived)

    def read_by(self, frame: Any) -> None:
        """Note code that reads a gradient, unless it is torch's or an optimizer's own."""
        if self.waiting and not self.is_stepping and not self.reader:
            name = str(frame.f_globals.get("__name__", ""))
            if name.partition(".")[0] not in ("torch", __name__.partition(".")[0]):
                self.reader = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def install(self) -> None:
        """Hook into torch, which has just been imported."""
        import torch

        self._follow_optimizers(torch.optim.Optimizer)
        for name in CLIPPING:
            clip = self._clipping(getattr(torch.nn.utils, name))
            setattr(torch.nn.utils, name, clip)
            setattr(torch.nn.utils.clip_grad, name, clip)
        if self.watch:
            gradient: Any = torch._C.TensorBase.grad

            def read(tensor: Any) -> Any:
                self.read_by(sys._getframe(1))
                return gradient.__get__(tensor)

            torch.Tensor.grad = property(read, gradient.__set__, gradient.__delete__)  # type: ignore[assignment]

    def _follow_optimizers(self, kind: Any) -> None:
        """Put this class's step before that of each optimizer, which is known once it has parameters."""
        add_group = kind.add_param_group

        @functools.wraps(add_group)
        def add_param_group(optimizer: Any, group: Any) -> None:
            add_group(optimizer, group)
            self.add(optimizer)
            if "step" not in vars(optimizer):
                optimizer.step = types.MethodType(self._stepping(type(optimizer).step), optimizer)

        kind.add_param_group = add_param_group

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

    def _clipping(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that clips unscaled gradients."""
        import torch

        @functools.wraps(clip)
        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            self.unscale_of(tensors)
            return clip(tensors, *args, **kwargs)

        return clipped
