"""Conversions: torchao replaces linear layers.

The conversion records which layers are converted, which are not, and why. Weights stay in fp32, as
the same parameters under the same names, so optimizers, checkpoints and evaluation in fp32 do not
depend on it.

Source: torchao.float8 (per-tensor and row-wise scaling).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from bench.results.records import Conversion
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import Precision


def convert(model: nn.Module, precision: Precision, stay: Collection[nn.Module] = ()) -> Conversion:
    """Let torchao convert the linear layers that fit, in place; return what became of each.

    The modules that ``stay`` are not converted.

    Raises:
        UnsupportedError: none fits, so that the arm would be its autocast's and no more; or the
            library refuses.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    kept = {}
    for name, layer in layers.items():
        misfit = "kept in fp32" if layer in stay else _misfit(name, layer, precision.multiple)
        if misfit:
            kept[name] = misfit
    if len(kept) == len(layers):
        reasons = "; ".join(f"{name}: {why}" for name, why in kept.items()) or "it has none"
        raise UnsupportedError(
            f"{precision.name} converts none of the model's linear layers ({reasons})"
        )
    twin = _float8_twins(precision)
    twins: dict[Any, Any] = {}
    for name, layer in layers.items():
        if name not in kept:
            twins[layer] = twin(layer).train(layer.training)
    for parent in list(model.modules()):  # a layer may stand in several places
        for name, child in list(parent._modules.items()):
            if child in twins:
                setattr(parent, name, twins[child])
    return Conversion(
        converted_layers=tuple(name for name in layers if name not in kept), kept_layers=kept
    )


def _misfit(name: str, layer: nn.Linear, multiple: int) -> str:
    if not name:
        return "the model itself is the layer"
    if type(layer) is not nn.Linear:
        return f"a {type(layer).__name__}, which may do more than a linear layer"
    if layer.in_features % multiple or layer.out_features % multiple:
        return f"{layer.in_features} to {layer.out_features}, not multiples of {multiple}"
    return ""


# Returns a layer's twin, with the same weights, which maps inputs (..., in) to outputs (..., out).
Twins = Callable[[Any], nn.Module]


def _require_rows(precision: Precision, rows: int) -> None:
    """Refuse to train on a batch that the products of weights' gradients, which are over its rows, do not fit."""
    multiple = precision.multiple
    if rows % multiple and torch.is_grad_enabled():
        raise UnsupportedError(
            f"{precision.name} needs samples, or tokens, in multiples of {multiple} in a batch, "
            f"not {rows}"
        )


def _float8_twins(precision: Precision) -> Twins:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear

    class CheckedFloat8Linear(Float8Linear):  # type: ignore[misc,unused-ignore]  # torchao may be missing
        """torchao's layer, which lets torch refuse batches."""

        def forward(self, input: Tensor) -> Tensor:
            _require_rows(precision, input.numel() // self.in_features)
            output: Tensor = super().forward(input)
            return output

    config = Float8LinearConfig.from_recipe_name(precision.conversion)

    def twin(layer: nn.Module) -> nn.Module:
        converted: nn.Module = convert_to_float8_training(layer, config=config)
        converted.__class__ = CheckedFloat8Linear
        return converted

    return twin
