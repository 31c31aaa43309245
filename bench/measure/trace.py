"""Where a training step's time goes, from a trace of torch.profiler in Chrome's format.

On a GPU it is the kernels' time, on a CPU that of the operators themselves; each instant of the steps has one class of
work, and ``idle`` is the time in which none runs. Nothing is rescaled, and no class is what the others leave over.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.measure.operator_classes import (
    BOOKKEEPING,
    COPY,
    SMALL,
    WHOLE,
    kernel_class,
    on_matrix_units,
    operator_class,
    range_class,
)
from bench.results.records import WorkClass
from bench.spec.errors import UnsupportedError

STEP = "training step"
"""The name of the ranges that mark the steps of a trace."""
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CATEGORIES = ("cpu_op", "user_annotation")
CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """What one operator, on inputs of some types and sizes, takes of a step."""

    name: str
    work: WorkClass
    types: tuple[str, ...]
    """Of its inputs, as in the trace."""
    sizes: tuple[tuple[int, ...], ...]
    count: float
    """Times in a step."""
    ms: float
    """In a step, overlaps with other work included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """The time of a step by class of work."""

    ms: dict[WorkClass, float]
    """Every class, those without any time as 0; they add up to ``step_ms``."""
    step_ms: float
    """From the beginning of the first step to the end of the last one's work, over the steps."""
    operators: tuple[Operator, ...]
    """Longest first."""
    calls: float
    """Kernels and copies in a step, or on a CPU operators that have a class of their own."""
    hidden_communication_ms: float
    """Communication while other work ran, which costs no time."""


@dataclass(slots=True, eq=False)
class _Event:
    name: str
    start: float
    end: float
    thread: object
    types: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    is_range: bool = False
    """Whether it is a range that a program named, and no operator."""
    parent: _Event | None = None
    children: list[_Event] = field(default_factory=list)

    def ancestors(self) -> Iterator[_Event]:
        event: _Event | None = self
        while event is not None:
            yield event
            event = event.parent

    def work(self) -> WorkClass | None:
        """Return the class of what this operator does itself, from its name, types and surroundings."""
        chain = list(self.ancestors())
        for event in reversed(chain):
            if whole := range_class(event.name):
                return whole
        found = next((work for event in chain if (work := operator_class(event.name, event.types))), None)
        return "casts and layout" if found is None and COPY.match(self.name) else found


@dataclass(frozen=True, slots=True)
class _Segment:
    """Some time of one class."""

    start: float
    end: float
    work: WorkClass
    operator: _Event | None
    name: str


