"""The time of a training step in an emulated type, which no rate of products tells: an estimate needs one step."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.data import random_batches
from bench.devices.backend import backend_of, device_at
from bench.planning import suite_registry
from bench.results.records import Progress
from bench.spec.precisions import parse_precision
from bench.spec.trial import Placement, SuiteRef
from bench.training import amp
from bench.training.step import build_arm, synchronize, training_step

SHORT_S = 1.0
"""A first step that took less is repeated: part of it was the library's preparation."""
MOST_STEPS = 4


def step_s(
    ref: SuiteRef, placement: str, precision: str, batch_size: int, send: Callable[[Progress], None]
) -> float | None:
    """Return the seconds of a training step on random batches; run in a worker.

    None where the model fails, which its trials then report.
    """
    suite, arithmetic = suite_registry.load(ref), parse_precision(precision)
    device = device_at(Placement(name=placement).index)
    send(Progress(text=f"timing a step in {precision}"))
    backend_of(device).set_current()
    amp.apply(arithmetic)
    try:
        arm = build_arm(suite, suite.data, arithmetic, device, seed=0)
        (batch,) = random_batches(suite.data, batch_size=batch_size, count=1, device=device, seed=0)
        times_s: list[float] = []
        while not times_s or (times_s[-1] < SHORT_S and len(times_s) < MOST_STEPS):
            start = time.perf_counter()
            training_step(arm, *batch)
            synchronize(device)
            times_s.append(time.perf_counter() - start)
    except Exception as error:  # a user's model may raise anything, and an estimate is all that is lost
        print(f"{suite.name}: the time of a step in {precision} is unknown: {error}")
        return None
    return min(times_s)
