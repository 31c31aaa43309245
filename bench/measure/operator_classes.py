"""What kinds of work a training step's operators and kernels are: one table of patterns, each with examples.

The class is that of the operator that launched a kernel. A kernel's own name decides whether a product ran on matrix
units (NVIDIA's tensor cores, AMD's matrix cores), and the class where no operator is known, as in a CUDA graph.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from bench.measure.operations import is_product
from bench.results.records import WorkClass

FLOATS = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
}  # fmt: skip
"""The names that a trace gives to floating-point types, and their bytes."""
SMALL = frozenset(name for name, size in FLOATS.items() if size < 4)
"""The types that matrix units take; fp32 is multiplied there only as TF32, which the kernel's name says."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Names that mean one class of work."""

    work: WorkClass
    names: re.Pattern[str]
    examples: tuple[str, ...]
    """Names as torch 2.14 or a GPU's libraries write them; each matches."""


def _pattern(work: WorkClass, names: str, *examples: str) -> Pattern:
    return Pattern(work, re.compile(names), examples)


RANGES = (
    _pattern("optimizer", r"^Optimizer\.", "Optimizer.step#SGD.step", "Optimizer.zero_grad#AdamW.zero_grad"),
    _pattern("communication", r"^(?:c10d::|nccl:|gloo:|record_param_comms)", "c10d::allreduce_", "nccl:all_reduce"),
    _pattern("loss scaling", r"^aten::_amp_", "aten::_amp_foreach_non_finite_check_and_unscale_"),
)
"""Whatever runs within these is of their class."""
WHOLE = frozenset(pattern.work for pattern in RANGES)
LAYOUT = re.compile(r"^aten::(?:_to_copy|to|contiguous|clone|to_dense|to_mkldnn|mkldnn_reorder\w*)$")
"""Operators that write the same numbers in another type or order."""
COPY = re.compile(r"^aten::copy_$")
OPERATORS = (
    _pattern(
        "normalisation and softmax",
        r"^aten::_?(?:\w*(?:batch|layer|group|instance|rms)_norm\w*|\w*softmax\w*)$",
        "aten::native_batch_norm_backward",
        "aten::cudnn_batch_norm",
        "aten::_log_softmax_backward_data",
        "aten::native_layer_norm",
    ),
    _pattern(
        "elementwise",
        r"^aten::_?(?:foreach_)?_?(?:add|sub|rsub|mul|div|neg|abs|sign|pow|sqrt|rsqrt|reciprocal|exp|expm1|log|log1p|log2|logsumexp|square|fmod|remainder|nan_to_num|sin|cos|erf"
        r"|relu|threshold|hardtanh|hardswish|hardsigmoid|leaky_relu|elu|celu|selu|gelu|silu|mish|sigmoid|tanh|softplus"
        r"|glu|prelu|dropout|native_dropout|bernoulli|normal|uniform|rand|randn|randperm|fused_dropout|where"
        r"|masked_fill|masked_scale|clamp|maximum|minimum|lerp|addc(?:mul|div)|sum|mean|prod|std|var|amax|amin|max|min"
        r"|argmax|argmin|cumsum|any|all|norm|linalg_vector_norm|l1_loss|mse_loss|nll_loss|smooth_l1_loss|huber_loss"
        r"|binary_cross_entropy|cross_entropy_loss|kl_div|eq|ne|lt|le|gt|ge|isfinite|isnan|isinf|bitwise|logical|floor"
        r"|ceil|round|fill|zero|ones|zeros|full|arange|cat|stack|index|gather|scatter|embedding|one_hot|tril|triu"
        r"|roll|flip|repeat|pad|constant_pad|reflection_pad|replication_pad|upsample|interpolate|im2col|col2im|sort"
        r"|nonzero|bincount|unique|cdist|grid_sampler|fft"
        r"|topk|pixel_shuffle|pixel_unshuffle|(?:adaptive_)?(?:avg|max)_pool|mkldnn_(?:adaptive_)?(?:avg|max)_pool)"
        r"(?:\d?d?)(?:_\w*|\d)*$",
        "aten::add_",
        "aten::relu_",
        "aten::clamp_min",
        "aten::threshold_backward",
        "aten::max_pool2d_with_indices_backward",
        "aten::_foreach_add_",
        "aten::nll_loss_forward",
        "aten::embedding_dense_backward",
        "aten::fill_",
    ),
    _pattern(
        "elementwise", r"^(?:triton_(?:poi|red|per)|cpp_fused)_", "triton_poi_fused_add_relu_0", "cpp_fused_add_0"
    ),
)
"""Classes by operator; what multiplies matrices is asked of ``operations.is_product`` first."""
BOOKKEEPING = re.compile(
    r"^(?:aten::_?(?:empty|new_|view|reshape|t$|transpose|permute|expand|as_strided|slice|select|unsqueeze|squeeze"
    r"|narrow|split|chunk|unbind|detach|alias|resize_|set_|result_type|resolve_|flatten|unflatten|unsafe_|lift_fresh"
    r"|numpy_T|movedim|size|stride|is_|has_|nested|sparse_coo|cast_|autocast|broadcast|meshgrid|conj|real|version"
    r"|swapaxes|refine_names|requires_grad|ensure_|assert|cudnn_init|use_cudnn|choose_qparams)\w*"
    r"|autograd::|torch::autograd::|detach|\w+Backward\d*$|\w+Backward$|ProfilerStep|Memory|Pregraph|TorchDynamo"
    r"|Torch-Compiled|## |CompiledFunction|AOTDispatcher |enumerate\(|DistributedDataParallel|\[)"
)
"""Operators and ranges that describe tensors or call others: on a GPU they launch nothing, on a CPU they are a part of
the time in which nothing is computed."""

