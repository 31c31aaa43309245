"""A training step's time by class of work, from a trace of torch.profiler in Chrome's format.

On a GPU it is the kernels' time, on a CPU that of the operators themselves; each instant of the
steps has one class of work, and ``idle`` is the time in which none runs. Nothing is rescaled, and
no class is a remainder of the others.

The class is that of the operator that launched a kernel. A kernel's own name decides whether a
product ran on matrix units (NVIDIA's tensor cores, AMD's matrix cores), and the class where no
operator is known, as in a CUDA graph.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Literal

from bench.measure.operations import is_product
from bench.phases.explain import CLASSES
from bench.phases.explain.observe import MODULE, STEP, Row
from bench.results.records import WorkClass
from bench.spec.errors import UnsupportedError

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CATEGORIES = ("cpu_op", "user_annotation")

# The names that a trace gives to floating-point types, and their bytes.
FLOATS = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "c10::complex<float>": 8,
}  # fmt: skip
# The types that matrix units take; fp32 is multiplied there only as TF32, which the kernel's name
# says.
SMALL = frozenset(name for name, size in FLOATS.items() if size < 4)

# Classes of work by name; the first that matches counts.
Patterns = tuple[tuple[WorkClass, str], ...]

# Whatever runs within these is of their class.
RANGES: Patterns = (
    ("optimizer", r"^Optimizer\."),  # Optimizer.step#SGD.step
    ("communication", r"^(?:c10d::|nccl:|gloo:|record_param_comms)"),
    ("loss scaling", r"^aten::_amp_"),
)
WHOLE = frozenset(work for work, _ in RANGES)
# Operators that write the same numbers in another type or order.
LAYOUT = r"^aten::(?:_to_copy|to|contiguous|clone|to_dense|to_mkldnn|mkldnn_reorder\w*)$"
COPY = "aten::copy_"
# Classes by operator; ``operations.is_product`` says first what multiplies matrices.
OPERATORS: Patterns = (
    (
        "normalisation and softmax",
        r"^aten::_?(?:\w*(?:batch|layer|group|instance|rms)_norm\w*|\w*softmax\w*)$",
    ),
    (
        "elementwise",
        (
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
            r"(?:\d?d?)(?:_\w*|\d)*$"
        ),
    ),
    # As torch.compile names its own.
    ("elementwise", r"^(?:triton_(?:poi|red|per)|cpp_fused)_"),
)
# Operators and ranges that describe tensors or call others: on a GPU they launch nothing, on a CPU
# they are a part of the time in which nothing is computed.
BOOKKEEPING = (
    r"^(?:aten::_?(?:empty|new_|view|reshape|t$|transpose|permute|expand|as_strided|slice|select|unsqueeze|squeeze"
    r"|narrow|split|chunk|unbind|detach|alias|resize_|set_|result_type|resolve_|flatten|unflatten|unsafe_|lift_fresh"
    r"|numpy_T|movedim|size|stride|is_|has_|nested|sparse_coo|cast_|autocast|broadcast|meshgrid|conj|real|version"
    r"|swapaxes|refine_names|requires_grad|ensure_|assert|cudnn_init|use_cudnn|choose_qparams)\w*"
    r"|autograd::|torch::autograd::|detach|\w+Backward\d*$|\w+Backward$|ProfilerStep|Memory|Pregraph|TorchDynamo"
    r"|Torch-Compiled|## |CompiledFunction|AOTDispatcher |enumerate\(|DistributedDataParallel|\[)"
)

# Classes by kernel, where no operator is known that launched it.
KERNELS: Patterns = (
    ("communication", r"nccl|rccl|msccl"),
    ("copies", r"^(?:Memcpy|Copy) ?(?:HtoD|DtoH|PtoP|HostToDevice|DeviceToHost)"),
    ("casts and layout", r"^(?:Memcpy|Copy)"),  # Memcpy DtoD (Device -> Device)
    ("elementwise", r"^(?:Memset|FillBuffer)"),
    ("optimizer", r"multi_tensor_apply|FusedAdam|FusedSgd"),
    (
        "normalisation and softmax",
        r"(?i)softmax|batch_?norm|bn_(?:fw|bw)|layer_?norm|group_?norm|rms_?norm",
    ),
    ("elementwise", r"^triton_(?:poi|red|per)"),
    (
        "casts and layout",
        r"(?i)nchwToNhwc|nhwcToNchw|CatArrayBatchedCopy_align|batched_transpose",
    ),
    (
        "other products",
        (
            r"(?i)gemm|gemv|cutlass|xmma|nvjet|conv|wgrad|dgrad|fprop|winograd|flash_(?:fwd|bwd)|fmha|mha|^Cijk_|ck_tile"
            r"|dot_|^triton_tem"
        ),
    ),
    (
        "elementwise",
        r"elementwise|reduce_kernel|max_pool|avg_pool|dropout|embedding|index|scatter|gather|fill",
    ),
)
# Vetoes, asked first: products on the ordinary arithmetic units, whatever else the name holds.
NO_MATRIX_UNITS = (
    r"(?i)simt|sgemm|dgemm|ffma|gemv|hfma|_fp32_fp32|naive|depthwise|dot_kernel|splitKreduce"
)
# Products on matrix units.
MATRIX_UNITS = (
    r"(?i)tensorop|tf32|hmma|wgmma|s16816|s1688|s884|h884|h1688|h16816|i16832|xmma|bf16gemm|f16f16|bf16bf16|_MI\d|mfma|wmma"
    r"|sm90_|sm100_|flash_(?:fwd|bwd)|fmha_cutlass|nvjet_(?:sm\d+_)?[^s]"
)
# Names that prove nothing: on matrix units where the operator's inputs have a small type.
BY_TYPE = r"(?i)nvjet_(?:sm\d+_)?s[a-z]{2}|cutlass|ck_tile|triton"


# The operators that are kept of a step, the longest.
OPERATORS_KEPT = 100

# Those of explain_figures.csv that describe an operator.
COLUMNS = ("name", "work", "module", "detail", "dtype")

# The start and the end of some time, and the class that it counts for.
_Span = tuple[float, float, WorkClass]


class _Event:
    """An operator of the host, or a range that a program named."""

    def __init__(self, raw: Mapping[str, Any], parent: _Event | None) -> None:
        """Read it from a trace, and interrupt the event around it."""
        arguments = raw.get("args", {})
        self.name: str = raw["name"]
        self.start: float = raw["ts"]
        self.end: float = self.start + raw["dur"]
        self.types: tuple[str, ...] = tuple(arguments.get("Input type", ()))
        self.sizes: Sequence[Any] = arguments.get("Input Dims", ())
        """Of its inputs: lengths, or for a list of tensors the lengths of each."""
        self.id: int | None = arguments.get("External id")
        """By which kernels refer to it."""
        self.sequence: int | None = arguments.get("Sequence number")
        """By which autograd knows an operator of the forward pass and its backward pass."""
        self.is_range = raw["cat"] == "user_annotation"
        self.is_backward = arguments.get("Fwd thread id", 0) > 0
        """Whether it is, or runs within, a backward pass."""
        self.is_recomputed = False
        """Whether it is a forward pass within a backward pass, as of activation checkpointing."""
        self.module = ""
        """The innermost module in whose forward pass, or the backward pass of that, it runs."""
        self.whole = range_class(self.name)
        """The class of the outermost range around it whose work is all of one class."""
        self.deciding = self
        """The nearest operator around this one, or this one, that has a class by itself."""
        self.decided = operator_class(self.name, self.types)
        """The class of that operator."""
        self.spans: list[tuple[float, float]] = []
        """When it ran itself, up to the last operator within it."""
        self.resumed = self.start
        """When that operator ended."""
        if parent is not None:
            parent.spans.append((parent.resumed, self.start))
            parent.resumed = self.end
            self.is_backward = self.is_backward or parent.is_backward
            self.is_recomputed = parent.is_recomputed
            self.module = parent.module
            self.whole = parent.whole or self.whole
            if self.decided is None and parent.decided is not None:
                self.deciding = parent.deciding
                self.decided = parent.decided

    @property
    def work(self) -> WorkClass | None:
        """The class of its own work, from its name, types and surroundings."""
        if self.whole or self.decided or self.name != COPY:
            return self.whole or self.decided
        return "casts and layout"


@dataclass(frozen=True, slots=True)
class _Segment:
    """Some time of a class of work."""

    start: float
    end: float
    work: WorkClass
    operator: _Event | None
    name: str

    @property
    def columns(self) -> tuple[str, WorkClass, str, str, str]:
        """The operator that decides its class, in the order of ``COLUMNS``.

        Where no operator is known, it is the kernel.
        """
        if self.operator is None:
            return self.name, self.work, "", "", ""
        event = self.operator.deciding
        shapes = []  # without those of lists and numbers
        for size in event.sizes:
            if size and isinstance(size[0], int):
                shapes.append("x".join(map(str, size)))
        floats = [kind for kind in event.types if kind in FLOATS]
        narrowest = min(floats, key=FLOATS.__getitem__, default="")
        return event.name, self.work, event.module, " ".join(shapes), narrowest


def decompose(
    trace: Mapping[str, Any],
    *,
    gpu: bool,
    matrix_types: frozenset[str] = SMALL,
) -> list[Row]:
    """Divide the steps of a trace by class of work.

    Args:
        trace: Chrome's trace format as torch.profiler writes it, with shapes; steps are ranges
            called ``STEP``.
        gpu: whether the time is that of kernels, or of operators on a CPU.
        matrix_types: types, as the trace calls them, that a CPU has matrix instructions for. A
            GPU's kernels say it.

    Returns:
        Figures, the mean of a step: the ms of every class, which add up to the step, and of the
        longest operators, overlaps included.

    Raises:
        UnsupportedError: there is no kernel in the trace of a GPU.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    host = _host_events(events)
    every = list(_kernels(events, host) if gpu else _operators(host, matrix_types))
    if gpu and not every:
        raise UnsupportedError(
            "torch.profiler recorded no kernels: this torch build has no tracing for the GPU, or "
            "the driver does not permit it (NVIDIA's RmProfilingAdminOnly), or another profiler "
            "is attached"
        )
    marks = [event for event in host if event.name == STEP]
    start = min(mark.start for mark in marks)
    segments = [segment for segment in every if segment.start >= start]
    ends = [mark.end for mark in marks]
    ends += [segment.end for segment in segments]
    end = max(ends)
    spans = list(_spans(segments, start, end))

    classes_us = dict.fromkeys(CLASSES, 0.0)
    for begun, ended, work in spans:
        classes_us[work] += ended - begun
    recomputed_us = 0.0
    operators_us: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for segment in segments:
        took_us = segment.end - segment.start
        operators_us[segment.columns] += took_us
        if segment.operator is not None and segment.operator.is_recomputed:
            recomputed_us += took_us
    longest_first = sorted(operators_us.items(), key=itemgetter(1), reverse=True)

    per_step = 1e3 * len(marks)  # µs of all steps to ms of one
    waited_us = _scaling_wait_us(host, spans)
    kernels = 0.0
    if gpu:
        kernels = len(segments) / len(marks)
    figures = {
        "kernels": kernels,
        "recomputed": recomputed_us / per_step,
        "scaling wait": waited_us / per_step,
    }
    rows = []
    for name, value in figures.items():
        rows.append({"kind": "step", "name": name, "value": value})
    for work, us in classes_us.items():
        rows.append({"kind": "class", "name": work, "value": us / per_step})
    for columns, us in longest_first[:OPERATORS_KEPT]:
        operator = dict(zip(COLUMNS, columns, strict=True))
        rows.append({"kind": "operator", **operator, "value": us / per_step})
    return rows


