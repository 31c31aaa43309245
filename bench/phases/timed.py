"""What a comparison in quads comes to: its blocks, each arm's speed, and whether it counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bench.measure.quads import Comparison, LongBlocks
from bench.measure.timing import TimedBlock
from bench.measure.warmup import Cut
from bench.results.records import Block, Message, Progress, Speed, Status
from bench.spec.precisions import BASELINE
from bench.spec.trial import Trial
from bench.stats import Interval


class Trained(Protocol):
    """An arm whose loss can be looked at."""

    def finite(self) -> bool:
        """Say whether the last loss is a number."""


def watcher(
    trial: Trial, names: Sequence[str], send: Callable[[Message], None]
) -> Callable[[int, Sequence[Interval | None]], None]:
    """Return a watcher that tells the running speedups, twice a second at most."""
    start = said = time.monotonic()
    budget_s = trial.protocol.time_budget_s * len(names)

    def watch(quads: int, speedups: Sequence[Interval | None]) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said < 0.5:
            return
        said = now
        running = [
            f"{name} {speedup.center:.3f}× [{speedup.low:.3f}, {speedup.high:.3f}]"
            for name, speedup in zip(names, speedups, strict=True)
            if speedup is not None and speedup.low is not None
        ]
        text = f"{quads} quads" + (": " + ", ".join(running) if running else "")
        send(Progress(text=text, done=min(1.0, (now - start) / budget_s)))

    return watch


def record(block: TimedBlock, trial: Trial, *, floor: bool = False) -> Block:
    """Return a timed block as it is stored."""
    return Block(
        trial=trial.id,
        precision=("fp32", "fp32 again")[block.arm] if floor else trial.precisions[block.arm],
        round=block.quad,
        position=block.position,
        steps=block.steps,
        time_ms=block.time_ns / 1e6,
        start_s=block.start_s,
        skipped_steps=block.skipped_steps,
        discarded=block.invalid,
    )


def summary(cut: Cut, index: int, found: Comparison, check: LongBlocks | None, trial: Trial) -> Speed:
    """Return what the comparison says of the arm at ``index``."""
    blocks = [block for block in found.blocks if block.arm == index]
    step_ns = statistics.median(block.step_ns for block in blocks if not block.invalid or not found.quads)
    speedup = found.speedups[index] if trial.precisions[0] == BASELINE else None
    return Speed(
        steady=cut.warm.steady,
        warmup_steps=cut.warm.steps,
        switch_warmup_steps=cut.sizes.settle,
        block_steps=cut.sizes.steps,
        switch_transient_pct=cut.profile.transient_pct,
        clock_overhead_pct=100 * cut.empty_ns / (step_ns * cut.sizes.steps),
        paired=len(found.logs) > 1,
        rounds=found.quads,
        step_ms=step_ns / 1e6,
        samples_per_s=trial.cell.batch_size / (step_ns / 1e9),
        speedup=speedup.center if speedup else None,
        speedup_low=speedup.low if speedup else None,
        speedup_high=speedup.high if speedup else None,
        skipped_steps=sum(block.skipped_steps for block in blocks),
        discarded_rounds=len(found.invalid),
        outlier_rounds=found.bursts[index],
        long_block_pct=100 * check.difference if check else None,
    )


def judge(runner: Trained, found: Comparison, index: int, check: LongBlocks | None, trial: Trial) -> tuple[Status, str]:
    """Return the arm's status, and why it is not ok."""
    if not runner.finite():
        return "nonfinite", "the loss became NaN or Inf while timing"
    if not found.quads:
        return "invalid", f"every quad was disturbed: {found.invalid[-1]}"
    if check is not None and not check.agree:
        return "invalid", (
            f"switching: blocks of four times the length differ by {100 * check.difference:+.1f} % in speedup, "
            "so the arms have not settled after a switch"
        )
    if not found.converged[index]:
        target, budget = f"{100 * trial.protocol.target_ci:g} %", f"{trial.protocol.time_budget_s:g} s"
        return "unconverged", f"the interval is wider than ±{target} when timing ended (budget {budget} an arm)"
    return "ok", ""