KERNELS = (
    _pattern("communication", r"nccl|rccl|msccl", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"),
    _pattern(
        "copies",
        r"^(?:Memcpy|Copy) ?(?:HtoD|DtoH|PtoP|HostToDevice|DeviceToHost)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy PtoP (Device -> Device)",
        "CopyHostToDevice",
    ),
    _pattern("casts and layout", r"^(?:Memcpy|Copy)", "Memcpy DtoD (Device -> Device)", "CopyDeviceToDevice"),
    _pattern("elementwise", r"^(?:Memset|FillBuffer)", "Memset (Device)", "FillBuffer"),
    _pattern("optimizer", r"multi_tensor_apply|FusedAdam|FusedSgd", "void at::native::multi_tensor_apply_kernel<X>"),
    _pattern(
        "normalisation and softmax",
        r"(?i)softmax|batch_?norm|bn_(?:fw|bw)|layer_?norm|group_?norm|rms_?norm",
        "void (anonymous namespace)::softmax_warp_forward<float>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>",
    ),
    _pattern("elementwise", r"^triton_(?:poi|red|per)", "triton_poi_fused_convolution_relu_0"),
    _pattern(
        "casts and layout",
        r"(?i)nchwToNhwc|nhwcToNchw|CatArrayBatchedCopy_align|batched_transpose",
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false, true>",
    ),
    _pattern(
        "other products",
        r"(?i)gemm|gemv|cutlass|xmma|nvjet|conv|wgrad|dgrad|fprop|winograd|flash_(?:fwd|bwd)|fmha|mha|^Cijk_|ck_tile|dot_"
        r"|^triton_tem",
        "ampere_sgemm_128x64_nn",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1",
        "triton_tem_fused_mm_3",
    ),
    _pattern(
        "elementwise",
        r"elementwise|reduce_kernel|max_pool|avg_pool|dropout|embedding|index|scatter|gather|fill",
        "void at::native::vectorized_elementwise_kernel<4, X>",
        "void at::native::reduce_kernel<512, 1, X>",
    ),
)
"""Classes by kernel, where no operator is known that launched it; the first that matches counts."""
NO_MATRIX_UNITS = re.compile(r"(?i)simt|sgemm|dgemm|ffma|gemv|hfma|_fp32_fp32|naive|depthwise|dot_kernel|splitKreduce")
"""Vetoes, asked first: products on the ordinary arithmetic units, whatever else the name holds."""
MATRIX_UNITS = re.compile(
    r"(?i)tensorop|tf32|hmma|wgmma|s16816|s1688|s884|h884|h1688|h16816|i16832|xmma|bf16gemm|f16f16|bf16bf16|_MI\d|mfma|wmma"
    r"|sm90_|sm100_|flash_(?:fwd|bwd)|fmha_cutlass|nvjet_(?:sm\d+_)?[^s]"
)
"""Products on matrix units."""
BY_TYPE = re.compile(r"(?i)nvjet_(?:sm\d+_)?s[a-z]{2}|cutlass|ck_tile|triton")
"""Names that prove nothing: on matrix units where the operator's inputs have a small type."""


@cache
def operator_class(name: str, types: tuple[str, ...] = ()) -> WorkClass | None:
    """Return the class of an operator by itself; None where those around it decide, as for a copy.

    Args:
        name: as in a trace, such as ``aten::addmm``.
        types: the types of its inputs, as in a trace.
    """
    if COPY.match(name):
        return "casts and layout" if _changes_type(types) else None
    if LAYOUT.match(name):
        return "casts and layout"
    if BOOKKEEPING.match(name):
        return None
    if name.startswith(("aten::", "torchao::", "mkldnn", "onednn")) and is_product(name):
        return "other products"
    if name.startswith("triton_tem"):
        return "other products"
    return next((pattern.work for pattern in OPERATORS if pattern.names.match(name)), None)


@cache
def range_class(name: str) -> WorkClass | None:
    """Return the class that all within a range has, such as an optimizer's step; None where it says nothing."""
    return next((pattern.work for pattern in RANGES if pattern.names.match(name)), None)


def kernel_class(name: str) -> WorkClass:
    """Return the class of a kernel by its own name alone."""
    work: WorkClass = next((pattern.work for pattern in KERNELS if pattern.names.search(name)), "unknown")
    return "matrix units" if work == "other products" and on_matrix_units(name, ()) else work


def on_matrix_units(kernel: str, types: Sequence[str]) -> bool:
    """Say whether a product's kernel ran on matrix units.

    Args:
        kernel: its name.
        types: the types of the inputs of the operator that launched it; none if unknown.
    """
    if NO_MATRIX_UNITS.search(kernel):
        return False
    if BY_TYPE.search(kernel) and not re.search(r"(?i)tensorop", kernel):
        return bool(SMALL.intersection(types))
    return MATRIX_UNITS.search(kernel) is not None


def _changes_type(types: Sequence[str]) -> bool:
    floats = [name for name in types[:2] if name in FLOATS]
    return len(floats) == 2 and floats[0] != floats[1]
