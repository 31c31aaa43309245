"""Where the steps of a training script spend time and memory: figures of what its hook saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bench.phases.explain.observe import STEP, Row
from bench.phases.explain.trace import decompose, work_of

# Optimizers' steps that are left as they are, and then profiled: whole iterations of 1, 2, 3, 4 or
# 6.
PLAIN = 12
PROFILED = 12
# Those that a process is observed for: some around the profiled ones, and two iterations of 6 at
# most.
STEPS = PLAIN + PROFILED + 2 + 2 * 6
# How the name of the range begins that torch's profiler has for each optimizer's step.
OPTIMIZER = "Optimizer.step#"


def figures_of(
    record: Mapping[str, Any],
    *,
    step_ms: float,
    wait_pct: float | None,
    length: int,
    gpu: bool,
) -> Iterator[Row]:
    """Yield the figures of an arm, as ``Explained`` has them.

    Args:
        record: from the hook, with a trace in Chrome's format and the rows of its observer.
        step_ms: a step before the profiler, as it is.
        wait_pct: the share of it in which it waits for data, if it loads any.
        length: optimizer steps of an iteration.
        gpu: whether the script trains on one.

    Raises:
        ValueError: the trace shows no steps.
    """
    events = _marked(record["trace"]["traceEvents"], length)
    profile = decompose({"traceEvents": events}, gpu=gpu)
    yield {"kind": "step", "name": "timed", "value": step_ms}
    yield from profile
    steps = record["steps"]
    skipped = sum(step["skipped"] for step in steps)
    skipped_pct = 100 * skipped / len(steps)
    yield {"kind": "step", "name": "skipped", "value": skipped_pct}
    if wait_pct is not None:
        # A GPU may have had work meanwhile: what it waited for is idle time.
        classes_ms = {}
        for row in profile:
            if row["kind"] == "class":
                classes_ms[row["name"]] = row["value"]
        if gpu:
            idle_pct = 100 * classes_ms["idle"] / sum(classes_ms.values())
            wait_pct = min(wait_pct, idle_pct)
        yield {"kind": "step", "name": "waiting", "value": wait_pct}
    for row in record["observed"]:
        yield {**row, "work": work_of(row)}


def _marked(events: Sequence[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    """Return the events of whole iterations, with a range for each.

    It is from the end of an optimizer's step to that of a later one.
    The device has done its work at both ends of the profiled steps, so nothing of an iteration
    begins after it.
    """
    ends = []
    for event in events:
        if (event.get("ph") == "X") and event["name"].startswith(OPTIMIZER):
            ends.append(event["ts"] + event["dur"])
    ends.sort()
    ends = ends[::length]
    if len(ends) < 2:
        raise ValueError("torch.profiler saw no step of its optimizers, as where they are compiled")
    within = [event for event in events if event.get("ts", 0) < ends[-1]]
    for start, end in pairwise(ends):
        mark = {
            "ph": "X",
            "cat": "user_annotation",
            "name": STEP,
            "ts": start,
            "dur": end - start,
            "tid": STEP,
        }
        within.append(mark)
    return within
