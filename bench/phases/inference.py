"""The inference phase: the forward pass in eval mode, timed against fp32's in quads, and whether it says the same."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.devices.backend import backend_of
from bench.measure.disturbance import open_watch
from bench.measure.quads import Comparison, compare
from bench.measure.warmup import prepare
from bench.phases.compiling import until_compiled, watched_edge
from bench.phases.context import Setting, enter, open_setting, resident_batches
from bench.results.records import Device, Inference, Message, Progress, Status, TrialResult
from bench.spec.precisions import BASELINE
from bench.spec.trial import Trial
from bench.training import amp as switches
from bench.training.step import Arm, build_arm, synchronize
from bench.training.techniques import arrange, compilations

BATCHES = 4
"""Batches resident on the device that the steps take in turn; agreement is told over all of them."""
ROUNDS, TURN = 20, 10
"""Single samples are timed in so many rounds, with so many of each arm, the first untimed."""


@dataclass(slots=True)
class ForwardRunner:
    """A model that answers, to be timed."""

    name: str
    arm: Arm
    batches: list[tuple[Tensor, Tensor]]
    asynchronous: bool
    turn: int = 0

    def activate(self) -> None:
        """Set TF32's switches to this arm's; all else that differs is in the arm."""
        switches.apply(self.arm.precision)

    def run(self, steps: int) -> None:
        """Queue that many forward passes."""
        for _ in range(steps):
            self.answer(self.batches[self.turn % len(self.batches)][0])
            self.turn += 1

    def answer(self, inputs: Tensor) -> Tensor:
        """Return the model's output for a batch, (B, ...)."""
        with torch.inference_mode(), self.arm.autocast():
            output: Tensor = self.arm.forward(arrange(inputs, self.arm.techniques))
        return output

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.arm.device)

    def fingerprint(self) -> object:
        """Return the number of device allocations, and of compilations."""
        allocations = backend_of(self.arm.device).allocations()
        return allocations, compilations()

    def taken_steps(self) -> int:
        """Return the number of passes; none is ever skipped."""
        return self.turn


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's only precision against fp32 in this process, and send its result."""
    setting = open_setting(trial)
    name = trial.precisions[0]
    names = (BASELINE,) if name == BASELINE else (BASELINE, name)
    runners = _build(trial, setting, names)
    compile_s = [_compile_s(runner, send) for runner in runners][-1]
    cuts = prepare(runners, trial.protocol.time_budget_s, say=lambda text: send(Progress(text=text)))
    sizes = [cut.sizes for cut in cuts]
    with open_watch(device) as disturbance:
        found = compare(runners, sizes, trial.protocol, seed=trial.seed, edge=watched_edge(disturbance))
    latency_ms = latencies_ms(runners)[-1]
    agreement_pct, error = agreement(runners[0], runners[-1])
    p50, p95 = np.percentile(latency_ms, [50, 95])
    speedup = found.speedups[-1]
    status, detail = _judge(found, error)
    send(
        TrialResult(
            precision=name,
            status=status,
            detail=detail,
            compile_s=compile_s,
            switches=enter(name, setting.device)[1],
            inference=Inference(
                latency_p50_ms=float(p50),
                latency_p95_ms=float(p95),
                inference_samples_per_s=_samples_per_s(found, len(runners) - 1, trial.cell.batch_size),
                inference_speedup=speedup.center if speedup else None,
                inference_speedup_low=speedup.low if speedup else None,
                inference_speedup_high=speedup.high if speedup else None,
                inference_rounds=found.quads,
                top1_agreement_pct=None if setting.data.classes is None else agreement_pct,
                output_error=error,
            ),
        )
    )


def _build(trial: Trial, setting: Setting, names: Sequence[str]) -> list[ForwardRunner]:
    batches = resident_batches(setting, trial, BATCHES)
    runners = []
    for name in names:
        precision, _ = enter(name, setting.device)
        arm = build_arm(
            setting.suite, setting.data, precision, setting.device, seed=trial.seed, techniques=setting.techniques
        )
        arm.model.eval()
        runners.append(
            ForwardRunner(name=name, arm=arm, batches=batches, asynchronous=backend_of(setting.device).is_gpu)
        )
    return runners


def _compile_s(runner: ForwardRunner, send: Callable[[Message], None]) -> float | None:
    """Let an arm compile for batches and for single samples, before anything is watched or timed."""
    if not runner.arm.techniques.compile:
        return None
    send(Progress(text=f"{runner.name}: compiling"))
    runner.activate()
    inputs = runner.batches[0][0]
    shapes = inputs, inputs[:1].contiguous()
    return sum(until_compiled(partial(runner.answer, one), runner.arm.device) for one in shapes)


def _judge(found: Comparison, error: float) -> tuple[Status, str]:
    if not math.isfinite(error):
        return "nonfinite", "an output is infinite or NaN"
    if not found.quads:
        return "invalid", f"no quad counts: {found.invalid[0]}"
    if not found.converged[-1]:
        return "unconverged", "the interval is wider than was asked for when time was up"
    return "ok", ""


def _samples_per_s(found: Comparison, arm: int, batch_size: int) -> float:
    times = [block.step_ns for block in found.blocks if block.arm == arm and (not block.invalid or not found.quads)]
    return batch_size / (statistics.median(times) / 1e9)


def latencies_ms(
    runners: Sequence[ForwardRunner], clock: Callable[[], int] = time.perf_counter_ns
) -> list[list[float]]:
    """Time single samples, waiting for each answer; the arms take turns, there and back again.

    Returns:
        For each arm the times in milliseconds.
    """
    times: list[list[float]] = [[] for _ in runners]
    samples = [inputs[:1].contiguous() for inputs, _ in runners[0].batches]
    order = list(range(len(runners)))
    for number in range(ROUNDS):
        for index in order if number % 2 else order[::-1]:
            runner = runners[index]
            runner.activate()
            for turn in range(TURN):
                runner.synchronize()
                start = clock()
                runner.answer(samples[turn % len(samples)])
                runner.synchronize()
                if turn:
                    times[index].append((clock() - start) / 1e6)
    return times


def agreement(baseline: ForwardRunner, runner: ForwardRunner) -> tuple[float, float]:
    """Compare two models' answers to the resident batches.

    Returns:
        In how many per cent of samples the largest output is the same one, and the largest difference of an output
        over the largest absolute output of ``baseline``.
    """
    baseline.activate()
    expected = torch.cat([baseline.answer(inputs).double().flatten(1) for inputs, _ in baseline.batches])
    runner.activate()
    answered = torch.cat([runner.answer(inputs).double().flatten(1) for inputs, _ in baseline.batches])
    same = (expected.argmax(dim=1) == answered.argmax(dim=1)).double().mean()
    error = (answered - expected).abs().max() / expected.abs().max()  # a NaN in either stays one
    return 100 * float(same), float(error)
