"""Conversions: torchao replaces linear layers.

The conversion records which layers are converted, which are not, and why. Weights stay in fp32, as
the same parameters under the same names, so optimizers, checkpoints and evaluation in fp32 do not
depend on it.

Source: torchao.float8 (per-tensor and row-wise scaling).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from bench.results.records import Conversion
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import Precision


def convert(
    model: nn.Module,
    precision: Precision,
    stay: Collection[nn.Module] = (),
) -> Conversion:
    """Let torchao convert the linear layers that fit, in place; return what became of each.

    The modules that ``stay`` are not converted.

    Raises:
        UnsupportedError: none fits, so that the arm would be its autocast's and no more; or the
            library refuses.
    """
    fitting = {}
    kept = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        misfit = "kept in fp32" if layer in stay else _misfit(name, layer, precision.multiple)
        if misfit:
            kept[name] = misfit
        else:
            fitting[name] = layer
    if not fitting:
        reasons = [f"{name}: {why}" for name, why in kept.items()]
        text = "; ".join(reasons) or "it has none"
        raise UnsupportedError(
            f"{precision.name} converts none of the model's linear layers ({text})"
        )
    twin = _float8_twins(precision)
    twins = {}
    for layer in fitting.values():
        # A new module is in training mode, whatever its model is in.
        twins[layer] = twin(layer).train(layer.training)
    # A layer may stand in several places. A list, because children are replaced on the way.
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if child in twins:
                setattr(parent, name, twins[child])
    return Conversion(converted_layers=tuple(fitting), kept_layers=kept)


def _misfit(name: str, layer: nn.Linear, multiple: int) -> str:
    if not name:
        return "the model itself is the layer"
    if type(layer) is not nn.Linear:
        return f"a {type(layer).__name__}, which may do more than a linear layer"
    if layer.in_features % multiple or layer.out_features % multiple:
        return f"{layer.in_features} to {layer.out_features}, not multiples of {multiple}"
    return ""


def _float8_twins(precision: Precision) -> Callable[[nn.Linear], nn.Module]:
    """Return a function that returns a layer's twin, with the same weights and shapes."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear

    class CheckedFloat8Linear(Float8Linear):  # type: ignore[misc,unused-ignore]  # torchao may be missing
        """torchao's layer, which lets torch refuse batches."""

        def forward(self, input: Tensor) -> Tensor:
            # Products of weights' gradients are over the rows of a batch.
            rows = input.numel() // self.in_features
            if rows % precision.multiple and torch.is_grad_enabled():
                raise UnsupportedError(
                    f"{precision.name} needs samples, or tokens, in multiples of "
                    f"{precision.multiple} in a batch, not {rows}"
                )
            output: Tensor = super().forward(input)
            return output

    config = Float8LinearConfig.from_recipe_name(precision.conversion)

    def twin(layer: nn.Module) -> nn.Module:
        converted: nn.Module = convert_to_float8_training(layer, config=config)
        converted.__class__ = CheckedFloat8Linear
        return converted

    return twin
