"""Why a precision gains or does not: the figures of the explain phase, and the rules that name causes.

Each rule reads measured figures alone, and gives no reason where they do not show its cause.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import pandas as pd

from bench.report.format import number, percent, records
from bench.report.reading.load import CELL, KEY
from bench.results.records import MEASURED, WorkClass
from bench.spec.metrics import MEMORY
from bench.spec.precisions import BASELINE, find_precision, strayed
from bench.spec.techniques import TECHNIQUES
from bench.stats import Interval, rounds_interval

CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)
PRODUCTS: tuple[WorkClass, ...] = ("matrix units", "other products")
MOST_UNKNOWN = 0.10
"""Share of a step in operators of unknown kind above which no reason is given."""
LAUNCHING = 0.35
"""Share of a step in which a GPU waits for launches, from which they limit it: kernels that take twice as long would
make the step at most 1.3 times as long."""
NO_GAIN = 1.1
"""How many times as fast as in fp32 products must run for there to be a gain."""
MATTERS = 0.15
"""Share of a step that products must have for their rate to matter."""
MEMORY_BOUND, CASTS, OPTIMIZER, SCALING, COPIES = 0.50, 0.10, 0.30, 0.05, 0.10
"""Shares of a step from which a class of work is a reason."""
MISSED_PCT, SKIPPED_PCT, WAITING_PCT = 10.0, 2.0, 10.0
"""The same of FLOPs in fp32, of skipped steps, and of time spent waiting for the loader."""
CERTAIN = 0.5
"""The unexplained share is reported only where half its interval is at most this share of the difference."""
CHANGED = 10
"""Operators whose time changed most."""
MEMORY_KINDS = {
    "parameters": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "activations": "activation_bytes",
    "temporaries": "temporary_bytes",
}
"""The columns of memory.csv by the kinds of tensors."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One cause, with its figures."""

    rule: str
    """The name of the cause."""
    sentence: str
    techniques: tuple[str, ...] = ()
    """Techniques that may remove it."""


@dataclass(frozen=True)
class Step:
    """The figures of one precision's step."""

    precision: str
    figures: pd.DataFrame
    """Its rows of explain_figures.csv."""

    @cached_property
    def timed_ms(self) -> float:
        """Median over the rounds, without the profiler."""
        return self.figure("timed")

    @cached_property
    def profiled_ms(self) -> float:
        """The time under it: the sum of the classes."""
        return sum(self.ms.values())

    @cached_property
    def ms(self) -> dict[WorkClass, float]:
        """Median over the rounds, of each class."""
        classes = self.of("class").groupby("name")["value"].median()
        return {work: float(classes.get(work, 0.0)) for work in CLASSES}

    def share(self, *classes: WorkClass) -> float:
        """Return the share of the step that classes take."""
        return sum(self.ms[work] for work in classes) / sum(self.ms.values())

    def of(self, kind: str, name: str = "") -> pd.DataFrame:
        """Return the figures of a kind, or those of them that are called ``name``."""
        rows = self.figures[self.figures["kind"] == kind]
        return rows[rows["name"] == name] if name else rows

    def figure(self, name: str) -> float:
        """Return the median of a figure of the step; 0 if it was not measured."""
        values = self.of("step", name)["value"]
        return float(values.median()) if len(values) else 0.0

    @property
    def stretched(self) -> float:
        """How many times as long it takes under the profiler."""
        return self.profiled_ms / self.timed_ms

    @property
    def rounds_ms(self) -> pd.Series[float]:
        """The time without the profiler, by the round."""
        return self.of("step", "timed").set_index("round")["value"]

    @property
    def unprofiled_rest(self) -> pd.Series[float]:
        """The time without the profiler less the sum of the classes, in ms, by the round."""
        return self.rounds_ms - self.of("class").groupby("round")["value"].sum()

    @property
    def runs_on_gpu(self) -> bool:
        """Whether kernels were traced."""
        return self.figure("kernels") > 0

    @property
    def is_fp32(self) -> bool:
        """Whether its precision computes in fp32."""
        precision = find_precision(self.precision)
        return precision is not None and precision.compute == "float32"

    @property
    def products_ms(self) -> float:
        """The time of its products."""
        return sum(self.ms[work] for work in PRODUCTS)

    @property
    def launching(self) -> float:
        """The share of the step without the profiler in which a GPU waits for the host to launch kernels.

        What the profiler adds lies between operators, so in the time in which nothing runs.
        """
        added_ms = max(0.0, self.profiled_ms - self.timed_ms)
        waiting_ms = self.ms["idle"] - added_ms - self.figure("scaling wait")
        return max(0.0, waiting_ms) / (self.profiled_ms - added_ms)

    @property
    def launch_bound(self) -> bool:
        """Whether launching kernels limits it; unknown on a CPU, where an operator's time has that of calling it."""
        return self.runs_on_gpu and self.launching >= LAUNCHING

    @property
    def operators_ms(self) -> pd.Series[float]:
        """The time of its longest operators, by name with the sizes of the inputs."""
        rows = self.of("operator")
        return rows["value"].groupby(rows["name"] + " " + rows["detail"]).sum()