def _host_events(events: Iterable[Mapping[str, Any]]) -> list[_Event]:
    """Return operators and ranges of the host by their start, each with what is around it."""
    host = []
    threads: dict[Any, list[_Event]] = {}
    modules: dict[int, str] = {}
    for raw in sorted(events, key=lambda raw: (raw["ts"], -raw["dur"])):
        if raw.get("cat") not in HOST_CATEGORIES:
            continue
        running = threads.setdefault(raw.get("tid"), [])
        while running and raw["ts"] >= running[-1].end:
            running.pop()
        parent = running[-1] if running else None
        event = _Event(raw, parent)
        running.append(event)
        _find_module(event, modules)
        host.append(event)
    return host


def _find_module(event: _Event, modules: dict[int, str]) -> None:
    """Correct the module of an event; ``modules`` are those of the sequence numbers so far."""
    if event.name.startswith(MODULE):
        event.module = event.name.removeprefix(MODULE)
        # A forward pass within a backward pass: activation checkpointing computes again.
        event.is_recomputed = event.is_backward
        event.is_backward = False
    elif event.sequence is not None and event.is_backward:
        event.module = modules.get(event.sequence, event.module)
    elif event.sequence is not None:
        modules[event.sequence] = event.module


def _scaling_wait_us(host: Iterable[_Event], spans: Iterable[_Span]) -> float:
    """Return how long a GPU is idle because the host waits for GradScaler's check of a step.

    The wait is a read of a number between the check of the gradients and the optimizer's step. The
    GPU is idle on after it, until the host has launched a kernel again.
    """
    idle = [(start, end) for start, end, work in spans if work == "idle"]
    waited_us = 0.0
    is_checked = False
    for event in host:
        if event.name.startswith(("aten::_amp_foreach_non_finite_check", "Optimizer.", STEP)):
            is_checked = event.name.startswith("aten::")
        elif is_checked and event.name == "aten::_local_scalar_dense":
            for start, end in idle:
                if start < event.end and event.start < end:
                    waited_us += end - max(start, event.start)
    return waited_us


