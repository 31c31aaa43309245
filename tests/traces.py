"""Traces in Chrome's format as torch.profiler writes them, made up."""

from itertools import count
from typing import Any

from bench.phases.explain.trace import STEP

FP32, BF16, FP16 = "float", "c10::BFloat16", "c10::Half"


class Trace:
    """Events of a host thread and of a GPU's stream, times in microseconds."""

    def __init__(self):
        self.events: list[dict[str, Any]] = []
        self._ids = count(1)

    def step(self, start, length):
        """Mark a training step."""
        self._add("user_annotation", STEP, start, length, 1)

    def range(self, name, start, length, thread=1):
        """Add a range, such as an optimizer's step."""
        self._add("user_annotation", name, start, length, thread)

    def op(self, name, start, length, *types, sizes=(), thread=1):
        """Add an operator of the host; return the id that kernels name it by."""
        number = next(self._ids)
        arguments = {
            "External id": number,
            "Input type": list(types),
            "Input Dims": [*map(list, sizes)],
        }
        self._add("cpu_op", name, start, length, thread, **arguments)
        return number

    def kernel(self, name, start, length, by=None, kind="kernel"):
        """Add what runs on the GPU, launched by an operator."""
        arguments = {} if by is None else {"External id": by}
        self._add(kind, name, start, length, 7, **arguments)

    def document(self):
        """Return the trace."""
        return {"traceEvents": [{"ph": "M", "name": "process_name"}, *self.events]}

    def _add(self, kind, name, start, length, thread, /, **more):
        event = {
            "ph": "X",
            "cat": kind,
            "name": name,
            "ts": start,
            "dur": length,
            "pid": 1,
            "tid": thread,
        }
        self.events.append(event | {"args": more})