MemoryPair = tuple[Mapping[Hashable, Any], Mapping[Hashable, Any]]
"""The rows of memory.csv that counted the tensors of a step, of the baseline and of another precision."""


def memory_held(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row of memory.csv for each arm whose tensors of a step were counted, with its ``peak`` in bytes.

    Of the processes that read an arm's peak it is the one with the largest, which is the arm's figure.
    """
    counted = trials["status"].isin(MEASURED) & trials["tracked_peak_bytes"].notna()
    held = trials[(trials["phase"] == MEMORY.phase) & counted]
    held = held.assign(peak=held[[*MEMORY.columns]].bfill(axis=1).iloc[:, 0])
    of_arms = held.groupby(KEY, sort=False, dropna=False)["peak"]
    return held[of_arms.rank(method="first", ascending=False, na_option="bottom") == 1]


def memory_pair(trials: pd.DataFrame, cell: Mapping[str, object], precision: str) -> MemoryPair | None:
    """Return what a precision's and the baseline's tensors held in a cell, of columns ``CELL``; None if not counted."""
    measured = memory_held(trials).merge(pd.DataFrame([cell])[CELL], on=CELL)
    held = {str(row["precision"]): row for row in records(measured)}
    return (held[BASELINE], held[precision]) if BASELINE in held and precision in held else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One precision compared with the baseline, in one cell."""

    cell: Mapping[str, Any]
    """The columns ``CELL``, ``workload`` and ``where``."""
    baseline: Step
    arm: Step
    speedup: Interval
    """Of the timed steps, from the rounds: for these figures alone, the speed phase has the result."""
    unexplained: Interval | None
    """Share of the steps' difference that the classes do not add up to, negative where they add up to more, from the
    rounds; None where the difference's interval includes 0, or this one is too wide to tell."""
    reasons: tuple[Reason, ...]
    memory: MemoryPair | None = None

    @property
    def workload(self) -> str:
        """The name of its recipe in the summary."""
        return str(self.cell["workload"])

    @property
    def where(self) -> str:
        """The name of its device in the summary."""
        return str(self.cell["where"])

    @property
    def subject(self) -> str:
        """Its precision, device and batch size."""
        return f"{self.arm.precision} on {self.where}, batch {self.cell['batch_size']:.0f}"

    @property
    def techniques(self) -> list[str]:
        """Techniques that may remove the causes, without those that it was measured with."""
        used = [name.split("=")[0] for name in str(self.cell["techniques"]).split("+")]
        pointed = dict.fromkeys(name for reason in self.reasons for name in reason.techniques)
        possible = [name for name in pointed if self.arm.runs_on_gpu or not TECHNIQUES[name].needs_gpu]
        return [name for name in possible if name not in used]

    @property
    def changed(self) -> list[tuple[str, float, float]]:
        """The operators whose time changed most, each with the ms of both steps."""
        before, after = self.baseline.operators_ms, self.arm.operators_ms
        largest = after.sub(before, fill_value=0.0).abs().nlargest(CHANGED)
        return [(operator, before.get(operator, 0.0), after.get(operator, 0.0)) for operator in largest.index]


def explanations(figures: pd.DataFrame) -> list[Explanation]:
    """Return an explanation of each precision of each cell; ``figures`` have the columns ``workload`` and ``where``."""
    explained = []
    for _, rows in figures.groupby(CELL, sort=False, dropna=False):
        cell = dict(rows[[*CELL, "workload", "where"]].iloc[0])
        steps = {str(name): Step(str(name), of_arm) for name, of_arm in rows.groupby("precision", sort=False)}
        whole = {name: step for name, step in steps.items() if step.timed_ms and any(step.ms.values())}
        baseline = whole.pop(BASELINE, None)
        if baseline is not None:
            explained += [_explain(cell, baseline, arm) for arm in whole.values()]
    return explained


def _explain(cell: Mapping[str, Any], baseline: Step, arm: Step) -> Explanation:
    before, after = baseline.rounds_ms, arm.rounds_ms
    speedup = rounds_interval(list(np.log((before / after).dropna()))).exp()
    is_uncertain = speedup.low is None or speedup.high is None or speedup.low <= 1 <= speedup.high
    return Explanation(
        cell=cell,
        baseline=baseline,
        arm=arm,
        speedup=speedup,
        unexplained=None if is_uncertain else _unexplained(baseline, arm),
        reasons=tuple(reasons(baseline, arm)),
    )


def _unexplained(baseline: Step, arm: Step) -> Interval | None:
    """Return the share of a difference that the classes do not add up to; None where the rounds leave it uncertain.

    In each round, the time without the profiler less the sum of the classes is taken of both steps; where it is the
    same in both, their difference is explained.
    """
    difference_ms = (baseline.rounds_ms - arm.rounds_ms).median()
    share = rounds_interval(list((baseline.unprofiled_rest - arm.unprofiled_rest).dropna() / difference_ms))
    return share if share.half_width is None or share.half_width <= CERTAIN else None


def reasons(baseline: Step, arm: Step) -> list[Reason]:
    """Return the causes that hold a precision back; one sentence alone where too much is unknown or fp32 was none."""
    types = baseline.of("types")
    computed = " ".join(types["name"] + types["value"].map(":{:.0f}%".format))
    if other := strayed(baseline.precision, computed, ""):
        sentence = f"{baseline.precision} {other}, so this is no comparison with FP32 and no reason is given"
        return [Reason("other types", sentence)]
    unknown = max(baseline.share("unknown"), arm.share("unknown"))
    if unknown > MOST_UNKNOWN:
        rows = pd.concat([step.of("operator") for step in (baseline, arm)])
        longest = rows[rows["work"] == "unknown"].nlargest(3, "value")
        names = ", ".join(dict.fromkeys(longest["name"]))
        sentence = f"{percent(unknown)} of the step are operators of unknown kind ({names}), so no reason is given"
        return [Reason("unknown", sentence)]
    return [*_of_waiting(arm), *_of_products(baseline, arm), *_of_other_work(baseline, arm)]


def _of_waiting(arm: Step) -> Iterator[Reason]:
    """Yield what the step, or training, waits for, and which steps were for nothing."""
    if arm.launch_bound:
        every_us = number(1e3 * arm.timed_ms / arm.figure("kernels"), 2)
        waits = f"the GPU waits for the host in {percent(arm.launching)} of the step"
        sentence = f"launching limits it: {waits}, and there is one kernel every {every_us} µs"
        yield Reason("launch-bound", sentence, ("cuda-graphs", "compile"))
    scaling, waiting = arm.share("loss scaling"), arm.figure("scaling wait") / arm.profiled_ms
    if scaling + waiting >= SCALING and not arm.launch_bound:
        idle = f"its waits leave the GPU idle for {percent(waiting)} of it"
        checks = "each step checks whether gradients overflowed"
        yield Reason("loss scaling", f"loss scaling takes {percent(scaling)} of the step, and {idle}: {checks}")
    if (skipped := arm.figure("skipped")) >= SKIPPED_PCT:
        sentence = f"{number(skipped, 2)} % of the steps were skipped, because their gradients overflowed"
        yield Reason("skipped steps", sentence)
    if (waiting := arm.figure("waiting")) >= WAITING_PCT:
        yield Reason("loader", f"training waits for batches {number(waiting, 2)} % of its time")


def _of_products(baseline: Step, arm: Step) -> Iterator[Reason]:
    """Yield why matrix products, convolutions and attention gain little."""
    share, before, after = baseline.share(*PRODUCTS), baseline.products_ms, arm.products_ms
    if share >= MATTERS and before < NO_GAIN * after and not arm.launch_bound:
        ratio = number(after / before, 2)
        sentence = f"its products take {ratio} times as long as in fp32, where they are {percent(share)} of the step"
        yield Reason("no gain from products", sentence)
    share = arm.share(*PRODUCTS)
    if arm.runs_on_gpu and not arm.is_fp32 and share >= MATTERS and not arm.ms["matrix units"]:
        yield Reason("no matrix units", f"none of its products, {percent(share)} of the step, ran on matrix units")
    in_fp32 = arm.of("types", "float32")
    if not arm.is_fp32 and in_fp32["value"].sum() >= MISSED_PCT:
        missed, modules = number(in_fp32["value"].iloc[0], 2), in_fp32["detail"].iloc[0]
        where = f", in {modules}" if modules else ""
        sentence = f"{missed} % of its FLOPs were computed in fp32{where}: autocast did not reach them"
        yield Reason("autocast missed", sentence)


def _of_other_work(baseline: Step, arm: Step) -> Iterator[Reason]:
    """Yield which other work than products takes a large share."""
    moving = baseline.share("normalisation and softmax", "elementwise")
    if moving >= MEMORY_BOUND and not baseline.launch_bound:
        rest = f"norms and elementwise, and {percent(baseline.share(*PRODUCTS))} products"
        sentence = f"{percent(moving)} of fp32's step are operators that move memory, {rest}"
        yield Reason("memory-bound", sentence, ("compile",))
    casting = (arm.ms["casts and layout"] - baseline.ms["casts and layout"]) / arm.profiled_ms
    if casting >= CASTS and not arm.launch_bound:  # many small ones are launches
        yield Reason("casts", f"casts and changes of layout that it adds take {percent(casting)} of its step")
    if (share := arm.share("optimizer")) >= OPTIMIZER:
        was, now = (number(step.ms["optimizer"], 3) for step in (baseline, arm))
        sentence = f"the optimizer takes {percent(share)} of the step: {now} ms, and {was} ms in fp32"
        yield Reason("optimizer-bound", sentence, ("fused-optimizer",))
    if (share := arm.share("copies")) >= COPIES:
        yield Reason("copies", f"copies between host and device take {percent(share)} of the step")
