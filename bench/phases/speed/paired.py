"""The paired measurement: arms in one process, timed against the first of them in ABBA rounds.

Phases that measure this way differ in their arms (``bench.training.arms``) and in what they measure
afterwards.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.data.batch import Batch
from bench.measure.disturbance import open_watch
from bench.measure.rounds import Comparison, compare
from bench.measure.warmup import prepare
from bench.phases.speed import Speed
from bench.results.records import Block, Device, Progress, Send, Status, TrialResult
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import Context, TrainingRunner, by_shape
from bench.training.techniques import compilations

# Shortest interval between two progress messages.
PROGRESS_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """The result of a paired measurement."""

    trial: Trial
    runners: Sequence[TrainingRunner]
    """The arms, the baseline first."""
    speeds: Sequence[Speed]
    """Each arm's record, without what follows from its blocks."""
    comparison: Comparison

    def blocks(self) -> list[Block]:
        """Return the timed blocks as records."""
        records = []
        for block in self.comparison.blocks:
            record = Block(
                trial=self.trial.id,
                precision=self.runners[block.arm_index].name,
                round=block.round,
                position=block.position,
                steps=block.steps,
                time_ms=block.time_ns / 1e6,
                start_s=block.start_s,
                skipped_steps=block.skipped_steps,
            )
            records.append(record)
        return records

    def step_ns(self, arm_index: int) -> float:
        """Return an arm's median step time."""
        blocks = self.comparison.blocks
        return statistics.median(block.step_ns for block in blocks if block.arm_index == arm_index)

    def result(self, arm_index: int, **measured: Any) -> TrialResult:
        """Return an arm's result, with its switches as they read back after another step.

        Args:
            arm_index: of the arm.
            measured: other fields of the result.
        """
        runner = self.runners[arm_index]
        status, detail = self.judge(arm_index)
        return runner.result(
            status,
            detail,
            switches=runner.switches_after_a_step(),
            conversion=runner.arm.conversion,
            row=self.speeds[arm_index],
            **measured,
        )

    def judge(self, arm_index: int) -> tuple[Status, str]:
        """Return an arm's status, and the reason if it is not ``ok``."""
        protocol = self.trial.protocol
        if not self.runners[arm_index].finite():
            return "nonfinite", "the loss became NaN or Inf while timing"
        # A cell of several processes is judged by the interval over them.
        if protocol.target_ci is None or protocol.most_replicates > 1:
            return "ok", ""
        if self.comparison.is_arm_within(protocol.process_target, arm_index):
            return "ok", ""
        target = f"{100 * protocol.process_target:g} %"
        budget = f"{protocol.process_s:g} s"
        detail = f"the interval is wider than ±{target} when timing ended (budget {budget} an arm)"
        return "unconverged", detail


def measure(
    context: Context,
    runners: Sequence[TrainingRunner],
    device: Device,
    send: Send,
    *,
    batches: Sequence[Batch],
) -> Paired:
    """Warm the arms up, choose block sizes, and time ABBA rounds.

    Each arm keeps the switches as they read back before it runs: the figures are those of its
    precision only as long as its model leaves them so.

    Args:
        context: of the trial, whose protocol sets the target width and the time budget, and whose
            seed and replicate set the rounds' orders.
        runners: the arms, built and compiled, the baseline first.
        device: watched for disturbances.
        send: takes the progress.
        batches: those that each arm takes in turn; where their shapes differ, a block has all of
            them equally often.
    """
    trial = context.trial
    clock = distributed.clock()
    for runner in runners:
        runner.activate()
        runner.wanted = runner.read_back()
    budget_s = trial.protocol.process_s
    plans = prepare(runners, budget_s, say=lambda text: send(Progress(text=text)), clock=clock)
    sizes = [plan.sizes for plan in plans]
    turn = 1
    if len(by_shape(batches)) > 1:
        # Whole turns, or arms whose blocks end at different batches would do unequal work.
        turn = len(batches)
    sizes = [replace(size, steps=math.ceil(size.steps / turn) * turn) for size in sizes]
    # Orders of its own for each process, so that what an order favours averages out over them. A
    # cell has far fewer processes than 1000, so that none has another seed's orders.
    seed = 1000 * trial.seed + trial.replicate
    preemptions_before = _preemptions()
    compiled_before = compilations()
    begin_s = last_s = time.monotonic()
    with open_watch(device, gather=distributed.gathered, rank=distributed.rank()) as watch:

        def look(comparison: Comparison) -> None:
            nonlocal last_s
            watch.poll()
            now_s = time.monotonic()
            if now_s - last_s >= PROGRESS_S:
                last_s = now_s
                done = min(1.0, (now_s - begin_s) / (budget_s * len(runners)))
                send(Progress(text=_progress(runners, comparison), done=done))

        comparison = compare(runners, sizes, trial.protocol, seed=seed, clock=clock, watch=look)
        foreign_pct = watch.foreign_load_pct()
        took_s = time.monotonic() - begin_s
        preemptions_per_s = (_preemptions() - preemptions_before) / took_s
        disturbance = watch.disturbance()
    if compilations() != compiled_before:
        disturbance = "; ".join(filter(None, (disturbance, "recompiled")))
    disturbance = _of_all_ranks(disturbance, trial.cell.placement.members)
    samples = context.samples_per_step(batches)
    speeds = []
    for plan in plans:
        speed = Speed(
            steady=plan.warm.steady,
            warmup_steps=plan.warm.steps,
            switch_warmup_steps=plan.sizes.switch_warmup,
            samples_per_step=samples,
            tokens_per_sample=context.data.tokens_per_sample,
            paired=len(runners) > 1,
            power_capped=watch.capped if device.is_gpu else None,
            disturbance=disturbance,
            foreign_load_pct=foreign_pct,
            switches_per_s=preemptions_per_s,
        )
        speeds.append(speed)
    return Paired(trial=trial, runners=runners, speeds=speeds, comparison=comparison)


def _preemptions() -> int:
    """Return how often the system has taken a core from this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _of_all_ranks(own: str, devices: Sequence[str]) -> str:
    """Return what disturbed the devices of all processes that train together.

    Where there are several, each is named.
    """
    by_rank = distributed.gathered(own)
    if len(by_rank) == 1:
        return own
    named = zip(devices, by_rank, strict=True)
    return "; ".join(f"device {name}: {cause}" for name, cause in named if cause)


def _progress(runners: Sequence[TrainingRunner], comparison: Comparison) -> str:
    """Return the running speedups in words."""
    running = []
    for runner, log in zip(runners[1:], comparison.logs[1:], strict=True):
        center, low, high = log.exp().ends
        if low is not None:
            running.append(f"{runner.name} {center:.3f}× [{low:.3f}, {high:.3f}]")
    text = f"{comparison.rounds} rounds"
    return f"{text}: {', '.join(running)}" if running else text
