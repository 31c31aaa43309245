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
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

from bench.measure.operations import is_product
from bench.results.records import WorkClass
from bench.spec.errors import UnsupportedError

# Ranges that mark the steps of a trace, and the modules' forward passes, as ``observe`` names them.
STEP, MODULE = "training step", "module: "
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CATEGORIES = ("cpu_op", "user_annotation")
CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)

# The names that a trace gives to floating-point types, and their bytes.
FLOATS = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "c10::complex<float>": 8,
}  # fmt: skip
# The types that matrix units take; fp32 is multiplied there only as TF32, which the kernel's name
# says.
SMALL = frozenset(name for name, size in FLOATS.items() if size < 4)


# Classes of work by name; the first that matches counts.
Patterns = tuple[tuple[WorkClass, re.Pattern[str]], ...]

# Whatever runs within these is of their class.
RANGES: Patterns = (
    ("optimizer", re.compile(r"^Optimizer\.")),  # Optimizer.step#SGD.step
    ("communication", re.compile(r"^(?:c10d::|nccl:|gloo:|record_param_comms)")),
    ("loss scaling", re.compile(r"^aten::_amp_")),
)
WHOLE = frozenset(work for work, _ in RANGES)
# Operators that write the same numbers in another type or order.
LAYOUT = re.compile(
    r"^aten::(?:_to_copy|to|contiguous|clone|to_dense|to_mkldnn|mkldnn_reorder\w*)$"
)
COPY = re.compile(r"^aten::copy_$")
# Classes by operator; ``operations.is_product`` says first what multiplies matrices.
OPERATORS: Patterns = (
    (
        "normalisation and softmax",
        re.compile(r"^aten::_?(?:\w*(?:batch|layer|group|instance|rms)_norm\w*|\w*softmax\w*)$"),
    ),
    (
        "elementwise",
        re.compile(
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
    (
        "elementwise",
        re.compile(r"^(?:triton_(?:poi|red|per)|cpp_fused)_"),
    ),  # as torch.compile names its own
)
# Operators and ranges that describe tensors or call others: on a GPU they launch nothing, on a CPU
# they are a part of the time in which nothing is computed.
BOOKKEEPING = re.compile(
    r"^(?:aten::_?(?:empty|new_|view|reshape|t$|transpose|permute|expand|as_strided|slice|select|unsqueeze|squeeze"
    r"|narrow|split|chunk|unbind|detach|alias|resize_|set_|result_type|resolve_|flatten|unflatten|unsafe_|lift_fresh"
    r"|numpy_T|movedim|size|stride|is_|has_|nested|sparse_coo|cast_|autocast|broadcast|meshgrid|conj|real|version"
    r"|swapaxes|refine_names|requires_grad|ensure_|assert|cudnn_init|use_cudnn|choose_qparams)\w*"
    r"|autograd::|torch::autograd::|detach|\w+Backward\d*$|\w+Backward$|ProfilerStep|Memory|Pregraph|TorchDynamo"
    r"|Torch-Compiled|## |CompiledFunction|AOTDispatcher |enumerate\(|DistributedDataParallel|\[)"
)

# Classes by kernel, where no operator is known that launched it.
KERNELS: Patterns = (
    ("communication", re.compile(r"nccl|rccl|msccl")),
    ("copies", re.compile(r"^(?:Memcpy|Copy) ?(?:HtoD|DtoH|PtoP|HostToDevice|DeviceToHost)")),
    ("casts and layout", re.compile(r"^(?:Memcpy|Copy)")),  # Memcpy DtoD (Device -> Device)
    ("elementwise", re.compile(r"^(?:Memset|FillBuffer)")),
    ("optimizer", re.compile(r"multi_tensor_apply|FusedAdam|FusedSgd")),
    (
        "normalisation and softmax",
        re.compile(r"(?i)softmax|batch_?norm|bn_(?:fw|bw)|layer_?norm|group_?norm|rms_?norm"),
    ),
    ("elementwise", re.compile(r"^triton_(?:poi|red|per)")),
    (
        "casts and layout",
        re.compile(r"(?i)nchwToNhwc|nhwcToNchw|CatArrayBatchedCopy_align|batched_transpose"),
    ),
    (
        "other products",
        re.compile(
            r"(?i)gemm|gemv|cutlass|xmma|nvjet|conv|wgrad|dgrad|fprop|winograd|flash_(?:fwd|bwd)|fmha|mha|^Cijk_|ck_tile"
            r"|dot_|^triton_tem"
        ),
    ),
    (
        "elementwise",
        re.compile(
            r"elementwise|reduce_kernel|max_pool|avg_pool|dropout|embedding|index|scatter|gather|fill"
        ),
    ),
)
# Vetoes, asked first: products on the ordinary arithmetic units, whatever else the name holds.
NO_MATRIX_UNITS = re.compile(
    r"(?i)simt|sgemm|dgemm|ffma|gemv|hfma|_fp32_fp32|naive|depthwise|dot_kernel|splitKreduce"
)
# Products on matrix units.
MATRIX_UNITS = re.compile(
    r"(?i)tensorop|tf32|hmma|wgmma|s16816|s1688|s884|h884|h1688|h16816|i16832|xmma|bf16gemm|f16f16|bf16bf16|_MI\d|mfma|wmma"
    r"|sm90_|sm100_|flash_(?:fwd|bwd)|fmha_cutlass|nvjet_(?:sm\d+_)?[^s]"
)
# Names that prove nothing: on matrix units where the operator's inputs have a small type.
BY_TYPE = re.compile(r"(?i)nvjet_(?:sm\d+_)?s[a-z]{2}|cutlass|ck_tile|triton")


class Figure(NamedTuple):
    """What a number of explain_figures.csv is about."""

    kind: str
    name: str
    work: WorkClass | Literal[""] = ""
    """Of an operator; ``name`` is then that whose class counts, or a kernel's where no operator is
    known."""
    module: str = ""
    """The innermost module that called it, in the forward pass."""
    detail: str = ""
    """Sizes of its operands, such as ``8x4 4x2``."""
    dtype: str = ""
    """The narrowest floating-point type of its inputs."""


# The operators that are kept of a step, the longest.
OPERATORS_KEPT = 100


def rows_of(figures: Mapping[Figure, float]) -> Iterator[dict[str, Any]]:
    """Yield the figures of a step as rows; of operators the longest."""
    operators = [figure for figure in figures if figure.kind == "operator"]
    longest = sorted(operators, key=figures.__getitem__, reverse=True)
    left_out = set(longest[OPERATORS_KEPT:])
    for figure, value in figures.items():
        if figure not in left_out:
            yield {**figure._asdict(), "value": value}


@dataclass(slots=True, eq=False)
class _Event:
    name: str
    start: float
    end: float
    types: tuple[str, ...]
    sizes: Sequence[Any]
    """Of its inputs: lengths, or for a list of tensors the lengths of each."""
    is_range: bool
    """Whether it is a range that a program named, and no operator."""
    sequence: int | None
    """By which autograd knows it: an operator of the forward pass and its backward pass have the
    same."""
    is_backward: bool
    """Whether it is, or runs within, a backward pass."""
    module: str = ""
    """The innermost module in whose forward pass, or the backward pass of that, it runs."""
    is_recomputed: bool = False
    """Whether it is a forward pass within a backward pass, as of activation checkpointing."""
    parent: _Event | None = None
    children: list[_Event] = field(default_factory=list)

    def ancestors(self) -> Iterator[_Event]:
        event: _Event | None = self
        while event is not None:
            yield event
            event = event.parent

    def deciding(self) -> _Event:
        """Return the nearest operator around this one, or this one, that has a class of its own; else this one."""
        return next(
            (event for event in self.ancestors() if operator_class(event.name, event.types)), self
        )

    def work(self) -> WorkClass | None:
        """Return the class of this operator's own work, from its name, types and surroundings."""
        for event in reversed(list(self.ancestors())):
            if whole := range_class(event.name):
                return whole
        deciding = self.deciding()
        work = operator_class(deciding.name, deciding.types)
        return "casts and layout" if work is None and COPY.match(self.name) else work


@dataclass(frozen=True, slots=True)
class _Segment:
    """Some time of a class of work."""

    start: float
    end: float
    work: WorkClass
    operator: _Event | None
    name: str


def decompose(
    trace: Mapping[str, Any], *, gpu: bool, matrix_types: frozenset[str] = SMALL
) -> dict[Figure, float]:
    """Divide the steps of a trace by class of work.

    Args:
        trace: Chrome's trace format as torch.profiler writes it, with shapes; steps are ranges
            called ``STEP``.
        gpu: whether the time is that of kernels, or of operators on a CPU.
        matrix_types: types, as the trace calls them, that a CPU has matrix instructions for. A
        GPU's kernels say it.

    Returns:
        The mean of a step: the ms of every class, which add up to the step, and of operators,
        overlaps included.

    Raises:
        UnsupportedError: there is no kernel in the trace of a GPU.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    host, by_id = _host_events(events)
    device = [event for event in events if event.get("cat") in DEVICE_CATEGORIES]
    if gpu and not device:
        raise UnsupportedError(
            "torch.profiler recorded no kernels: this torch build has no tracing for the GPU, or "
            "the driver does not permit it (NVIDIA's RmProfilingAdminOnly), or another profiler "
            "is attached"
        )
    marks = [event for event in host if event.name == STEP]
    start = min(mark.start for mark in marks)
    every = _kernels(device, by_id) if gpu else _operators(host, matrix_types)
    segments = [segment for segment in every if segment.start >= start]
    end = max([*(mark.end for mark in marks), *(segment.end for segment in segments)])
    us = _exclusive(segments, start, end)
    each = 1e3 * len(marks)
    starts = sorted(segment.start for segment in segments)
    scaling_wait_us = 0.0
    for wait in _scaler_waits(host):
        # Kernels are launched again only after the wait: until the first of them the GPU has none
        # because of it.
        launched = next((at for at in starts if at >= wait.end), end)
        scaling_wait_us += _exclusive(segments, wait.start, launched)["idle"]
    recomputed_us = 0.0
    for segment in segments:
        if segment.operator is not None and segment.operator.is_recomputed:
            recomputed_us += segment.end - segment.start
    found = {Figure("class", work): us[work] / each for work in CLASSES}
    found[Figure("step", "kernels")] = len(segments) / len(marks) if gpu else 0.0
    found[Figure("step", "recomputed")] = recomputed_us / each
    # In it the GPU waits because the host has waited for GradScaler's check of a step.
    found[Figure("step", "scaling wait")] = scaling_wait_us / each
    for operator, taken_us in _by_operator(segments).items():
        found[operator] = taken_us / each
    return found


def _host_events(events: Iterable[Mapping[str, Any]]) -> tuple[list[_Event], dict[int, _Event]]:
    """Return operators and ranges of the host, nested by thread, and the operators by the id that kernels refer to."""
    host, by_id, threads = [], {}, defaultdict(list)
    for raw in events:
        if raw.get("cat") not in HOST_CATEGORIES:
            continue
        arguments = raw.get("args", {})
        event = _Event(
            name=raw["name"],
            start=raw["ts"],
            end=raw["ts"] + raw["dur"],
            types=tuple(arguments.get("Input type", ())),
            sizes=arguments.get("Input Dims", []),
            is_range=raw["cat"] == "user_annotation",
            sequence=arguments.get("Sequence number"),
            is_backward=arguments.get("Fwd thread id", 0) > 0,
        )
        host.append(event)
        threads[raw.get("tid")].append(event)
        if raw["cat"] == "cpu_op" and "External id" in arguments:
            by_id[arguments["External id"]] = event
    for nested in threads.values():
        open_events: list[_Event] = []
        for event in sorted(nested, key=lambda event: (event.start, -event.end)):
            while open_events and event.start >= open_events[-1].end:
                open_events.pop()
            if open_events:
                event.parent = open_events[-1]
                open_events[-1].children.append(event)
            open_events.append(event)
    _name_modules(host)
    return host, by_id


def _name_modules(host: Iterable[_Event]) -> None:
    """Give each event the module that it belongs to: the ranges around it say it, in a backward pass its sequence."""
    modules: dict[int, str] = {}
    for event in sorted(host, key=lambda event: (event.start, -event.end)):
        if event.parent is not None:
            event.module = event.parent.module
            event.is_backward = event.is_backward or event.parent.is_backward
            event.is_recomputed = event.parent.is_recomputed
        if event.name.startswith(MODULE):
            event.module = event.name.removeprefix(MODULE)
            event.is_recomputed = event.is_backward
            event.is_backward = (
                False  # nor within the backward pass, where activation checkpointing computes again
            )
        elif event.sequence is not None and event.is_backward:
            event.module = modules.get(event.sequence, event.module)
        elif event.sequence is not None:
            modules[event.sequence] = event.module


def _scaler_waits(host: Iterable[_Event]) -> Iterator[_Event]:
    """Yield the reads of a number between GradScaler's check of the gradients and the optimizer's step."""
    is_checked = False
    for event in sorted(host, key=lambda event: event.start):
        if event.name.startswith(("aten::_amp_foreach_non_finite_check", "Optimizer.", STEP)):
            is_checked = event.name.startswith("aten::")
        elif is_checked and event.name == "aten::_local_scalar_dense":
            yield event


def _operators(host: Iterable[_Event], matrix_types: frozenset[str]) -> Iterator[_Segment]:
    """Yield the time of each operator itself, that of the operators within it apart."""
    for event in host:
        work = event.work()
        if work is None and _describes(event):
            continue
        if work == "other products" and matrix_types.intersection(event.deciding().types):
            work = "matrix units"
        at = event.start
        for child in event.children:
            yield _Segment(at, child.start, work or "unknown", event, event.name)
            at = child.end
        yield _Segment(at, max(at, event.end), work or "unknown", event, event.name)


def _describes(event: _Event) -> bool:
    """Say whether an event only describes tensors or calls others, as ranges and functions of Python do."""
    calls = "::" not in event.name and (event.is_range or bool(event.children))
    return calls or BOOKKEEPING.match(event.name) is not None


def _kernels(
    device: Iterable[Mapping[str, Any]], by_id: Mapping[int, _Event]
) -> Iterator[_Segment]:
    for raw in device:
        name: str = raw["name"]
        operator = by_id.get(raw.get("args", {}).get("External id", -1))
        by_name = kernel_class(name)
        if by_name == "unknown" and raw["cat"] != "kernel":
            by_name = "copies"
        work = operator.work() if operator is not None else None
        if (
            work is None
            or by_name == "communication"
            or (by_name == "copies" and work not in WHOLE)
        ):
            work = by_name
        elif work == "other products" and by_name == "casts and layout":
            work = "casts and layout"  # a library turns a convolution's operands around
        elif work == "other products" and operator is not None:
            work = "matrix units" if on_matrix_units(name, operator.deciding().types) else work
        yield _Segment(raw["ts"], raw["ts"] + raw["dur"], work, operator, name)


def _exclusive(segments: Sequence[_Segment], start: float, end: float) -> dict[WorkClass, float]:
    """Give each instant to one class: of several at once to the first in the order of classes; to none is idle."""
    edges = sorted(
        edge
        for segment in segments
        for edge in (
            (max(segment.start, start), 1, segment.work),
            (min(segment.end, end), -1, segment.work),
        )
    )
    active: Counter[WorkClass] = Counter()
    us: dict[WorkClass, float] = dict.fromkeys(CLASSES, 0.0)
    at = start
    for moment, change, work in edges:
        if moment > at:
            current: WorkClass = next((each for each in CLASSES if active[each] > 0), "idle")
            us[current] += moment - at
            at = moment
        active[work] += change
    us["idle"] += max(0.0, end - at)
    return us


def _by_operator(segments: Iterable[_Segment]) -> dict[Figure, float]:
    """Add up the µs of each operator that decides the class of segments; sizes of lists and numbers are left out."""
    us: defaultdict[Figure, float] = defaultdict(float)
    for segment in segments:
        figure = Figure("operator", segment.name, segment.work)
        if segment.operator is not None:
            event = segment.operator.deciding()
            shapes = [
                "x".join(map(str, size))
                for size in event.sizes
                if size and isinstance(size[0], int)
            ]
            dtype = min(
                (kind for kind in event.types if kind in FLOATS), key=FLOATS.__getitem__, default=""
            )
            figure = Figure(
                "operator", event.name, segment.work, event.module, " ".join(shapes), dtype
            )
        us[figure] += segment.end - segment.start
    return us


@cache
def operator_class(name: str, types: tuple[str, ...] = ()) -> WorkClass | None:
    """Return the class of an operator by itself; None where those around it decide, as for a copy.

    Its name, such as ``aten::addmm``, and the types of its inputs are those in a trace.
    """
    if COPY.match(name):
        floats = [kind for kind in types[:2] if kind in FLOATS]
        return "casts and layout" if len(floats) == 2 and floats[0] != floats[1] else None
    if LAYOUT.match(name):
        return "casts and layout"
    if BOOKKEEPING.match(name):
        return None
    known = name.startswith(("aten::", "torchao::", "mkldnn", "onednn"))
    if (known and is_product(name)) or name.startswith("triton_tem"):
        return "other products"
    return next((work for work, names in OPERATORS if names.match(name)), None)


def work_of(row: Mapping[str, Any]) -> WorkClass | Literal[""]:
    """Return the class of the operator that made what a figure of the peak counts; empty where it has none."""
    work = operator_class(f"aten::{row['name']}") if row["kind"] == "held" else None
    return work or ""


@cache
def range_class(name: str) -> WorkClass | None:
    """Return the class that all within a range has, such as an optimizer's step; None where it says nothing."""
    return next((work for work, names in RANGES if names.match(name)), None)


def kernel_class(name: str) -> WorkClass:
    """Return the class of a kernel by its own name alone."""
    work: WorkClass = next((work for work, names in KERNELS if names.search(name)), "unknown")
    return "matrix units" if work == "other products" and on_matrix_units(name, ()) else work


def on_matrix_units(kernel: str, types: Sequence[str]) -> bool:
    """Say whether a product's kernel, by its name, ran on matrix units.

    ``types`` are those of the inputs of the operator that launched it; none if unknown.
    """
    if NO_MATRIX_UNITS.search(kernel):
        return False
    if BY_TYPE.search(kernel) and not re.search(r"(?i)tensorop", kernel):
        return bool(SMALL.intersection(types))
    return MATRIX_UNITS.search(kernel) is not None
