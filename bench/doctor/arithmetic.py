"""Self-tests of what is computed: whether fp32 is fp32, and whether mixed precision reaches a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.doctor.arms import SMALL, build_runner, torch_device
from bench.measure.operations import observe
from bench.phases.context import enter
from bench.results.records import Device, Message


def matmul_error(device: Device, precision: str, _send: Callable[[Message], None]) -> float | None:
    """Return the error of a matrix product under a precision's switches, against float64."""
    return enter(precision, torch_device(device))[1].matmul_error


def compute_dtypes(device: Device, precision: str, _send: Callable[[Message], None]) -> str:
    """Return the types that a small model's products computed in, with their shares of the FLOPs."""
    width, batch_size = SMALL
    runner = build_runner(device, precision, precision, width=width, batch_size=batch_size)
    runner.run(1)
    return observe(partial(runner.run, 1)).compute_dtypes