def profiled(step: Callable[[], object], steps: int, *, gpu: bool) -> dict[str, Any]:
    """Run steps under torch.profiler and return the trace, parsed.

    One step more than asked runs first, unmarked, because the profiler's first step is slower. Host and device are
    idle when the first marked step begins.

    Args:
        step: does one training step, and on a GPU does not wait for it.
        steps: how many to mark.
        gpu: whether kernels are to be traced.
    """
    wait: Callable[[], object] = torch.accelerator.synchronize if gpu else lambda: None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with profile(activities=activities, record_shapes=True) as profiler:
        step()
        wait()
        for _ in range(steps):
            with record_function(STEP):
                step()
        wait()
    with tempfile.TemporaryDirectory(prefix="ampmeter-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        loaded: dict[str, Any] = json.loads(path.read_text(errors="replace"))
    return loaded


def decompose(trace: Mapping[str, Any], *, gpu: bool | None = None, matrix_types: frozenset[str] = SMALL) -> StepTime:
    """Divide the steps of a trace by class of work.

    Args:
        trace: Chrome's trace format as torch.profiler writes it, with shapes; steps are ranges called ``STEP``.
        gpu: whether kernels must be in it; None goes by what is there.
        matrix_types: types, as the trace calls them, that a CPU has matrix instructions for. A GPU's kernels say it.

    Raises:
        ValueError: there is no step in it.
        UnsupportedError: there is no kernel in the trace of a GPU.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    host, by_id = _host_events(events)
    marks = [event for event in host if event.name == STEP]
    if not marks:
        raise ValueError(f"the trace has no range called '{STEP}'")
    device = [event for event in events if event.get("cat") in DEVICE_CATEGORIES]
    if gpu and not device:
        raise UnsupportedError(
            "torch.profiler recorded no kernels: this torch build has no tracing for the GPU, or the driver does not "
            "permit it (NVIDIA's RmProfilingAdminOnly), or another profiler is attached"
        )
    start, end = min(mark.start for mark in marks), max(mark.end for mark in marks)
    if device:
        segments = [segment for segment in _kernels(device, by_id) if segment.start >= start]
        end = max(end, *(segment.end for segment in segments)) if segments else end
    else:
        segments = [segment for segment in _operators(host, matrix_types) if segment.start >= start]
    segments = [segment for segment in segments if segment.start < end]
    us = _exclusive(segments, start, end)
    each = 1e3 * len(marks)
    communication = _union(segment for segment in segments if segment.work == "communication")
    return StepTime(
        ms={work: us[work] / each for work in CLASSES},
        step_ms=(end - start) / each,
        operators=_by_operator(segments, len(marks)),
        calls=len({id(one) if device else id(one.operator) for one in segments}) / len(marks),
        hidden_communication_ms=max(0.0, communication - us["communication"]) / each,
    )


def _host_events(events: Iterable[Mapping[str, Any]]) -> tuple[list[_Event], dict[int, _Event]]:
    """Return operators and ranges of the host, nested by thread, and the operators by the id that kernels refer to."""
    host, by_id, threads = [], {}, defaultdict(list)
    for raw in events:
        if raw.get("cat") not in HOST_CATEGORIES:
            continue
        arguments = raw.get("args", {})
        begin = float(raw["ts"])
        event = _Event(
            name=str(raw["name"]),
            start=begin,
            end=begin + float(raw["dur"]),
            thread=raw.get("tid"),
            types=tuple(arguments.get("Input type", ())),
            sizes=tuple(tuple(size) for size in arguments.get("Input Dims", ()) if _is_size(size)),
            is_range=raw["cat"] == "user_annotation",
        )
        host.append(event)
        threads[event.thread].append(event)
        if raw["cat"] == "cpu_op" and "External id" in arguments:
            by_id[int(arguments["External id"])] = event
    for nested in threads.values():
        open_events: list[_Event] = []
        for event in sorted(nested, key=lambda event: (event.start, -event.end)):
            while open_events and event.start >= open_events[-1].end:
                open_events.pop()
            if open_events:
                event.parent = open_events[-1]
                open_events[-1].children.append(event)
            open_events.append(event)
    return host, by_id


def _is_size(size: object) -> bool:
    return isinstance(size, list) and bool(size) and all(isinstance(length, int) for length in size)


def _operators(host: Iterable[_Event], matrix_types: frozenset[str]) -> Iterator[_Segment]:
    """Yield the time of each operator itself, that of the operators within it apart."""
    for event in host:
        work = event.work()
        if work is None and _describes(event):
            continue
        if work == "other products" and matrix_types.intersection(_product_of(event).types):
            work = "matrix units"
        at = event.start
        for child in [*event.children, None]:
            until = event.end if child is None else min(child.start, event.end)
            if until > at:
                yield _Segment(at, until, work or "unknown", event, event.name)
            at = max(at, child.end) if child is not None else at


def _describes(event: _Event) -> bool:
    """Say whether an event only describes tensors or calls others, as ranges and functions of Python do."""
    calls = "::" not in event.name and (event.is_range or bool(event.children))
    return calls or BOOKKEEPING.match(event.name) is not None


def _product_of(event: _Event) -> _Event:
    """Return the operator whose inputs a product's are: the nearest that is a product by name."""
    return next((one for one in event.ancestors() if operator_class(one.name, one.types) == "other products"), event)


def _kernels(device: Iterable[Mapping[str, Any]], by_id: Mapping[int, _Event]) -> Iterator[_Segment]:
    for raw in device:
        arguments, name = raw.get("args", {}), str(raw["name"])
        operator = by_id.get(int(arguments.get("External id", -1)))
        by_name = kernel_class(name)
        if by_name == "unknown" and raw["cat"] != "kernel":
            by_name = "copies"
        work = operator.work() if operator is not None else None
        if work is None or by_name == "communication" or (by_name == "copies" and work not in WHOLE):
            work = by_name
        elif work == "other products" and by_name == "casts and layout":
            work = "casts and layout"  # a library turns a convolution's operands around
        elif work == "other products" and operator is not None:
            work = "matrix units" if on_matrix_units(name, _product_of(operator).types) else work
        begin = float(raw["ts"])
        yield _Segment(begin, begin + float(raw["dur"]), work, operator, name)


def _exclusive(segments: Sequence[_Segment], start: float, end: float) -> dict[WorkClass, float]:
    """Give each instant to one class: of several at once to the first in the order of classes; to none is idle."""
    order = (*(work for work in CLASSES if work not in ("communication", "copies", "idle")), "copies", "communication")
    edges = sorted(
        edge for one in segments for edge in ((max(one.start, start), 1, one.work), (min(one.end, end), -1, one.work))
    )
    active: Counter[WorkClass] = Counter()
    us: dict[WorkClass, float] = dict.fromkeys(CLASSES, 0.0)
    at = start
    for moment, change, work in edges:
        if moment > at:
            current: WorkClass = next((one for one in order if active[one] > 0), "idle")
            us[current] += moment - at
            at = moment
        active[work] += change
    us["idle"] += max(0.0, end - at)
    return us


def _union(segments: Iterable[_Segment]) -> float:
    total, until = 0.0, float("-inf")
    for segment in sorted(segments, key=lambda segment: segment.start):
        total += max(0.0, segment.end - max(segment.start, until))
        until = max(until, segment.end)
    return total


def _by_operator(segments: Iterable[_Segment], steps: int) -> tuple[Operator, ...]:
    """Add up the segments of each operator, with the types and sizes of the operator that decides their class."""
    us: defaultdict[tuple[Any, ...], float] = defaultdict(float)
    events: defaultdict[tuple[Any, ...], set[int]] = defaultdict(set)
    for segment in segments:
        named = segment.operator
        if named is not None:
            chain = list(named.ancestors())
            named = next((one for one in chain if operator_class(one.name, one.types)), named)
        key = (
            (named.name, segment.work, named.types, named.sizes)
            if named is not None
            else (segment.name, segment.work, (), ())
        )
        us[key] += segment.end - segment.start
        events[key].add(id(named) if named is not None else id(segment))
    return tuple(
        Operator(
            name=name,
            work=work,
            types=types,
            sizes=sizes,
            count=len(events[name, work, types, sizes]) / steps,
            ms=time / 1e3 / steps,
        )
        for (name, work, types, sizes), time in sorted(us.items(), key=lambda item: -item[1])
    )
