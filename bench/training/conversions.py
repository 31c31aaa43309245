"""What torchao replaces: linear layers by such in 8 bits, and AdamW by one of fewer bits; and what is converted at all.

Which layers are converted, which are not, and why, is recorded.

Weights stay in fp32 and under their names, so optimizers, checkpoints and evaluation in fp32 need not know. Emulated,
torchao rounds the operands of each product to the narrow type and multiplies them in a wider one, on any device; its
own sources are torchao.float8 (a scale for each tensor, or for each row), torchao.prototype.moe_training (MXFP8, OCP
Microscaling Formats 1.0: a power of two for each 32 numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.results.records import Conversion
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import Precision
from bench.training import transformer_engine
from bench.training.techniques import require_compiler

FLOAT8_MULTIPLE, MX_BLOCK, NVFP4_TILE = 16, 32, 128
"""What a converted layer's sizes are multiples of: of float8 products (torch._scaled_mm; Transformer Engine's
get_align_size_for_quantization), of MXFP8's blocks, and of torchao's kernels for NVFP4."""


def convert(model: nn.Module, precision: Precision) -> Conversion:
    """Let torchao or Transformer Engine convert the linear layers that fit, in place; return what became of each.

    Raises:
        UnsupportedError: none fits, so that the arm would be its autocast's and no more; or the library refuses.
    """
    multiple = _multiple(precision)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    kept = {name: why for name, layer in layers.items() if (why := _misfit(name, layer, multiple))}
    if len(kept) == len(layers):
        reasons = "; ".join(f"{name}: {why}" for name, why in kept.items()) or "it has none"
        raise UnsupportedError(f"{precision.name} converts none of the model's linear layers ({reasons})")
    small = _too_small(precision, layers, kept)
    _CONVERSIONS.get(precision.conversion or "", _to_float8)(
        model, precision, lambda _layer, name: name in layers and name not in kept
    )
    return Conversion(
        converted_layers=tuple(name for name in layers if name not in kept), kept_layers=kept, small_layers=small
    )


def _multiple(precision: Precision) -> int:
    multiples = {"mxfp8": MX_BLOCK, "te_mxfp8": MX_BLOCK, "nvfp4": NVFP4_TILE}
    return multiples.get(precision.conversion or "", FLOAT8_MULTIPLE)


def _misfit(name: str, layer: nn.Linear, multiple: int) -> str:
    if not name:
        return "the model itself is the layer"
    if type(layer) is not nn.Linear:
        return f"a {type(layer).__name__}, which may do more than a linear layer"
    if layer.in_features % multiple or layer.out_features % multiple:
        return f"{layer.in_features} to {layer.out_features}, not multiples of {multiple}"
    return ""


def _too_small(precision: Precision, layers: dict[str, nn.Linear], kept: dict[str, str]) -> int | None:
    """Count the converted layers that torchao's own filter leaves out because small ones do not gain."""
    if precision.conversion not in ("tensorwise", "rowwise"):
        return None  # it has no filter for the others
    from torchao.float8.float8_linear_utils import _auto_filter_for_recipe

    gains = _auto_filter_for_recipe(precision.conversion, [])
    return sum(not gains(layer, name) for name, layer in layers.items() if name not in kept)


def replaced(optimizer: torch.optim.Optimizer, precision: Precision, kind: str) -> torch.optim.Optimizer:
    """Return torchao's AdamW in place of torch's, before its first step; it compiles its update of each shape.

    Args:
        optimizer: what to replace.
        precision: its ``optimizer`` says by what.
        kind: of device, as torch calls it.

    Raises:
        UnsupportedError: it is no AdamW, or torch.compile does not work here.
    """
    from torchao import optim

    if type(optimizer) is not torch.optim.AdamW:
        raise UnsupportedError(f"{precision.name} is an AdamW, and this suite trains with {type(optimizer).__name__}")
    require_compiler(kind)
    names = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")
    groups = [{name: group[name] for name in names} for group in optimizer.param_groups]
    builds = {
        "8-bit states": optim.AdamW8bit,
        "float8 states": optim.AdamWFp8,
        "stochastic rounding": partial(optim._AdamW, bf16_stochastic_round=True),
    }
    twin: torch.optim.Optimizer = builds[precision.optimizer or ""](groups)
    return twin


