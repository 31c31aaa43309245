"""The speed phase: all arms of a cell in one process, timed against each other in quads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench import precision as switches
from bench.data import random_batches
from bench.measure.timing import Comparison, Sizes, compare
from bench.measure.warmup import SwitchProfile, WarmUp, block_steps, empty_block_ns, switch_profiles, warm_up
from bench.phases.setting import Setting, enter, open_setting
from bench.records import Block, Device, Message, Progress, Speed, Status, TrialResult
from bench.spec import Trial
from bench.stats import Interval
from bench.train import Arm, build_arm, synchronize, training_step

BATCHES = 4
"""Batches resident on the device that the steps take in turn."""
WARM_UP_SHARE = 0.5
SWITCH_SHARE = 0.2
"""Shares of the time budget that warm-up and the watching of switches may take beside it."""


@dataclass(slots=True)
class TorchRunner:
    """An arm as the timing knows it."""

    name: str
    arm: Arm
    batches: list[tuple[Tensor, Tensor]]
    asynchronous: bool
    turn: int = 0
    loss: Tensor | None = field(default=None)

    def activate(self) -> None:
        """Set TF32's switches to this arm's; all else that differs is in the arm."""
        switches.apply(self.arm.precision)

    def run(self, steps: int) -> None:
        """Queue that many training steps."""
        for _ in range(steps):
            self.loss = training_step(self.arm, *self.batches[self.turn % BATCHES])
            self.turn += 1

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.arm.device)

    def fingerprint(self) -> object:
        """Return the number of device allocations and the loss scale."""
        allocations = 0
        if self.arm.device.type == "cuda":
            allocations = torch.cuda.memory_stats(self.arm.device).get("num_device_alloc", 0)
        return allocations, self.arm.scaler.get_scale()

    def taken_steps(self) -> int:
        """Return how many optimizer steps were not skipped."""
        return self.arm.taken.count

    def finite(self) -> bool:
        """Say whether the last loss is a number."""
        return self.loss is None or bool(torch.isfinite(self.loss))


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's precisions against the first of them; send blocks, then a result for each."""
    setting = open_setting(trial)
    entered = [enter(name, setting.device) for name in trial.precisions]
    batches = random_batches(
        setting.data, batch_size=trial.cell.batch_size, count=BATCHES, device=setting.device, seed=trial.seed
    )
    runners = [
        TorchRunner(
            name=precision.name,
            arm=build_arm(setting.suite, setting.data, precision, setting.device, seed=trial.seed),
            batches=batches,
            asynchronous=setting.device.type == "cuda",
        )
        for precision, _ in entered
    ]
    warm, profiles, sizes, empty_ns = _prepare(runners, trial.protocol.time_budget_s, send)
    comparison = compare(
        runners,
        sizes,
        trial.protocol,
        seed=trial.seed * 1000 + trial.replicate,
        watch=_watcher(trial, send),
    )
    for block in comparison.blocks:
        send(
            Block(
                trial=trial.id,
                precision=trial.precisions[block.arm],
                quad=block.quad,
                position=block.position,
                steps=block.steps,
                time_ms=block.time_ns / 1e6,
                start_s=block.start_s,
                skipped_steps=block.skipped_steps,
            )
        )
    for index, runner in enumerate(runners):
        speed = _summary(index, trial, setting, comparison, warm[index], profiles[index], sizes[index], empty_ns)
        status, detail = _judge(runner, comparison, trial)
        send(TrialResult(precision=runner.name, status=status, detail=detail, switches=entered[index][1], speed=speed))


def _prepare(
    runners: Sequence[TorchRunner], budget_s: float, send: Callable[[Message], None]
) -> tuple[list[WarmUp], list[SwitchProfile], list[Sizes], float]:
    warm = []
    for runner in runners:
        send(Progress(text=f"{runner.name}: warming up"))
        warm.append(warm_up(runner, WARM_UP_SHARE * budget_s))
    send(Progress(text="watching what a switch of precisions costs"))
    empty_ns = empty_block_ns(runners[0])
    profiles = switch_profiles(runners, warm, SWITCH_SHARE * budget_s * len(runners))
    sizes = [
        Sizes(settle=profile.settle, steps=block_steps(runner, ready, profile.settle, empty_ns))
        for runner, ready, profile in zip(runners, warm, profiles, strict=True)
    ]
    return warm, profiles, sizes, empty_ns


def _watcher(trial: Trial, send: Callable[[Message], None]) -> Callable[[int, Sequence[Interval | None]], None]:
    """Return a watcher that tells the running speedups, twice a second at most."""
    start = said = time.monotonic()
    budget_s = trial.protocol.time_budget_s * len(trial.precisions)

    def watch(quads: int, speedups: Sequence[Interval | None]) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said < 0.5:
            return
        said = now
        running = [
            f"{name} {speedup.center:.3f}× [{speedup.low:.3f}, {speedup.high:.3f}]"
            for name, speedup in zip(trial.precisions, speedups, strict=True)
            if speedup is not None and speedup.low is not None
        ]
        text = f"{quads} quads" + (": " + ", ".join(running) if running else "")
        send(Progress(text=text, done=min(1.0, (now - start) / budget_s)))

    return watch


def _summary(
    index: int,
    trial: Trial,
    setting: Setting,
    comparison: Comparison,
    warm: WarmUp,
    profile: SwitchProfile,
    sizes: Sizes,
    empty_ns: float,
) -> Speed:
    blocks = [block for block in comparison.blocks if block.arm == index]
    step_ns = float(torch.tensor([block.step_ns for block in blocks], dtype=torch.float64).median())
    speedup = comparison.speedups[index]
    return Speed(
        steady=warm.steady,
        warmup_steps=warm.steps,
        settle_steps=sizes.settle,
        block_steps=sizes.steps,
        switch_transient_pct=profile.transient_pct,
        clock_overhead_pct=100 * empty_ns / (step_ns * sizes.steps),
        paired=len(trial.precisions) > 1,
        quads=comparison.quads,
        step_ms=step_ns / 1e6,
        samples_per_s=trial.cell.batch_size / (step_ns / 1e9),
        speedup=speedup.center if speedup else None,
        speedup_low=speedup.low if speedup else None,
        speedup_high=speedup.high if speedup else None,
        skipped_steps=sum(block.skipped_steps for block in blocks),
    )


def _judge(runner: TorchRunner, comparison: Comparison, trial: Trial) -> tuple[Status, str]:
    if not runner.finite():
        return "nonfinite", "the loss became NaN or Inf while timing"
    if not comparison.converged:
        target = f"{100 * trial.protocol.target_ci:g} %"
        return "unconverged", f"after {comparison.quads} quads the interval is wider than ±{target}"
    return "ok", ""
