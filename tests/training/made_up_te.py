"""A stand-in for transformer_engine, for the tests: the API of its tag v2.18 on the CPU, and what the real one refuses.

Float8 operands are rounded and multiplied in fp32, by NumPy, so that torch's dispatcher does not see the products,
as it does not see those of the real extension. An ``autocast`` may be entered once, as before 2.16.
"""

from __future__ import annotations

import enum
import math
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

DType = enum.IntEnum("DType", {"kFloat8E4M3": 7, "kFloat8E5M2": 8})
"""Of the extension."""
E4M3, E5M2 = DType
TYPES = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}


@dataclass
class DelayedScaling:
    """Hybrid, as by default."""


@dataclass
class Float8CurrentScaling:
    """Hybrid, as by default."""


@dataclass
class MXFP8BlockScaling:
    """E4M3 throughout, as by default."""


class Storage:
    """A quantised operand, which is no tensor."""

    def __init__(self, tensor: Tensor, dtype: Any) -> None:
        scale = tensor.float().abs().amax().clamp(min=1e-12) / torch.finfo(TYPES[dtype]).max
        self._fp8_dtype = dtype
        self.rounded = (tensor.float() / scale).to(TYPES[dtype]).float() * scale

    def size(self) -> torch.Size:
        """Return the size of what was quantised."""
        return self.rounded.size()


@dataclass
class Library:
    """The made-up modules, what they are told and what they answer."""

    recipe: Any = None
    """Of the region that is open."""
    entered: list[Any] = field(default_factory=list)
    """The recipes of all regions so far."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Why, by the probe's name."""
    modules: dict[str, ModuleType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.common")
        names += ("transformer_engine.common.recipe", "transformer_engine_torch")
        self.modules = {name: ModuleType(name) for name in names}
        package, self.te, common, recipe, self.extension = self.modules.values()
        package.pytorch, package.common, common.recipe = self.te, common, recipe
        for each in (DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling):
            setattr(recipe, each.__name__, each)
        for probe in ("is_bf16_available", "is_fp8_available", "is_mxfp8_available"):
            setattr(self.te, probe, self._probe(probe))
        self.extension.generic_gemm = generic_gemm
        self.te.autocast = autocast(self)
        self.te.Linear, self.te.LayerNorm = linear(self), LayerNorm

    def _probe(self, name: str) -> Any:
        def answer(return_reason: bool = False) -> Any:
            why = self.unavailable.get(name, "")
            return (not why, why) if return_reason else not why

        return answer

    def install(self, monkeypatch: Any) -> Library:
        """Let it be imported."""
        for name, module in self.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return self


def generic_gemm(a: Any, transa: bool, b: Any, transb: bool, *_more: Any, **_options: Any) -> tuple[Any, ...]:
    """Multiply as cuBLAS does, column by column: b times a."""
    left, right = (each.rounded if isinstance(each, Storage) else each.float() for each in (b, a))
    left, right = (each.reshape(-1, each.shape[-1]).detach().numpy() for each in (left, right))
    product = (left.T if transb else left) @ (right.T if transa else right)
    return torch.from_numpy(product), None, None, None


def autocast(library: Library) -> type:
    """Return the class of regions."""

    class Autocast:
        def __init__(self, enabled: bool = True, calibrating: bool = False, recipe: Any = None) -> None:
            self.recipe, self.used = recipe if enabled else None, False

        def __enter__(self) -> None:
            assert not self.used, "generator didn't yield"
            self.used = True
            self.before, library.recipe = library.recipe, self.recipe
            library.entered.append(self.recipe)

        def __exit__(self, *_error: Any) -> None:
            library.recipe = self.before

    return Autocast


class Module(nn.Module):
    """The base of its layers."""

    def get_extra_state(self) -> Tensor:
        """Return a pickle, as with delayed scaling."""
        return torch.zeros(8, dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse it, as the real one does without an environment variable."""
        raise RuntimeError("Refusing to load pickled Transformer Engine extra state")


class LayerNorm(Module):
    """Computes in autocast's type."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, device: Any = "cuda") -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(tuple(normalized_shape), device=device))
        self.bias = nn.Parameter(torch.empty(tuple(normalized_shape), device=device))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise."""
        dtype = _activation(inputs)
        weight, bias = self.weight.to(dtype), self.bias.to(dtype)
        with torch.autocast(inputs.device.type, enabled=False):
            return functional.layer_norm(inputs.to(dtype), weight.shape, weight, bias, self.eps)


def linear(library: Library) -> type:
    """Return the class of linear layers."""

    class Linear(Module):
        def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = "cuda") -> None:
            super().__init__()
            self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
            self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device))
            self.bias = nn.Parameter(torch.empty(out_features, device=device)) if bias else torch.Tensor()

        def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
            rows, columns = math.prod(inp.shape[:-1]), inp.shape[-1]
            if library.recipe and (rows % 8 or columns % 16):
                raise ValueError("FP8 execution requires ...")
            product = Multiply.apply(inp, self.weight, library.recipe, _activation(inp), library.extension)
            return product + self.bias.to(product.dtype) if self.use_bias else product

    return Linear


class Multiply(torch.autograd.Function):
    """The product of a linear layer, and those of its gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, *settings: Any) -> Tensor:
        """Return the output, (..., out)."""
        recipe, dtype, extension = settings
        narrow = E4M3 if recipe else None
        a, b = (_operand(each.to(dtype), narrow) for each in (weight, inputs))
        ctx.operands, ctx.recipe, ctx.dtype, ctx.extension, ctx.shape = (a, b), recipe, dtype, extension, inputs.shape
        out: Tensor = extension.generic_gemm(a, True, b, False)[0]
        return out.to(dtype).view(*inputs.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Return the gradients of input and weight."""
        hybrid = ctx.recipe and not isinstance(ctx.recipe, MXFP8BlockScaling)
        narrow = E5M2 if hybrid else E4M3 if ctx.recipe else None
        weight, inputs = ctx.operands
        flat = _operand(gradient.reshape(-1, gradient.shape[-1]), narrow)
        input_gradient = ctx.extension.generic_gemm(weight, False, flat, False)[0].to(ctx.dtype).view(ctx.shape)
        return input_gradient, ctx.extension.generic_gemm(inputs, False, flat, True)[0], None, None, None


def _operand(tensor: Tensor, narrow: Any) -> Any:
    return tensor if narrow is None else Storage(tensor, narrow)


def _activation(inputs: Tensor) -> torch.dtype:
    kind = inputs.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype
