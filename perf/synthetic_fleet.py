#!/usr/bin/env python3
"""Made-up runs of a fleet: 5 GPUs, 3 models, 4 precisions, 5 batch sizes.

    python perf/synthetic_fleet.py FOLDER

The harness's store writes them; tests and people use them to check pages. None of the figures was
measured. FOLDER/fleet is one run
of all five GPUs, FOLDER/cloud-NAME a run of one GPU on another machine, FOLDER/h100-one a small run
of one model, and FOLDER/h100-new the same with another driver.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from bench.phases.energy import Energy
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.phases.train import Training
from bench.results.records import (
    Block,
    Device,
    Environment,
    EpochResult,
    Operations,
    Switches,
    TrialResult,
)
from bench.results.store import Store
from bench.spec.data_source import DataSource
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE
from bench.spec.protocol import Protocol
from bench.spec.techniques import ArmSpec
from bench.spec.trial import Cell, SuiteRef, Trial

GIB = 2**30
BATCH_SIZES = (32, 64, 128, 256, 512)
# The batch size of trainings.
TRAINED = 128
STARTED = "2026-01-01T00:00:00+00:00"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A device of the fleet."""

    name: str
    architecture: str
    capability: str
    memory_gib: int
    watts: float
    fp32_tflops: float
    speedups: dict[str, float]
    """Of the precisions that it supports, over fp32."""
    scatter: float = 0.006
    """Between processes, as a share."""
    within: float = 0.004
    """Half the interval within a process, as a share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A suite of the fleet."""

    flops: float
    """Of a sample's forward pass."""
    sample_gib: float
    model_gib: float
    gain: float
    """Share of a device's speedup that it reaches, as a factor on the part above 1."""
    accuracy_pct: float | None = None


