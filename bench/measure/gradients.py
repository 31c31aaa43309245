"""Gradients: how large they are, and how far they are from float64's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map

# Exponents of the first and the last bin: bin e holds magnitudes from 2^e to below 2^(e+1).
LOWEST = -48
HIGHEST = 17
ZERO = "zero"
BELOW = "below"
ABOVE = "above"
NONFINITE = "nonfinite"
# Names of a histogram's bins, in their order.
BINS = (ZERO, BELOW, *map(str, range(LOWEST, HIGHEST + 1)), ABOVE, NONFINITE)

# Tensors, each with the name of its parameter.
Named = Sequence[tuple[str, Tensor]]
# The loss of a model on a batch.
Loss = Callable[[nn.Module, Any], Tensor]


def named_gradients(model: nn.Module, weights: Iterable[nn.Parameter]) -> list[tuple[str, Tensor]]:
    """Return the gradients that there are, each with the name of its parameter.

    Sparse ones have all their zeros, complex ones real and imaginary parts as a last dimension.
    ``weights`` are what the optimizer updates: the model's parameters, or a master copy of them in
    the same order.
    """
    named = []
    for (name, _), weight in zip(model.named_parameters(), weights, strict=True):
        if weight.grad is not None:
            gradient = weight.grad.detach().to_dense()
            # frexp knows no complex numbers.
            if gradient.is_complex():
                gradient = torch.view_as_real(gradient)
            named.append((name, gradient))
    return named


def nonfinite_layers(named: Named) -> list[str]:
    """Return the layers with an infinite or NaN gradient, in the model's order."""
    layers: dict[str, None] = {}
    for name, gradient in named:
        if not gradient.isfinite().all():
            layers[name.rpartition(".")[0]] = None
    return list(layers)


def lost_updates(before: Iterable[Tensor], weights: Iterable[nn.Parameter]) -> float:
    """Return the share of the weights with a gradient that a step has left as they were ``before``.

    Counted are weights whose gradient is not zero. Their updates were less than half a unit in the
    last place. It is 0 without gradients.
    """
    lost = 0
    count = 0
    for old, weight in zip(before, weights, strict=True):
        if weight.grad is not None:
            # A weight without a gradient may stay as it is: nothing of it is lost.
            has_gradient = weight.grad.to_dense() != 0
            is_lost = has_gradient & (weight == old)
            lost += int(is_lost.sum())
            count += int(has_gradient.sum())
    if count:
        return lost / count
    return 0.0


def count_bins(values: Tensor) -> Tensor:
    """Return how many values there are in each of ``BINS``, int64."""
    # float32 has all values of the 16-bit types.
    wide = values if values.dtype == torch.float64 else values.float()
    exponent = torch.frexp(wide).exponent.long() - 1  # frexp's mantissa lies in [0.5, 1)
    # Bin 0 is zero's, bin 1 holds all below the lowest exponent.
    below = LOWEST - 1
    index = exponent.clamp(below, HIGHEST + 1) - below + 1
    index = index.masked_fill(wide == 0, 0)
    is_lost = ~torch.isfinite(wide)
    index = index.masked_fill(is_lost, len(BINS) - 1)
    return torch.bincount(index.flatten(), minlength=len(BINS))


