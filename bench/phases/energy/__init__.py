"""Energy of a training step, and the throughput of a precision that trains alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.results.records import Count, Derived, Device, Positive, TrialResult
from bench.spec.metric import Metric
from bench.spec.phase import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Energy and throughput of continuous steps."""

    energy_source: str = ""
    """Where energy was read: `counter`, the GPU's own energy counter, or `power`, the mean of
    sampled power."""
    energy_j_per_step: float | None = None
    """Energy that the board drew for a step, gross; of several devices, here and in the next three
    rows, the sum of their boards'."""
    energy_net_j_per_step: Derived = None
    """Energy of a step less what the board draws idle."""
    idle_power_w: float | None = None
    """Power before the first step, with nothing running."""
    mean_power_w: float | None = None
    """Power over the window of steps; by `power`, over as many seconds of steps before it."""
    energy_window_s: float | None = None
    """Length of the window of steps, in which no meter is read."""
    energy_steps: Count | None = None
    """Steps in it."""
    energy_start_s: float | None = None
    """When it began, seconds since 1970, on the clock of telemetry.csv."""
    alone_samples_per_s: Positive | None = None
    """Throughput of the precision alone in its process, over the window; empty where something
    disturbed it."""


def derive(rows: Any, _details: Any) -> Any:
    """Return rows with the energy of a step less what the board draws idle."""
    # The share of the power that idling does not take is that of the energy, over the same time.
    net = 1 - rows["idle_power_w"] / rows["mean_power_w"]
    return rows.assign(energy_net_j_per_step=rows["energy_j_per_step"] * net)


def describe(result: TrialResult) -> str:
    """Return an arm's line on the terminal."""
    return f"{result.row.energy_j_per_step:.4g} J/step"


METRICS = (
    Metric(
        name="energy",
        phase="energy",
        place=5,
        label="energy of a step",
        unit="J",
        about="Energy of the board for a step, idle draw included.",
        columns=("energy_j_per_step",),
        alike=("energy_source",),
        shown_as="share",
        change="energy_change_ratio",
        tabled=True,
    ),
    Metric(
        name="alone",
        phase="energy",
        place=6,
        label="throughput alone",
        unit="samples/s",
        about="Throughput of the precision alone in its process, in its window of energy.",
        columns=("alone_samples_per_s",),
        instead_of="speed",
        better="more",
        compared=False,
        tabled=True,
    ),
)


def missing(device: Device) -> str:
    """Return why the energy of a GPU cannot be read; nobody expects it of a CPU."""
    if not device.is_gpu:
        return ""
    return f"GPU {device.placement} tells neither energy nor power: its energy is not measured."


PHASE = Phase(
    name="energy",
    order=50,
    summary="energy of a training step",
    row=Energy,
    metrics=METRICS,
    summarised={
        "energy_source": "last",
        "energy_net_j_per_step": "last",
        "mean_power_w": "last",
        "idle_power_w": "last",
        "energy_window_s": "last",
        "energy_steps": "last",
    },
    derive=derive,
    describe=describe,
    default=True,
    can_measure=lambda device: bool(device.energy),
    missing=missing,
    joint=True,
    estimate=lambda work: 15.0 + 4 * work.step_s,  # idle power first, then two stretches of steps
)
