"""Transformer Engine's layers in place of torch's, and the region in which they multiply in float8.

Linear layers that fit and layer norms are replaced, as Lightning's and Accelerate's plugins replace them; weights stay
in fp32, as the same parameters under the same names. Source: NVIDIA/TransformerEngine, tag v2.18,
transformer_engine/pytorch: module/linear.py, module/layernorm.py, quantization.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from bench.spec.errors import UnsupportedError, first_line
from bench.spec.precisions import Precision
from bench.spec.techniques import Techniques

PROBES = {
    "te_bfloat16": "is_bf16_available",
    "te_float8": "is_fp8_available",
    "te_mxfp8": "is_mxfp8_available",
}
"""Functions of transformer_engine.pytorch that say whether the GPU can do a ``Precision.conversion``, and why not."""


Padded = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
"""Returns what the first argument returns of the second, whose rows may have to be made more."""


def twins(precision: Precision, padded: Padded) -> Callable[[nn.Module], nn.Module]:
    """Return a function that makes Transformer Engine's layers of torch's linear layers and norms, with their weights.

    Args:
        precision: its ``conversion`` is one of ``PROBES``.
        padded: multiplies inputs, (..., in), of which a product narrower than autocast's takes certain numbers only.

    Raises:
        UnsupportedError: Transformer Engine cannot be loaded, or says that this GPU cannot do it.
    """
    te = _load(precision)
    # Delayed scaling pickles its history into the state dict, and refuses to load a pickle: state dicts are those of
    # torch's layers here, and a training that continues begins a new history.
    none = {"get_extra_state": nn.Module.get_extra_state, "set_extra_state": nn.Module.set_extra_state}

    class Linear(te.Linear):  # type: ignore[misc,name-defined]  # Any, to mypy
        def forward(self, input: Tensor) -> Tensor:
            """Return the layer's output, (..., out), of an input (..., in)."""
            return padded(super().forward, input)

    class LayerNorm(te.LayerNorm):  # type: ignore[misc,name-defined]
        pass

    for kind, (name, method) in itertools.product((Linear, LayerNorm), none.items()):
        setattr(kind, name, method)

    def twin(layer: Any) -> nn.Module:
        converted: Any
        if isinstance(layer, nn.LayerNorm):
            converted = LayerNorm(layer.normalized_shape, eps=layer.eps, device="meta")
            converted.normalized_shape = layer.normalized_shape
        else:
            converted = Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        converted.weight, converted.bias = layer.weight, layer.bias
        return converted  # type: ignore[no-any-return]

    return twin


def plain_norms(model: nn.Module) -> list[nn.Module]:
    """Return a model's layer norms that Transformer Engine has: those with a weight and a bias."""
    norms = (layer for layer in model.modules() if type(layer) is nn.LayerNorm)
    return [norm for norm in norms if norm.weight is not None and norm.bias is not None]


def _load(precision: Precision) -> Any:
    """Return transformer_engine.pytorch, which has been asked whether it does the precision here."""
    try:
        import transformer_engine.pytorch as te
    except (ImportError, OSError, RuntimeError, AssertionError) as error:  # its libraries may not match torch's
        raise UnsupportedError(f"{precision.name}: transformer_engine does not load: {first_line(error)}") from error
    available, why = getattr(te, PROBES[precision.conversion or ""])(return_reason=True)
    if not available:
        raise UnsupportedError(f"{precision.name}: Transformer Engine says: {why}")
    return te


def require_plain(techniques: Techniques, precision: Precision) -> None:
    """Refuse techniques for which Transformer Engine has ways of its own.

    Raises:
        UnsupportedError: one is among them.
    """
    used = {
        "compile": techniques.compile,
        "cuda-graphs": techniques.cuda_graphs,
        "checkpointing": techniques.checkpointing,
    }
    if names := [name for name, on in used.items() if on]:
        raise UnsupportedError(
            f"{precision.name} is not offered with {names[0]}: Transformer Engine has graphs and checkpointing of its "
            "own, and its delayed scaling cannot be compiled"
        )


class Region(AbstractContextManager[None]):
    """Torch's autocast with Transformer Engine's inside it; it may be entered again when it has been left."""

    def __init__(self, autocast: AbstractContextManager[Any], precision: Precision) -> None:
        from transformer_engine.common import recipe

        if precision.conversion == "te_mxfp8":
            self._recipe = recipe.MXFP8BlockScaling()
        elif precision.scaling == "current":
            self._recipe = recipe.Float8CurrentScaling()
        else:
            self._recipe = recipe.DelayedScaling()
        self._autocast = autocast
        self._narrow: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        import transformer_engine.pytorch as te

        self._autocast.__enter__()
        self._narrow = te.autocast(enabled=True, recipe=self._recipe)  # anew: before 2.16 one may be entered once
        self._narrow.__enter__()

    def __exit__(self, *error: Any) -> None:
        assert self._narrow is not None
        try:
            self._narrow.__exit__(*error)
        finally:
            self._autocast.__exit__(*error)