def _operators(host: Iterable[_Event], matrix_types: frozenset[str]) -> Iterator[_Segment]:
    """Yield the time of each operator itself, that of the operators within it apart."""
    for event in host:
        work = event.work
        if work is None and _describes(event):
            continue
        if work == "other products" and matrix_types.intersection(event.deciding.types):
            work = "matrix units"
        # After the last operator within it; no time where that ends as late as the event.
        last = (event.resumed, max(event.resumed, event.end))
        for start, end in (*event.spans, last):
            yield _Segment(start, end, work or "unknown", event, event.name)


def _describes(event: _Event) -> bool:
    """Return whether an event only describes tensors or calls others, as functions of Python do."""
    if "::" not in event.name and (event.is_range or event.spans):
        return True
    return re.match(BOOKKEEPING, event.name) is not None


def _kernels(events: Iterable[Mapping[str, Any]], host: Iterable[_Event]) -> Iterator[_Segment]:
    """Yield the time of each kernel, copy and fill of a GPU."""
    operators = {event.id: event for event in host if not event.is_range}
    operators.pop(None, None)
    for raw in events:
        if raw.get("cat") not in DEVICE_CATEGORIES:
            continue
        name: str = raw["name"]
        operator = operators.get(raw.get("args", {}).get("External id"))
        by_name = kernel_class(name)
        if by_name == "unknown" and raw["cat"] != "kernel":
            by_name = "copies"
        work = _kernel_work(name, by_name, operator)
        start = raw["ts"]
        end = start + raw["dur"]
        yield _Segment(start, end, work, operator, name)