def rehearsal(optimizer: torch.optim.Optimizer, precision: Precision, kind: str) -> Callable[[], object]:
    """Return what takes a step of copies of all that an optimizer updates, for its update to be compiled."""
    groups = [{**group, "lr": float(group["lr"])} for group in optimizer.param_groups]
    for group in groups:
        group["params"] = [nn.Parameter(weight.detach().clone()) for weight in group["params"]]
        for weight in group["params"]:
            weight.grad = torch.zeros_like(weight)
    twin = replaced(torch.optim.AdamW(groups, foreach=False), precision, kind)
    return twin.step


Fits = Callable[[nn.Module, str], bool]


def _to_float8(model: nn.Module, precision: Precision, fits: Fits) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(Float8LinearConfig.from_recipe_name(precision.conversion), emulate=precision.emulated)
    convert_to_float8_training(model, module_filter_fn=fits, config=config)
    if precision.emulated:
        for layer in model.modules():
            if isinstance(layer, nn.Linear) and type(layer) is not nn.Linear:
                layer.register_forward_pre_hook(_narrowed)


def _narrowed(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Cast inputs as autocast would: torchao's layer asks for the autocast of GPUs alone."""
    return tuple(tensor.to(_autocast_type(tensor)) for tensor in inputs)


def _autocast_type(tensor: Tensor) -> torch.dtype:
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


def _to_mxfp8(model: nn.Module, precision: Precision, fits: Fits) -> None:
    from torchao.float8.float8_linear_utils import swap_linear_layers
    from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear, _to_mxfp8_then_scaled_mm
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    class AutocastMXFP8Linear(MXFP8Linear):  # type: ignore[misc,unused-ignore]  # torchao may be missing
        """torchao's layer, whose operands autocast narrows first: torchao's own takes them all in one type."""

        def forward(self, input: Tensor) -> Tensor:
            """Return the layer's output, (..., out), of an input (..., in)."""
            dtype, rows = _autocast_type(input), input.numel() // self.in_features
            if torch.is_grad_enabled() and rows % MX_BLOCK:
                raise UnsupportedError(
                    f"{precision.name} needs samples, or tokens, in multiples of {MX_BLOCK} in a batch, not {rows}"
                )
            output: Tensor = _to_mxfp8_then_scaled_mm(
                input.to(dtype),
                self.weight.to(dtype),
                kernel_preference=self.kernel_preference,
                scale_calculation_mode=self.scale_calculation_mode,
                wgrad_with_hp=self.wgrad_with_hp,
            )
            return output if self.bias is None else output + self.bias.to(output.dtype)

    kernels = KernelPreference.EMULATED if precision.emulated else KernelPreference.AUTO

    def converted(layer: nn.Linear) -> nn.Linear:
        twin: Any = AutocastMXFP8Linear(layer.in_features, layer.out_features, kernel_preference=kernels, device="meta")
        twin.weight, twin.bias = layer.weight, layer.bias
        return twin  # type: ignore[no-any-return]

    swap_linear_layers(model, converted, module_filter_fn=fits)


def _to_nvfp4(model: nn.Module, precision: Precision, fits: Fits) -> None:
    from torchao.prototype.moe_training.nvfp4_training.nvfp4_training import NVFP4Linear, NVFP4TrainingConfig
    from torchao.quantization import quantize_

    def check(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if (rows := inputs[0].shape[-2]) % NVFP4_TILE:
            raise UnsupportedError(
                f"{precision.name} needs samples in a batch, or tokens in a sequence, in multiples of {NVFP4_TILE}, "
                f"not {rows}"
            )

    with torch.random.fork_rng():  # each layer draws the signs of its Hadamard transform
        quantize_(model, NVFP4TrainingConfig(), filter_fn=fits)
    for layer in model.modules():
        if isinstance(layer, NVFP4Linear):
            layer.register_forward_pre_hook(check)


def _to_transformer_engine(model: nn.Module, precision: Precision, fits: Fits) -> None:
    transformer_engine.replace_layers(model, precision, fits, _multiple(precision))


_CONVERSIONS: dict[str, Callable[[nn.Module, Precision, Fits], None]] = {
    "mxfp8": _to_mxfp8,
    "nvfp4": _to_nvfp4,
    **dict.fromkeys(transformer_engine.PROBES, _to_transformer_engine),
}
"""What converts for each ``Precision.conversion`` that is no recipe of torchao's float8."""