@contextmanager
def _watched(model: nn.Module, see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Show ``see`` each floating-point output of the layers that hold no others, with their names.

    It is shown when it is computed.
    """

    def hook(name: str, _module: nn.Module, _inputs: object, output: object) -> None:
        for part in tree_leaves(output):
            if isinstance(part, Tensor) and part.is_floating_point() and part.numel():
                see(name, part)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            # A layer that holds others returns what the last of them does.
            if not any(module.children()):
                hooks.enter_context(module.register_forward_hook(partial(hook, name)))
        yield


@contextmanager
def watch_output_gradients(model: nn.Module, scale: float = 1.0) -> Iterator[list[Tensor]]:
    """Watch the gradients of the loss by the outputs of all layers that hold no others.

    Args:
        model: whose layers are watched.
        scale: the loss scale, by which gradients are divided before they are counted.

    Yields:
        A list that gets each output's counts of ``BINS``.
    """
    seen = []

    def count(gradient: Tensor) -> None:
        if scale != 1.0:
            # In float32: in float16 what a loss scale lifts would underflow again.
            gradient = gradient.float() / scale
        seen.append(count_bins(gradient))

    def see(_name: str, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(count)

    with _watched(model, see):
        yield seen


@contextmanager
def watch_activations(model: nn.Module) -> Iterator[Callable[[], dict[str, float]]]:
    """Watch the outputs of all layers that hold no others.

    Yields:
        A function that returns the largest absolute output of each layer since its last call, in
        the order that layers ran; NaN of a layer with a NaN. It waits for the device.
    """
    seen: dict[str, Tensor] = {}

    def read() -> dict[str, float]:
        largest = {name: float(value) for name, value in seen.items()}
        seen.clear()
        return largest

    def see(name: str, output: Tensor) -> None:
        largest = output.detach().abs().amax().float()
        if name in seen:  # a layer may run several times in a step
            largest = torch.maximum(seen[name], largest)
        seen[name] = largest

    with _watched(model, see):
        yield read


class Errors(NamedTuple):
    """Relative errors of a step against float64's, on the same weights and the same batch."""

    loss: float
    """Absolute difference over float64's loss."""
    output: float
    """Euclidean norm of the difference of the model's output over the norm of float64's."""
    gradients: float
    """The same of all gradients together."""


def errors_against_float64(
    model: nn.Module,
    exact: nn.Module,
    loss: Loss,
    batch: Any,
    *,
    exact_loss: Loss,
    scale: float = 1.0,
) -> Errors:
    """Compute loss and gradients at a precision and in float64, and compare them.

    Dropout is off in both, for the two would drop differently. ``model`` is left as it is.

    Args:
        model: with its weights, in the types that the precision holds them in.
        exact: the same model with the same weights in float64; it is used up.
        loss: computes the loss of (model, batch) at the precision.
        batch: of any structure, on the model's device.
        exact_loss: the same in float64, for a batch whose floating-point tensors are float64.
        scale: the loss is multiplied by it before the backward pass, and the gradients are divided
            by it.
    """
    narrow = copy.deepcopy(model)
    narrow.zero_grad(set_to_none=True)
    value, outputs, gradients = _pass(narrow, loss, batch, scale)
    exact_batch = cast(batch, torch.float64)
    true, true_outputs, true_gradients = _pass(exact, exact_loss, exact_batch, 1.0)
    loss_error = (value - true).abs() / true.abs()
    pairs = [(gradients[name], gradient) for name, gradient in true_gradients.items()]
    pairs_of_outputs = zip(outputs, true_outputs, strict=True)
    return Errors(
        loss=float(loss_error),
        output=distance(pairs_of_outputs),
        gradients=distance(pairs),
    )


def _pass(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    scale: float,
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Return the loss, the model's outputs, and the unscaled gradients by name.

    Loss and gradients are in float64.
    """
    stop_dropping(model)
    outputs = []

    def hook(_model: nn.Module, _inputs: object, output: object) -> None:
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                outputs.append(leaf.detach())

    with model.register_forward_hook(hook):
        value = loss(model, batch)
    (value * scale).backward()
    gradients = {}
    for name, gradient in named_gradients(model, model.parameters()):
        gradients[name] = gradient.double() / scale
    return value.detach().double(), outputs, gradients


def distance(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the relative difference of tensors from true ones.

    All are one vector in the Euclidean norm. It is NaN where all of them are 0, and infinite where
    only the true ones are.
    """
    difference = 0.0
    size = 0.0
    for tensor, true in pairs:
        wide = true.double()
        error = tensor.double() - wide
        difference += float(error.square().sum())
        size += float(wide.square().sum())
    if size == 0.0:
        if difference:
            return math.inf
        return math.nan
    return math.sqrt(difference / size)


def stop_dropping(module: nn.Module) -> None:
    """Turn dropout off in a model that trains."""
    for part in module.modules():
        if isinstance(part, _DropoutNd):
            part.p = 0.0


def cast(tree: Any, dtype: torch.dtype | None) -> Any:
    """Return a structure whose floating-point tensors have a type."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf

    return tree_map(convert, tree)
