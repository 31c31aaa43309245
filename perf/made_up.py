"""A made-up machine that answers trials at once, with consistent figures.

It knows the phases memory, speed, floor, train and numerics. None of the figures was measured.
``perf/bad_input.py`` damages such runs, ``perf/scale.py`` times large ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.launch import Launcher
from bench.phases.floor import AGAIN
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.phases.train import Training
from bench.results.endings import Ending
from bench.results.records import (
    Block,
    Device,
    Environment,
    EpochResult,
    Message,
    Numeric,
    Operations,
    Switches,
    TrialResult,
)
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.trial import Trial

GIB, MIB = 2**30, 2**20
GPU = Device(
    placement="0",
    kind="cuda",
    name="NVIDIA H100 80GB HBM3",
    architecture="Hopper",
    compute_capability="9.0",
    memory_total_bytes=80 * GIB,
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    power_limit_w=700.0,
    cores=132,
    fp32_gflops=40_000.0,
    energy="counter",
)
CPU = Device(
    placement="cpu",
    kind="cpu",
    name="AMD EPYC",
    architecture="CPU x86-64, AVX512-BF16",
    compute_capability=None,
    memory_total_bytes=64 * GIB,
    cores=8,
    threads=8,
    fp32_gflops=400.0,
    bf16_gflops=900.0,
    unsupported={
        "tf32": "this CPU has none",
        "fp8-tensorwise": "fp8-tensorwise needs float8 tensor cores, which are on GPUs",
    },
)
ROUNDS, STEPS = 8, 5
# How many times as fast as fp32 the other precisions are.
GAIN = 2.5


class MadeUpMachine(Launcher):
    """A machine with one GPU and one CPU that runs nothing."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        super().__init__()
        self.rounds, self._rng = rounds, random.Random(0)

    def survey(self, gpus: tuple[str, ...] | None) -> Environment:
        """Describe the named devices, by default the GPU."""
        devices = [CPU if "cpu" in name else GPU for name in gpus or ("0",)]
        named = zip(gpus or ("0",), devices, strict=True)
        return Environment(
            host="made-up",
            os="Linux 6.8",
            python="3.12.3",
            torch="2.11.0",
            torchvision="0.26.0",
            cuda="12.6",
            cudnn="91300",
            driver="580.1",
            devices=tuple(replace(device, placement=name) for name, device in named),
        )

    def call(self, target: str, *arguments: object, silence_s: float = 0.0) -> Any:
        """Return None: no steps are counted, no weights are downloaded."""

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Send a result for each arm, with its blocks, epochs and figures."""
        results = [self._result(trial, device, name) for name in trial.arm_names]
        if trial.phase == "speed":
            self._send_blocks(trial, trial.arm_names, on_message)
        if trial.phase == "floor":
            self._send_blocks(trial, (BASELINE, BASELINE + AGAIN), on_message)
        if trial.phase == "train":
            for number in range(1, trial.epochs + 1):
                on_message(self._epoch(trial, number))
        if trial.phase == "numerics":
            for step in range(3):
                figure = {"trial": trial.id, "precision": trial.arm_names[0], "step": step}
                figure["layer"] = ""
                on_message(Numeric(kind="step", name="loss", value=2.0 - step / 10, **figure))
                on_message(Numeric(kind="gradient", name="-8", value=1000.0, **figure))
        for result in results:
            on_message(result)
        return Ending(kind="done")

    def _result(self, trial: Trial, device: Device, name: str) -> TrialResult:
        gain = 1.0 if name == BASELINE else GAIN
        precision, batch = PRECISIONS[name.partition(":")[0]], trial.cell.batch_size
        parts: dict[str, Any] = {}
        if trial.phase == "memory":
            parts["row"] = self._memory(device, batch, gain)
        elif trial.phase in ("speed", "floor"):
            parts["row"] = Speed(
                steady=True,
                warmup_steps=20,
                switch_warmup_steps=2,
                samples_per_step=batch,
                host_ratio=0.25 if device.is_gpu else None,
                foreign_load_pct=None if device.is_gpu else 2.0,
            )
            parts["operations"] = Operations(
                compute_dtypes="float32:100%", flops_per_step=1e9 * batch
            )
        elif trial.phase == "train":
            parts["row"] = Training(
                total_s=13.0 * trial.epochs,
                checkpoint_bytes=40 * MIB,
                data_storage="device",
            )
        switches = Switches(
            fp32_matmul="tf32" if precision.fp32 == "tf32" else "ieee",
            fp32_conv="ieee" if precision.fp32 == "ieee" else "tf32",
            autocast=precision.autocast,
            loss_scaling=precision.loss_scaling,
            matmul_error=3e-4 if precision.fp32 == "tf32" else 2.4e-7,
        )
        return TrialResult(
            arm=name,
            status="ok",
            started="2026-01-01T00:00:00+00:00",
            wall_s=30.0,
            switches=switches,
            **parts,
        )

    def _memory(self, device: Device, batch: int, gain: float) -> MemoryPeak:
        weights, activations = 40 * MIB, int(batch * 8 * MIB / gain**0.5)
        tracked = 4 * weights + activations + MIB
        kinds = MemoryPeak(
            model_bytes=weights,
            tracked_peak_bytes=tracked,
            parameter_bytes=weights,
            gradient_bytes=weights,
            optimizer_bytes=2 * weights,
            activation_bytes=activations,
            temporary_bytes=MIB,
        )
        if not device.is_gpu:
            return replace(
                kinds, first_peak_bytes=int(1.1 * tracked), peak_resident_bytes=int(1.2 * tracked)
            )
        return replace(
            kinds,
            first_peak_bytes=int(1.2 * tracked),
            peak_allocated_bytes=int(1.01 * tracked),
            peak_reserved_bytes=int(1.1 * tracked),
            driver_used_bytes=int(1.1 * tracked) + 500 * MIB,
        )

    def _send_blocks(
        self, trial: Trial, names: tuple[str, ...], on_message: Callable[[Message], None]
    ) -> None:
        for number in range(self.rounds):
            for position, name in enumerate([*names, *names[::-1]]):
                gain = 1 if name.startswith(BASELINE) else GAIN
                step_ms = trial.cell.batch_size / 20 / gain
                block = Block(
                    trial=trial.id,
                    precision=name,
                    round=number,
                    position=position,
                    steps=STEPS,
                    time_ms=STEPS * step_ms * self._rng.gauss(1, 0.01),
                    start_s=1.8e9 + 10 * number + position,
                )
                on_message(block)

    def _epoch(self, trial: Trial, number: int) -> EpochResult:
        train_s = 12.0 / (1 if trial.arm_names == (BASELINE,) else GAIN)
        loss = 1.5 / number * self._rng.gauss(1, 0.02)
        accuracy = 90 - 40 / number + self._rng.gauss(0, 0.3)
        return EpochResult(
            trial=trial.id,
            precision=trial.arm_names[0],
            seed=trial.seed,
            epoch=number,
            train_loss=1.4 / number * self._rng.gauss(1, 0.02),
            test_loss=loss,
            test_accuracy_pct=accuracy,
            train_s=train_s,
            test_s=1.0,
            elapsed_s=number * train_s,
            data_wait_s=0.3,
            samples=50_000,
            learning_rate=0.1 / number,
            loss_scale=None,
            skipped_steps=0,
            samples_per_s=50_000 / train_s,
        )
