"""A made-up run of any size, written by the harness's store: the input on which the reporter is timed.

It has the shape of one node: each suite on each GPU at each batch size in four precisions, ``--rigorous``, and
training over many seeds at one batch size. Figures scatter around plausible values, with a fixed seed.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from bench.results.records import (
    Block,
    Device,
    Energy,
    Environment,
    EpochResult,
    MemoryPeak,
    Operations,
    Speed,
    Switches,
    Training,
    TrialResult,
)
from bench.results.store import Store
from bench.spec.precisions import BASELINE
from bench.spec.techniques import AblationStep
from bench.spec.trial import Cell, DataSource, Placement, Protocol, SuiteRef, Trial
from bench.stats import count_outliers, rounds_interval

ARMS = {"fp32": 1.0, "tf32": 1.6, "amp-fp16": 2.1, "amp-bf16": 2.0}
"""Precisions, each with its speedup."""
ALONE = ("memory", "energy")
GIB = 2**30
SWITCHES = Switches(fp32_matmul="ieee", fp32_conv="ieee", autocast="", loss_scaling=False, matmul_error=2e-7)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Size of a run."""

    suites: int = 5
    gpus: int = 8
    batch_sizes: int = 6
    replicates: int = 10
    """Processes of the floor phase, and of the speed phase."""
    seeds: int = 20
    epochs: int = 10
    blocks: int = 1_000_000

    @property
    def cells(self) -> int:
        """Suites × GPUs × batch sizes."""
        return self.suites * self.gpus * self.batch_sizes

    @property
    def trials(self) -> int:
        """Memory and energy, floor and speed in every cell, and training at one batch size."""
        alone = (len(ALONE) * len(ARMS) + 2 * self.replicates) * self.cells
        return alone + self.suites * self.gpus * len(ARMS) * self.seeds

    @property
    def rounds(self) -> int:
        """Mean rounds of a speed trial, so that all blocks together are about ``blocks``."""
        return max(1, round(self.blocks / (self.cells * self.replicates * 2 * len(ARMS))))


LARGE = Shape()
"""9,920 trials and about a million blocks."""
SMALL = Shape(suites=2, gpus=4, batch_sizes=3, seeds=10, blocks=100_000)
"""992 trials and about a hundred thousand blocks."""


