"""The speed phase: all arms of a cell in one process, timed against each other in quads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench import precision as switches
from bench.data import random_batches
from bench.findings import Speed, Switches
from bench.measure.timing import Comparison, Sizes, TimedBlock, compare
from bench.measure.warmup import SwitchProfile, WarmUp, block_steps, empty_block_ns, switch_profiles, warm_up
from bench.phases.setting import enter, open_setting
from bench.records import Block, Device, Message, Progress, Status, TrialResult
from bench.spec import BASELINE, PRECISIONS
from bench.stats import Interval
from bench.train import Arm, build_arm, synchronize, training_step
from bench.trial import Trial

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """An arm that is warm, and whose blocks are cut."""

    runner: TorchRunner
    switches: Switches
    warm: WarmUp
    profile: SwitchProfile
    sizes: Sizes


def run(trial: Trial, _device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's precisions against the first of them; send blocks, then a result for each."""
    runners, switches_read = _build(trial)
    empty_ns = empty_block_ns(runners[0])
    arms = _make_ready(runners, switches_read, empty_ns, trial.protocol.time_budget_s, send)
    comparison = compare(
        runners,
        [arm.sizes for arm in arms],
        trial.protocol,
        seed=trial.seed * 1000 + trial.replicate,
        watch=_watcher(trial, send),
    )
    for block in comparison.blocks:
        send(_record(block, trial))
    for index, arm in enumerate(arms):
        status, detail = _judge(arm.runner, comparison.converged[index], trial)
        speed = _summary(arm, index, comparison, trial, empty_ns)
        send(TrialResult(precision=arm.runner.name, status=status, detail=detail, switches=arm.switches, speed=speed))


def _build(trial: Trial) -> tuple[list[TorchRunner], list[Switches]]:
    """Build every arm, all on the same batches; return them and what their switches read back as."""
    setting = open_setting(trial)
    entered = [PRECISIONS[name] for name in trial.precisions]
    enter(trial.precisions[0], setting.device)
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
        for precision in entered
    ]
    # Read back once the models are there: one may have set switches of its own.
    return runners, [enter(name, setting.device)[1] for name in trial.precisions]


def _make_ready(
    runners: Sequence[TorchRunner],
    switches_read: Sequence[Switches],
    empty_ns: float,
    budget_s: float,
    send: Callable[[Message], None],
) -> list[Ready]:
    warm = []
    for runner in runners:
        send(Progress(text=f"{runner.name}: warming up"))
        warm.append(warm_up(runner, WARM_UP_SHARE * budget_s))
    send(Progress(text="watching what a switch of precisions costs"))
    profiles = switch_profiles(runners, warm, SWITCH_SHARE * budget_s * len(runners))
    ready = []
    for runner, read, hot, profile in zip(runners, switches_read, warm, profiles, strict=True):
        sizes = Sizes(settle=profile.settle, steps=block_steps(runner, hot, profile.settle, empty_ns))
        ready.append(Ready(runner=runner, switches=read, warm=hot, profile=profile, sizes=sizes))
    return ready


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


def _record(block: TimedBlock, trial: Trial) -> Block:
    return Block(
        trial=trial.id,
        precision=trial.precisions[block.arm],
        quad=block.quad,
        position=block.position,
        steps=block.steps,
        time_ms=block.time_ns / 1e6,
        start_s=block.start_s,
        skipped_steps=block.skipped_steps,
    )


def _summary(arm: Ready, index: int, comparison: Comparison, trial: Trial, empty_ns: float) -> Speed:
    blocks = [block for block in comparison.blocks if block.arm == index]
    step_ns = statistics.median(block.step_ns for block in blocks)
    speedup = comparison.speedups[index] if trial.precisions[0] == BASELINE else None
    return Speed(
        steady=arm.warm.steady,
        warmup_steps=arm.warm.steps,
        settle_steps=arm.sizes.settle,
        block_steps=arm.sizes.steps,
        switch_transient_pct=arm.profile.transient_pct,
        clock_overhead_pct=100 * empty_ns / (step_ns * arm.sizes.steps),
        paired=len(trial.precisions) > 1,
        quads=comparison.quads,
        step_ms=step_ns / 1e6,
        samples_per_s=trial.cell.batch_size / (step_ns / 1e9),
        speedup=speedup.center if speedup else None,
        speedup_low=speedup.low if speedup else None,
        speedup_high=speedup.high if speedup else None,
        skipped_steps=sum(block.skipped_steps for block in blocks),
    )


def _judge(runner: TorchRunner, converged: bool, trial: Trial) -> tuple[Status, str]:
    if not runner.finite():
        return "nonfinite", "the loss became NaN or Inf while timing"
    if not converged:
        target, budget = f"{100 * trial.protocol.target_ci:g} %", f"{trial.protocol.time_budget_s:g} s"
        return "unconverged", f"the interval is wider than ±{target} when timing ended (budget {budget} an arm)"
    return "ok", ""