GPUS = {
    "P100": Gpu(
        name="Tesla P100-PCIE-16GB",
        architecture="Pascal",
        capability="6.0",
        memory_gib=16,
        watts=250,
        fp32_tflops=8.5,
        speedups={"fp32": 1, "amp-fp16": 1.12},
    ),
    "V100": Gpu(
        name="Tesla V100-SXM2-32GB",
        architecture="Volta",
        capability="7.0",
        memory_gib=32,
        watts=300,
        fp32_tflops=13.8,
        speedups={"fp32": 1, "amp-fp16": 2.45},
    ),
    "T4": Gpu(
        name="Tesla T4",
        architecture="Turing",
        capability="7.5",
        memory_gib=15,
        watts=70,
        fp32_tflops=4.6,
        speedups={"fp32": 1, "amp-fp16": 2.6},
        scatter=0.03,
        within=0.03,
    ),
    "A100": Gpu(
        name="NVIDIA A100-SXM4-80GB",
        architecture="Ampere",
        capability="8.0",
        memory_gib=80,
        watts=400,
        fp32_tflops=17.5,
        speedups={"fp32": 1, "tf32": 2.2, "amp-fp16": 3.1, "amp-bf16": 3.05},
    ),
    "H100": Gpu(
        name="NVIDIA H100 80GB HBM3",
        architecture="Hopper",
        capability="9.0",
        memory_gib=80,
        watts=700,
        fp32_tflops=48.0,
        speedups={"fp32": 1, "tf32": 2.5, "amp-fp16": 3.4, "amp-bf16": 3.45},
    ),
}
MODELS = {
    "resnet50": Model(flops=7.8e9, sample_gib=0.115, model_gib=0.4, gain=1.0, accuracy_pct=94.0),
    "vit_b_16": Model(flops=105e9, sample_gib=0.19, model_gib=1.4, gain=1.25, accuracy_pct=78.0),
    "mlp": Model(flops=2e8, sample_gib=0.004, model_gib=0.4, gain=0.8),
}
ARMS = ("fp32", "tf32", "amp-fp16", "amp-bf16")
COMPUTED = {
    "fp32": "float32:100%",
    "tf32": "float32:100%",
    "amp-fp16": "float16:99%",
    "amp-bf16": "bfloat16:99%",
}
LACKING = {
    "tf32": "TF32 needs an Ampere GPU or newer; this one is {architecture} ({capability})",
    "amp-bf16": "bfloat16 is emulated on {architecture}, which is no measurement of it",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Devices, models and sizes of a run of the fleet."""

    gpus: Sequence[str] = tuple(GPUS)
    models: Sequence[str] = tuple(MODELS)
    batch_sizes: Sequence[int] = BATCH_SIZES
    processes: int = 3
    seeds: int = 5
    epochs: int = 10
    rounds: int = 12
    slower: float = 1.0
    """Factor on every step's time."""


def write_run(
    folder: Path,
    shape: Shape = Shape(),
    *,
    host: str = "gpu-lab",
    driver: str = "560.35.03",
    seed: int = 0,
) -> Path:
    """Write a run into a new folder, and return the folder."""
    rng = random.Random(seed)
    devices = {name: _device(GPUS[name], str(place)) for place, name in enumerate(shape.gpus)}
    store = Store(folder)
    environment = asdict(_environment(devices.values(), host, driver))
    placements = ",".join(device.placement for device in devices.values())
    argv = ["--suite", ",".join(shape.models), "--gpus", placements]
    run = {"environment": environment, "warnings": [], "request": {"argv": argv}}
    store.write_run({**run, "started": STARTED})
    for model in shape.models:
        for name, device in devices.items():
            for batch in shape.batch_sizes:
                cell = Cell(
                    suite=SuiteRef(name=model),
                    placement=Placement(name=device.placement),
                    batch_size=batch,
                    data=DataSource(kind="cifar10" if MODELS[model].accuracy_pct else "synthetic"),
                )
                _Cell(store, device, cell, GPUS[name], MODELS[model], shape, rng).write()
    return folder


@dataclass(frozen=True, slots=True)
class _Cell:
    """One model on one GPU at one batch size."""

    store: Store
    device: Device
    cell: Cell
    gpu: Gpu
    model: Model
    shape: Shape
    rng: random.Random

    @property
    def fp32_ms(self) -> float:
        """Time of a step: its forward pass and twice as much backward, and 2 ms of the host's."""
        utilisation = 0.45 * (1 - math.exp(-self.cell.batch_size / 90)) + 0.08
        flops = 3 * self.model.flops * self.cell.batch_size
        step_s = flops / (self.gpu.fp32_tflops * 1e12 * utilisation)
        return 1e3 * step_s * self.shape.slower + 2.0

    def gain(self, precision: str) -> float:
        """Return a precision's speedup over fp32 at a large batch."""
        return 1 + (self.gpu.speedups[precision] - 1) * self.model.gain

    def write(self) -> None:
        fitting = [name for name in ARMS if self._memory(name)]
        if not fitting:
            return
        for replicate in range(self.shape.processes):
            self._speed(fitting, replicate)
        for name in fitting:
            self._energy(name)
        if self.model.accuracy_pct and self.cell.batch_size == TRAINED:
            for seed in range(self.shape.seeds):
                for name in fitting:
                    self._train(name, seed)

    def _add(self, phase: str, arms: Sequence[str], result: TrialResult) -> None:
        self.store.add_results(self._trial(phase, arms), self.device, [result])

    def _trial(self, phase: str, arms: Sequence[str], **asked: Any) -> Trial:
        steps = tuple(ArmSpec(precision=name) for name in arms)
        return Trial(cell=self.cell, phase=phase, arms=steps, **asked)

    def _lost(self, precision: str, status: Any, detail: str) -> None:
        result = TrialResult(arm=precision, status=status, detail=detail)
        for phase in ("memory", "speed"):
            self._add(phase, [precision], result)

    def _memory(self, precision: str) -> bool:
        """Write a precision's memory; return whether it is supported and fits."""
        gpu, batch = self.gpu, self.cell.batch_size
        if precision not in gpu.speedups:
            named = {"architecture": gpu.architecture, "capability": gpu.capability}
            self._lost(precision, "unsupported", LACKING[precision].format(**named))
            return False
        sample = self.model.sample_gib * (0.58 if precision.startswith("amp") else 1)
        peak_gib = sample * batch + self.model.model_gib
        if peak_gib > gpu.memory_gib * 0.95:
            reason = f"tried to allocate {peak_gib / 20:.2f} GiB of {gpu.memory_gib} GiB"
            self._lost(precision, "oom", reason)
            return False
        peak, part = int(peak_gib * GIB), int(self.model.model_gib * GIB / 4)
        memory = MemoryPeak(
            peak_allocated_bytes=peak,
            peak_reserved_bytes=min(int(peak * 1.08), int(gpu.memory_gib * GIB * 0.97)),
            tracked_peak_bytes=int(peak * 0.97),
            parameter_bytes=part,
            gradient_bytes=part,
            optimizer_bytes=part,
            activation_bytes=int(peak * 0.92) - 3 * part,
            temporary_bytes=int(peak * 0.97) - int(peak * 0.92),
            model_bytes=part,
        )
        self._add("memory", [precision], _result(precision, row=memory))
        return True

    def _speed(self, fitting: list[str], replicate: int) -> None:
        batch, paired = self.cell.batch_size, BASELINE in fitting
        steps_ms, is_limited = {}, not self.model.accuracy_pct and batch < 64
        for name in fitting:
            speedup = 1 + (self.gain(name) - 1) * (1 - 0.55 * math.exp(-batch / 80))
            if is_limited:
                speedup = 1 + (speedup - 1) * 0.05
            speedup *= self.rng.gauss(1, self.gpu.scatter)
            steps_ms[name] = self.fp32_ms / speedup
        protocol = Protocol(replicates=self.shape.processes)
        trial = self._trial("speed", fitting, replicate=replicate, protocol=protocol)
        # Half an interval of 95 % is about 2.2 standard errors of the mean over the rounds.
        scatter = self.gpu.within * self.shape.rounds**0.5 / 2.2
        blocks = []
        for round_ in range(self.shape.rounds):
            for position, name in enumerate([*fitting, *reversed(fitting)]):
                block = Block(
                    trial=trial.id,
                    precision=name,
                    round=round_,
                    position=position,
                    steps=5,
                    time_ms=5 * steps_ms[name] * self.rng.gauss(1, scatter),
                    start_s=1.8e9 + round_ * 8 + position,
                )
                blocks.append(block)
        results = []
        for name in fitting:
            speed = Speed(
                steady=True,
                warmup_steps=20,
                switch_warmup_steps=2,
                samples_per_step=batch,
                host_ratio=0.95 if is_limited else 0.3,
                paired=paired,
            )
            operations = Operations(
                compute_dtypes=COMPUTED[name], flops_per_step=3 * self.model.flops * batch
            )
            results.append(_result(name, row=speed, operations=operations))
        self.store.add_results(trial, self.device, results, blocks)

    def _energy(self, precision: str) -> None:
        joules = self.gpu.watts * 0.85 * self.fp32_ms / 1e3 / self.gain(precision)
        energy = Energy(
            energy_source="counter",
            energy_j_per_step=joules,
            idle_power_w=self.gpu.watts * 0.12,
            mean_power_w=self.gpu.watts * 0.85,
            energy_window_s=joules * 100 / (self.gpu.watts * 0.85),
            energy_steps=100,
        )
        self._add("energy", [precision], _result(precision, row=energy))

    def _train(self, precision: str, seed: int) -> None:
        gain = 1 + (self.gpu.speedups[precision] - 1) * self.model.gain * 0.85
        epochs = self.shape.epochs
        steps = 50_000 / self.cell.batch_size
        epoch_s = steps * self.fp32_ms / 1e3 / gain * self.rng.gauss(1, 0.01) + 0.5
        accuracy = (self.model.accuracy_pct or 0) + self.rng.gauss(0, 0.2)
        trial = self._trial("train", [precision], seed=seed, epochs=epochs)
        rows = [self._epoch(trial, epoch, epoch_s, accuracy) for epoch in range(1, epochs + 1)]
        training = Training(
            total_s=rows[-1].elapsed_s + sum(row.test_s or 0.0 for row in rows),
            checkpoint_bytes=int(0.1 * GIB),
            data_storage="device",
        )
        result = _result(precision, row=training)
        self.store.add_results(trial, self.device, [result], rows)

    def _epoch(self, trial: Trial, epoch: int, epoch_s: float, last: float) -> EpochResult:
        left = 45 * (math.exp(-0.45 * epoch) - math.exp(-0.45 * self.shape.epochs))
        accuracy = last - left + self.rng.gauss(0, 0.3)
        loss = 1.9 * math.exp(-0.3 * epoch) * self.rng.gauss(1, 0.05) + 0.24
        return EpochResult(
            trial=trial.id,
            precision=trial.arm_names[0],
            seed=trial.seed,
            epoch=epoch,
            train_loss=2.2 * math.exp(-0.35 * epoch) * self.rng.gauss(1, 0.03) + 0.02,
            test_loss=loss,
            test_accuracy_pct=accuracy,
            train_s=epoch_s,
            test_s=2.0,
            elapsed_s=epoch_s * epoch,
            data_wait_s=0.5,
            samples=50_000,
            learning_rate=0.1,
            loss_scale=65536.0 if trial.arm_names[0] == "amp-fp16" else None,
            skipped_steps=0,
        )


def _result(precision: str, **parts: Any) -> TrialResult:
    fp32_products = "tf32" if precision == "tf32" else "ieee"
    switches = Switches(
        fp32_matmul=fp32_products,
        fp32_conv=fp32_products,
        autocast={"amp-fp16": "float16", "amp-bf16": "bfloat16"}.get(precision, ""),
        loss_scaling=precision == "amp-fp16",
        matmul_error=3e-4 if precision == "tf32" else 2.1e-7,
    )
    return TrialResult(
        arm=precision, status="ok", started=STARTED, wall_s=30.0, switches=switches, **parts
    )


def _device(gpu: Gpu, placement: str) -> Device:
    lacking = tuple(name for name in ("tf32", "amp-bf16") if name not in gpu.speedups)
    return Device(
        placement=placement,
        kind="cuda",
        name=gpu.name,
        architecture=gpu.architecture,
        compute_capability=gpu.capability,
        memory_total_bytes=gpu.memory_gib * GIB,
        uuid=f"GPU-{gpu.name.replace(' ', '-')}",
        power_limit_w=gpu.watts,
        power_default_w=gpu.watts,
        cores=80,
        energy="counter",
        unsupported=dict.fromkeys(lacking, "needs Ampere or newer") or None,
    )


def _environment(devices: Iterable[Device], host: str, driver: str) -> Environment:
    return Environment(
        host=host,
        os="Linux 6.8.0-41-generic",
        python="3.12.3",
        torch="2.11.0+cu126",
        torchvision="0.26.0",
        cuda="12.6",
        cudnn="91300",
        driver=driver,
        devices=tuple(devices),
    )


def write_all(folder: Path) -> list[Path]:
    """Write every run of the fleet, each into its folder below ``folder``."""
    drivers = {
        "P100": "535.183.01",
        "V100": "550.54.15",
        "T4": "560.35.03",
        "A100": "580.65.06",
        "H100": "580.65.06",
    }
    runs = [write_run(folder / "fleet")]
    for seed, (name, driver) in enumerate(drivers.items(), 1):
        machine = {"host": f"node-{name.lower()}", "driver": driver, "seed": seed}
        runs.append(write_run(folder / f"cloud-{name.lower()}", Shape(gpus=[name]), **machine))
    small = Shape(gpus=["H100"], models=["resnet50"], batch_sizes=(64, 128, 256))
    newer = replace(small, slower=0.9)
    host = "node-h100"
    runs.append(write_run(folder / "h100-one", small, host=host, driver="580.65.06"))
    runs.append(write_run(folder / "h100-new", newer, host=host, driver="590.10.01", seed=9))
    return runs


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for run in write_all(Path(sys.argv[1])):
        print(run)