def write_run(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """Write a run of a shape into a new folder, and return the folder."""
    rng = random.Random(seed)
    devices = [_device(index) for index in range(shape.gpus)]
    with Store(folder) as store:
        store.write_run({"environment": asdict(_environment(devices)), "warnings": [], "request": {}})
        for suite in range(shape.suites):
            for device in devices:
                for power in range(shape.batch_sizes):
                    cell = Cell(
                        suite=SuiteRef(name=f"model{suite}"),
                        placement=Placement(name=device.placement),
                        batch_size=32 << power,
                        data=DataSource(kind="synthetic"),
                    )
                    for trial, results in _trials(cell, shape, rng, trains=power == 1):
                        blocks = list(_blocks(trial, results, rng)) if trial.phase == "speed" else []
                        course = list(_epochs(trial, rng)) if trial.phase == "train" else []
                        figures = as_timed(results, blocks, cell.batch_size) if blocks else results
                        if course:
                            figures = [replace(row, training=as_trained(row.training, course)) for row in results]
                        store.add_results(trial, device, figures, [*blocks, *course])
    return folder


def as_timed(results: Sequence[TrialResult], blocks: Sequence[Block], batch_size: int) -> list[TrialResult]:
    """Return results with the step times and speedups that their blocks give."""
    steps = {
        result.precision: [block.time_ms / block.steps for block in blocks if block.precision == result.precision]
        for result in results
    }
    logs = {name: np.log(times).reshape(-1, 2).mean(axis=1) for name, times in steps.items()}
    timed = []
    for result in results:
        step_ms, ratios = statistics.median(steps[result.precision]), logs.get(BASELINE, 0) - logs[result.precision]
        speedup = rounds_interval(ratios).exp()
        flops = result.operations.flops_per_step if result.operations else None
        samples = logs[BASELINE] if result.precision == BASELINE else ratios
        speed = replace(
            result.speed,
            step_ms=step_ms,
            samples_per_s=1000 * batch_size / step_ms,
            outlier_rounds=count_outliers(samples) if BASELINE in logs else 0,
        )
        if result.speed.speedup is not None:
            speed = replace(speed, speedup=speedup.center, speedup_low=speedup.low, speedup_high=speedup.high)
        if flops is not None:
            tflops = flops / step_ms / 1e9
            speed = replace(speed, tflops=tflops, pct_of_peak=100 * tflops / speed.peak_tflops)
        timed.append(replace(result, speed=replace(speed, step_p50_ms=step_ms, step_p95_ms=1.03 * step_ms)))
    return timed


def as_trained(training: Training, rows: Sequence[EpochResult]) -> Training:
    """Return a training with the figures that its epochs give."""
    train_s, last = rows[-1].elapsed_s, rows[-1]
    return replace(
        training,
        epochs=len(rows),
        time_per_epoch_s=statistics.median(row.train_s for row in rows[1:] or rows),
        total_s=train_s + sum(row.test_s for row in rows),
        train_samples_per_s=sum(row.samples for row in rows) / train_s,
        data_wait_pct=100 * sum(row.data_wait_s for row in rows) / train_s,
        train_loss=last.train_loss,
        test_loss=last.test_loss,
        test_accuracy_pct=last.test_accuracy_pct,
        test_loss_fp32=last.test_loss_fp32,
        test_accuracy_fp32_pct=last.test_accuracy_fp32_pct,
        train_energy_j=sum(row.energy_j for row in rows) if rows[0].energy_j else None,
    )


def _device(index: int) -> Device:
    return Device(
        placement=str(index),
        kind="cuda",
        name=f"NVIDIA Synthetic {index}",
        architecture="Hopper",
        compute_capability="9.0",
        memory_total_bytes=80 * GIB,
    )


def _environment(devices: list[Device]) -> Environment:
    return Environment(
        host="synthetic",
        os="Linux",
        python="3.12",
        torch="2.11",
        torchvision="0.26",
        cuda="13.0",
        cudnn="9.1",
        driver="580.1",
        arch_list=("sm_90",),
        devices=tuple(devices),
    )


def _trials(cell: Cell, shape: Shape, rng: random.Random, *, trains: bool) -> Iterator[tuple[Trial, list[TrialResult]]]:
    names = tuple(ARMS)
    for name in names:
        peak = int(cell.batch_size * GIB / 64 / ARMS[name] ** 0.5)
        kinds = dict.fromkeys(("parameter_bytes", "gradient_bytes", "optimizer_bytes"), 2**24)
        memory = MemoryPeak(peak_allocated_bytes=peak, tracked_peak_bytes=peak - peak // 16, **kinds)
        yield Trial(cell=cell, phase="memory", arms=_arms(name)), [_result(name, memory=memory)]
    protocol = Protocol(replicates=shape.replicates)
    for replicate in range(shape.replicates):
        trial = Trial(cell=cell, phase="floor", arms=_arms("fp32"), replicate=replicate, protocol=protocol)
        floor = _speed(cell, "fp32", rng.gauss(1, 0.002), shape.rounds, floor=True)
        yield trial, [_result("fp32", speed=floor)]
    for replicate in range(shape.replicates):
        trial = Trial(cell=cell, phase="speed", arms=_arms(*names), replicate=replicate, protocol=protocol)
        rounds = round(shape.rounds * rng.uniform(0.5, 1.5))
        ratios = [(name, ARMS[name] * rng.gauss(1, 0.01)) for name in names]
        yield trial, [_result(name, speed=_speed(cell, name, ratio, rounds), ran=True) for name, ratio in ratios]
    for name in names:
        joules = cell.batch_size / 8 / ARMS[name]
        energy = Energy(
            energy_source="counter",
            energy_j_per_step=joules * rng.gauss(1, 0.01),
            energy_net_j_per_step=joules * 0.8,
            idle_power_w=80.0,
            mean_power_w=500.0,
        )
        yield Trial(cell=cell, phase="energy", arms=_arms(name)), [_result(name, energy=energy)]
    for seed in range(shape.seeds if trains else 0):
        for name in names:
            trial = Trial(cell=cell, phase="train", arms=_arms(name), seed=seed, epochs=shape.epochs)
            yield trial, [_result(name, training=_training(name, shape.epochs, rng))]


def _arms(*names: str) -> tuple[AblationStep, ...]:
    return tuple(AblationStep(precision=name) for name in names)


def _result(
    name: str,
    *,
    ran: bool = False,
    memory: MemoryPeak | None = None,
    speed: Speed | None = None,
    energy: Energy | None = None,
    training: Training | None = None,
) -> TrialResult:
    return TrialResult(
        precision=name,
        status="ok",
        started="2026-01-01T00:00:00+00:00",
        wall_s=10.0,
        switches=SWITCHES,
        operations=Operations(compute_dtypes="float32:100%", flops_per_step=1e12) if ran else None,
        memory=memory,
        speed=speed,
        energy=energy,
        training=training,
    )


def _speed(cell: Cell, name: str, ratio: float, rounds: int, *, floor: bool = False) -> Speed:
    step_ms = cell.batch_size / 10 / ratio
    compared = floor or name != "fp32"
    return Speed(
        steady=True,
        warmup_steps=20,
        switch_warmup_steps=2,
        block_steps=10,
        switch_transient_pct=1.0,
        rounds=rounds,
        step_ms=step_ms,
        samples_per_s=1000 * cell.batch_size / step_ms,
        speedup=ratio if compared else None,
        speedup_low=ratio * 0.995 if compared else None,
        speedup_high=ratio * 1.005 if compared else None,
        step_p50_ms=step_ms,
        step_p95_ms=step_ms * 1.02,
        host_ratio=0.3,
        peak_tflops=60.0 * ARMS[name],
        tflops=20.0 * ARMS[name],
        pct_of_peak=33.3,
    )


def _training(name: str, epochs: int, rng: random.Random) -> Training:
    epoch_s = 60 / ARMS[name] * rng.gauss(1, 0.02)
    return Training(
        epochs=epochs,
        time_per_epoch_s=epoch_s,
        total_s=epoch_s * epochs * 1.1,
        train_samples_per_s=50_000 / epoch_s,
        train_loss=0.3,
        test_loss=0.4,
        test_accuracy_pct=90 + rng.gauss(0, 0.2),
        data_wait_pct=2.0,
    )


def _blocks(trial: Trial, results: list[TrialResult], rng: random.Random) -> Iterator[Block]:
    order = [*trial.precisions, *reversed(trial.precisions)]
    speeds = {result.precision: result.speed for result in results if result.speed is not None}
    for number in range(speeds[BASELINE].rounds):
        for position, name in enumerate(order):
            yield Block(
                trial=trial.id,
                precision=name,
                round=number,
                position=position,
                steps=10,
                time_ms=10 * (speeds[name].step_ms or 0.0) * rng.gauss(1, 0.01),
                start_s=1.8e9 + 10 * number + position,
            )


def _epochs(trial: Trial, rng: random.Random) -> Iterator[EpochResult]:
    epoch_s = 60 / ARMS[trial.precisions[0]]
    for epoch in range(1, trial.epochs + 1):
        yield EpochResult(
            trial=trial.id,
            precision=trial.precisions[0],
            seed=trial.seed,
            epoch=epoch,
            train_loss=2.3 / epoch * rng.gauss(1, 0.02),
            test_loss=2.4 / epoch * rng.gauss(1, 0.02),
            test_accuracy_pct=90 - 60 / epoch + rng.gauss(0, 0.2),
            train_s=epoch_s,
            test_s=2.0,
            elapsed_s=epoch_s * epoch,
            data_wait_s=0.5,
            samples=50_000,
            learning_rate=0.1,
            loss_scale=None,
            skipped_steps=0,
        )
