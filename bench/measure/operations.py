"""The operations of a training step and the types that they compute in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from bench.results.records import Operations

_PRODUCT = re.compile(
    r"(?:\b|_)(?:[a-z0-9]*m[mv]|v?dot|addr|matmul|(?:bi|tri)?linear|conv(?:olution)?(?:\dd)?|rnn|lstm|gru"
    r"|att(?:entio)?n|flash)(?:\b|_)"
)
# Of names like a product's: those that only do what follows the products, and those that only move
# weights.
_NO_PRODUCT = re.compile(r"thnn_fused|flatten_weight")

_aten: Any = torch.ops.aten
# The operators of scaled_dot_product_attention by its backend (torch.nn.attention.SDPBackend); the
# math backend is products and a softmax that nothing else uses.
ATTENTION = {
    "aten._scaled_dot_product_flash_attention": "flash",
    "aten._scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten._scaled_dot_product_efficient_attention": "efficient",
    "aten._scaled_dot_product_cudnn_attention": "cudnn",
    "aten._scaled_dot_product_fused_attention_overrideable": "overrideable",
    "aten._safe_softmax": "math",
}
_Formula = Callable[..., int]


def observe(step: Callable[[], object]) -> Operations:
    """Do one step under a dispatch mode, and count the FLOPs of its products by type.

    Of a step that fails nothing is known. Products are matrix products, convolutions and attention;
    each is seen below autocast, so after its casts, and in the backward pass too. The formulas are
    those of ``torch.utils.flop_counter``, corrected where ``formulas`` says. A product without one
    leaves ``flops_per_step`` unknown and its type with a ``?``.
    """
    mode = _Products()
    try:
        with mode:
            step()
    except Exception:
        # A model may do what cannot be observed. A step that fails by itself fails when timed, too.
        return Operations()
    flops: Counter[torch.dtype] = Counter()
    for (_module, dtype), count in mode.flops.items():
        flops[dtype] += count
    flops_per_step: float | None = float(flops.total())
    if mode.unknown:
        flops_per_step = None
    attention = [f"{backend}:{calls}" for backend, calls in mode.attention.most_common()]
    return Operations(
        compute_dtypes=shares(flops, mode.unknown),
        flops_per_step=flops_per_step,
        attention=" ".join(attention),
    )


def flops_by_module(step: Callable[[], object]) -> Counter[tuple[str, torch.dtype]]:
    """Do one step as ``observe`` does; return the FLOPs of its products by module and type.

    The module is the innermost, as named in the model, of the backward pass too; empty outside of
    all, as in the loss. Products without a formula count as 0.

    Raises:
        Exception: whatever the step raises, or a model whose modules cannot be followed.
    """
    with ModuleTracker() as modules:
        mode = _Products(modules)
        with mode:
            step()
    return mode.flops


def shares(flops: Counter[torch.dtype], unknown: Iterable[torch.dtype] = ()) -> str:
    """Write each type's share of the FLOPs, largest first: ``bfloat16:98% float32:2%``.

    Types of unknown FLOPs are written with a ``?``.
    """
    parts = []
    for dtype, count in flops.most_common():
        if count:
            share = _percent(count / flops.total())
            parts.append(f"{_name(dtype)}:{share}")
    parts += sorted(f"{_name(dtype)}:?" for dtype in {*unknown})
    return " ".join(parts)


def formulas() -> dict[Any, _Formula]:
    """Return the FLOP formula of each operator that has one; a multiply-add is two.

    They are torch's, but for four things: its backward of a grouped convolution counts the weight's
    gradient as if there were one group; older ones lack the CPU's fused attention; all lack matrix
    times vector; and none counts what ``torch.nn.functional.scaled_mm`` multiplies.
    """
    known = dict(flop_registry)
    known[_aten.convolution_backward] = _convolution_backward
    known[_aten.mv] = known[_aten.dot] = _matrix_vector
    for name in ("_scaled_mm", "_scaled_mm_v2"):
        if hasattr(_aten, name):
            known[getattr(_aten, name)] = _scaled_product
    attention = "_scaled_dot_product_flash_attention"
    for direction in ("", "_backward"):
        on_cpu = getattr(_aten, f"{attention}_for_cpu{direction}")
        known[on_cpu] = flop_registry[getattr(_aten, f"{attention}{direction}")]
    return known


def _convolution_backward(
    grad_output: Tensor,
    inputs: Tensor,
    weight: Tensor,
    *rest: Any,
    **_result: Any,
) -> int:
    """Each of the two gradients, where it is asked for, has as many FLOPs as the forward pass."""
    _bias_sizes, *geometry, _output_padding, _groups, wanted = rest
    forward: int = flop_registry[_aten.convolution](
        inputs,
        weight,
        None,
        *geometry,
        out_val=grad_output,
    )
    return forward * sum(map(int, wanted[:2]))


def _matrix_vector(matrix: Tensor, _vector: Tensor, **_result: Any) -> int:
    return 2 * matrix.numel()


def _scaled_product(a: Tensor, b: Tensor, *_scales: Any, **_result: Any) -> int:
    rows, inner = a.shape
    return 2 * rows * inner * b.shape[1]


def is_product(name: str) -> bool:
    """Return whether an operator multiplies matrices, convolves or attends, by its name.

    A name is such as ``aten::addmm``.
    """
    if _NO_PRODUCT.search(name):
        return False
    return _PRODUCT.search(name) is not None


class _Products(TorchDispatchMode):
    """Counts products as they run."""

    supports_higher_order_operators = True

    def __init__(self, modules: ModuleTracker | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.formulas = formulas()
        self._modules = modules
        self.flops: Counter[tuple[str, torch.dtype]] = Counter()
        """By module, which is empty where none are followed, and by type."""
        self.attention: Counter[str] = Counter()
        """Calls of scaled_dot_product_attention by backend."""
        self.unknown: set[torch.dtype] = set()
        """The types of products without a formula."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Do ``func``, or its parts, and count it."""
        kwargs = kwargs or {}
        quantised = _quantised(func, args)
        if quantised is not None:
            with self:  # a mode does not see by itself the parts of a product of quantised tensors
                return quantised.__torch_dispatch__(func, types, args, kwargs)
        operator = getattr(func, "overloadpacket", func)
        # Operators that are made of others are seen as these, as in torch.utils.flop_counter, which
        # leaves out the same one.
        has_parts = hasattr(func, "decompose") and func is not torch.ops.prim.device.default
        if has_parts and operator not in self.formulas:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        self._count(operator, args, kwargs, result)
        return result

    def _count(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = str(operator)
        if name in ATTENTION:
            self.attention[ATTENTION[name]] += 1
        formula = self.formulas.get(operator)
        # Operators inside a higher-order one are not seen here, so it may be a product too.
        may_multiply = isinstance(operator, HigherOrderOperator) or is_product(name)
        if formula is None and not may_multiply:
            return
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        dtypes = [tensor.dtype for tensor in tensors]
        floating = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
        if not dtypes:
            return
        # The factors are the narrowest; biases to add and attention's statistics may be wider.
        dtype = min(floating or dtypes, key=attrgetter("itemsize"))
        flops = None
        if formula:
            # It may fail on shapes that it was not written for, such as a nested tensor's.
            with suppress(Exception):
                flops = formula(*args, **kwargs, out_val=result)
        if flops is None:
            self.unknown.add(dtype)
        self.flops[self._module(), dtype] += flops or 0

    def _module(self) -> str:
        """Return the innermost module that runs, without the class of the whole model."""
        running = set()
        if self._modules:
            running = self._modules.parents - {"Global"}
        return max(running, key=len, default="").partition(".")[2]


def _quantised(func: Any, args: Any) -> Any:
    """Return the class of a product's quantised operands; None without any.

    They are tensors of a Python class, such as torchao's, that passes for a wider type than it
    holds.
    """
    if not is_product(str(getattr(func, "overloadpacket", func))):
        return None
    for leaf in args:
        if isinstance(leaf, Tensor) and is_traceable_wrapper_subclass(leaf):
            names, _ = leaf.__tensor_flatten__()
            # The first of its tensors holds the numbers, the others how they are scaled.
            numbers: Tensor = getattr(leaf, names[0])
            if numbers.dtype.itemsize < leaf.dtype.itemsize:
                return type(leaf)
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _percent(share: float) -> str:
    if share < 0.01:
        return "<1%"
    if 0.99 < share < 1:
        return ">99%"
    return f"{share:.0%}"
