"""A precision in training: fp32 switches, autocast, loss scaling, and the type of the weights.

``fp32`` is really FP32 here: TF32 is off in matrix products, convolutions and recurrent layers
unless the precision asks for it, on the GPU and in oneDNN on the CPU.

With 16-bit weights and an fp32 master copy, a step is that of *Mixed Precision Training*
(Micikevicius et al., arXiv 1710.03740, section 3): the weights are a 16-bit copy of the master's
(1), the forward pass is in 16 bits (2), the loss in fp32 (3), which the GradScaler multiplies by
its scale (4), the backward pass is in 16 bits (5), each weight's gradient is widened to fp32 as
soon as it is complete (6), the GradScaler divides it by its scale (7), and the optimizer updates
the master (8). Batch norm keeps fp32 weights and statistics. Without a master copy, the naive
control, everything but the loss is in 16 bits, and the optimizer updates the 16-bit weights
themselves. All of it is hooks on the model and the optimizer, so that the training step is the same
for every precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.devices.backend import backend_of
from bench.devices.capabilities import matmul_error, set_fp32
from bench.measure.gradients import cast
from bench.results.records import Switches
from bench.spec.precisions import Precision


def apply(precision: Precision) -> None:
    """Set torch's process-wide fp32 switches, and whether cuDNN tries its algorithms."""
    set_fp32(precision.fp32)


def read_back(precision: Precision, device: torch.device) -> Switches:
    """Return the switches as they are now, and the error of an fp32 matrix product under them."""
    matmul, conv, rnn = backend_of(device).fp32_switches()
    return Switches(
        fp32_matmul=matmul,
        fp32_conv=conv,
        fp32_rnn=rnn,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        autocast=precision.autocast,
        loss_scaling=precision.loss_scaling,
        matmul_error=matmul_error(device),
    )


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return the region in which the forward pass and the loss run; a no-op without autocast."""
    if precision.autocast is None:
        return nullcontext()  # entering a disabled autocast costs 5 µs a step
    return torch.autocast(
        device.type,
        dtype=getattr(torch, precision.autocast),
        cache_enabled=precision.cache,
    )


class StaticScaler(torch.amp.GradScaler):
    """A GradScaler with a constant scale; it skips steps that overflow as usual."""

    def __init__(self, device: str, scale: float) -> None:
        super().__init__(device, init_scale=scale)
        self._static = scale

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Forget the gradients' overflows; keep the scale, or set it to ``new_scale``."""
        super().update(self._static if new_scale is None else new_scale)


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Return the precision's GradScaler, disabled where the precision does not scale the loss."""
    if precision.scale is not None:
        return StaticScaler(device.type, precision.scale)
    return torch.amp.GradScaler(
        device.type,
        init_scale=precision.init_scale,
        growth_interval=precision.growth_interval,
        enabled=precision.loss_scaling,
    )


class Weights:
    """A model's weights in the type of a precision, and their fp32 master copies."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        """Convert ``model`` to the precision's type in place; with fp32 weights it is unchanged."""
        self._model = model
        self._dtype = getattr(torch, precision.weights) if precision.weights else None
        self._masters: dict[nn.Parameter, nn.Parameter] = {}
        if self._dtype is None:
            return
        for module in model.modules():
            # With a master copy, statistics over a batch stay in fp32, as the paper has them.
            if precision.master and isinstance(module, _BatchNorm):
                continue
            for buffer in module.buffers(recurse=False):
                buffer.data = cast(buffer.data, self._dtype)
            for weight in module.parameters(recurse=False):
                exact = weight.data
                weight.data = cast(exact, self._dtype)
                # A weight in several places is narrow when it is met again, and one of whole
                # numbers stays as it is.
                if precision.master and weight.dtype != exact.dtype:
                    self._masters[weight] = nn.Parameter(exact, requires_grad=weight.requires_grad)
                    if weight.requires_grad:
                        weight.register_post_accumulate_grad_hook(self._widen_gradient)
        # Of several models each is called by itself.
        for called in model.values() if isinstance(model, nn.ModuleDict) else (model,):
            called.register_forward_pre_hook(self._narrow_inputs)
            called.register_forward_hook(self._widen_outputs)

    def trained(self) -> list[nn.Parameter]:
        """Return what the optimizer updates, in the order of the model's parameters.

        Those are masters where there are any.
        """
        return [self._masters.get(weight, weight) for weight in self._model.parameters()]

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer of the model's weights update their masters, before its first step.

        After each step the weights are copies of the masters: those of this optimizer, because a
        training step may go on with another.
        """
        weights: list[Tensor] = []
        masters: list[Tensor] = []
        for group in optimizer.param_groups:
            for place, weight in enumerate(group["params"]):
                if weight not in self._masters:
                    continue
                master = self._masters[weight]
                group["params"][place] = master
                weights.append(weight)
                masters.append(master)
                if weight in optimizer.state:
                    optimizer.state[master] = cast(optimizer.state.pop(weight), torch.float32)
        if weights:
            optimizer.register_step_post_hook(partial(_copy_masters, weights, masters))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the model's state dict with masters in place of their 16-bit weights."""
        state: dict[str, Tensor] = self._model.state_dict()
        # A weight in several places has a name in each, and the state dict has all of them.
        for name, weight in self._model.named_parameters(remove_duplicate=False):
            if weight in self._masters:
                state[name] = self._masters[weight].detach()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the state dict of any precision, rounded to the types here."""
        self._model.load_state_dict(state)
        for name, weight in self._model.named_parameters():
            # From the state, not from the weight, which has been rounded.
            if weight in self._masters:
                self._masters[weight].copy_(state[name])

    def _narrow_inputs(self, _model: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return cast(inputs, self._dtype)

    def _widen_outputs(
        self,
        _model: nn.Module,
        _inputs: tuple[Any, ...],
        outputs: Any,
    ) -> Any:
        return cast(outputs, torch.float32)

    def _widen_gradient(self, weight: Tensor) -> None:
        if weight.grad is None:
            return
        master = self._masters[weight]  # type: ignore[index]  # its hook is on a Parameter
        if master.grad is None:
            master.grad = weight.grad.float()
        else:
            # In place, where zeroing and a captured graph expect it; the sum is in fp32.
            master.grad.add_(weight.grad)
        weight.grad = None


@torch.no_grad()
def _copy_masters(weights: list[Tensor], masters: list[Tensor], *_: Any) -> None:
    # One launch for many weights: one for each would be felt in a model of many small layers.
    torch._foreach_copy_(weights, masters)