def _kernel_work(name: str, by_name: WorkClass, operator: _Event | None) -> WorkClass:
    """Return the class of a kernel from its name, its class by that alone, and its operator."""
    if operator is None or by_name == "communication":
        return by_name
    work = operator.work
    if work is None:
        return by_name
    if by_name == "copies" and work not in WHOLE:
        return by_name
    if work == "other products":
        if by_name == "casts and layout":
            return by_name  # a library turns a convolution's operands around
        if on_matrix_units(name, operator.deciding.types):
            return "matrix units"
    return work


def _spans(segments: Iterable[_Segment], start: float, end: float) -> Iterator[_Span]:
    """Give each instant to one class: the first of those that run, or idle."""
    edges: list[tuple[float, int, WorkClass]] = [(end, 0, "idle")]
    for segment in segments:
        edges.append((segment.start, 1, segment.work))
        edges.append((segment.end, -1, segment.work))
    active: Counter[WorkClass] = Counter()
    for moment, change, work in sorted(edges):
        if moment > start:
            running = (each for each in CLASSES if active[each] > 0)
            yield start, moment, next(running, "idle")
            start = moment
        active[work] += change


@cache
def operator_class(name: str, types: tuple[str, ...] = ()) -> WorkClass | None:
    """Return the class of an operator by itself; None where those around it decide, as for a copy.

    Its name, such as ``aten::addmm``, and the types of its inputs are those in a trace.
    """
    if name == COPY:
        floats = [kind for kind in types[:2] if kind in FLOATS]
        is_cast = len(floats) == 2 and floats[0] != floats[1]
        return "casts and layout" if is_cast else None
    if re.match(LAYOUT, name):
        return "casts and layout"
    if re.match(BOOKKEEPING, name):
        return None
    is_known = name.startswith(("aten::", "torchao::", "mkldnn", "onednn"))
    # torch.compile's templates multiply matrices.
    is_template = name.startswith("triton_tem")
    if is_template or (is_known and is_product(name)):
        return "other products"
    for work, names in OPERATORS:
        if re.match(names, name):
            return work
    return None


def work_of(row: Row) -> WorkClass | Literal[""]:
    """Return the class of the operator that made what is held at the peak; empty without one."""
    if row["kind"] != "held":
        return ""
    return operator_class(f"aten::{row['name']}") or ""


@cache
def range_class(name: str) -> WorkClass | None:
    """Return the class that all within a range has, such as an optimizer's step, if any."""
    for work, names in RANGES:
        if re.match(names, name):
            return work
    return None


def kernel_class(name: str) -> WorkClass:
    """Return the class of a kernel by its own name alone."""
    for work, names in KERNELS:
        if re.search(names, name):
            if work == "other products" and on_matrix_units(name, ()):
                return "matrix units"
            return work
    return "unknown"


def on_matrix_units(kernel: str, types: Sequence[str]) -> bool:
    """Return whether a product's kernel, by its name, ran on matrix units.

    ``types`` are those of the inputs of the operator that launched it; none if unknown.
    """
    if re.search(NO_MATRIX_UNITS, kernel):
        return False
    if re.search(BY_TYPE, kernel) and not re.search(r"(?i)tensorop", kernel):
        return bool(SMALL.intersection(types))
    return re.search(MATRIX_UNITS, kernel) is not None
