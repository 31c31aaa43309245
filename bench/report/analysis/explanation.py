"""Why a precision gains or does not: the figures of the explain phase, and the rules that name causes.

Each rule reads measured figures alone, and gives no reason where they do not show its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pandas as pd

from bench.report.format import number, percent, records, times
from bench.report.reading.load import CELL, KEY
from bench.results.records import MEASURED, WorkClass
from bench.spec.metrics import MEMORY
from bench.spec.precisions import BASELINE, find_precision, strayed
from bench.spec.techniques import TECHNIQUES
from bench.stats import Interval, rounds_interval

CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)
PRODUCTS: tuple[WorkClass, ...] = ("matrix units", "other products")
FOLLOWING: tuple[WorkClass, ...] = ("normalisation and softmax", "elementwise")
"""Operators that move memory."""
MOST_UNKNOWN = 0.10
"""Share of a step in operators of unknown kind above which no reason is given."""
GROWTH = 1.3
"""A step of twice the batch takes so many times as long at least, unless launching is what takes the time."""
LEAST_GROWTH = 0.9
"""A step of twice the batch that takes less of the time of the step itself was disturbed, or that one was."""
LAUNCHING = 0.25
"""Share of a step in which nothing is computed, from which that may be so; where the doubled batch is unknown, twice as
much."""
SHORT_US = 30.0
"""Mean time from one kernel, or operator on a CPU, to the next, up to which what it costs to call it may be most of
it."""
NO_GAIN = 1.1
"""How many times fp32's rate products must reach, alone, for there to be a gain."""
CERTAIN = 0.5
"""The unexplained share is reported only where half its interval is at most this share of the difference."""
MATTERS = 0.15
"""Share of a step that products must have for their rate to matter."""
MEMORY_KINDS = {
    "parameters": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "activations": "activation_bytes",
    "temporaries": "temporary_bytes",
}
"""The columns of memory.csv by the kinds of tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One cause, with its figures."""

    rule: str
    """Its rule in ``RULES``."""
    sentence: str
    techniques: tuple[str, ...] = ()
    """Techniques that may remove it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The figures of one precision's step."""

    precision: str
    timed_ms: float
    """Median over the rounds, without the profiler."""
    profiled_ms: float
    """The same under it; the classes add up to it."""
    ms: Mapping[WorkClass, float]
    """Median over the rounds, of each class."""
    figures: pd.DataFrame
    """All its figures of the explain phase."""

    def share(self, *classes: WorkClass) -> float:
        """Return the share of the step that classes take."""
        total = sum(self.ms.values())
        return sum(self.ms[work] for work in classes) / total if total else 0.0

    def of(self, kind: str, name: str = "") -> pd.DataFrame:
        """Return the figures of a kind, or those of them that are called ``name``."""
        rows = self.figures[self.figures["kind"] == kind]
        return rows[rows["name"] == name] if name else rows

    def value(self, kind: str, name: str) -> float | None:
        """Return the median of a figure; None if it was not measured."""
        values = self.of(kind, name)["value"]
        return float(values.median()) if len(values) else None

    @property
    def products_alone_ms(self) -> float:
        """The time of its products: that of each alone, times how often the step calls it."""
        rows = self.of("best")
        return float((rows["value"] * rows["count"]).sum())

    @property
    def stretched(self) -> float:
        """How many times as long it takes under the profiler."""
        return self.profiled_ms / self.timed_ms

    @property
    def lengthened_ms(self) -> float:
        """The profiler's part of the time in which nothing runs: it works between operators."""
        return min(self.ms["idle"], max(0.0, self.profiled_ms - self.timed_ms))

    @property
    def unprofiled_rest(self) -> pd.Series[float]:
        """The time without the profiler less the sum of the classes, in ms, by the round."""
        return self.of("step", "timed").set_index("round")["value"] - self.of("class").groupby("round")["value"].sum()

    @property
    def runs_on_gpu(self) -> bool:
        """Whether kernels were traced."""
        return self.value("step", "kernels") is not None

    @property
    def is_fp32(self) -> bool:
        """Whether its precision computes in fp32."""
        precision = find_precision(self.precision)
        return precision is not None and precision.compute == "float32"

    @property
    def updates_fp32(self) -> bool:
        """Whether its optimizer updates weights in fp32."""
        precision = find_precision(self.precision)
        return precision is None or precision.weights is None or precision.master

    @property
    def growth(self) -> float | None:
        """How many times as long a step of twice the batch takes, optimizer and casts apart; None if unknown.

        The time of these two depends on the number of weights, not on the batch.
        """
        doubled = self.value("step", "doubled")
        single = self.value("step", "not doubled") or self.timed_ms
        fixed = (self.ms["optimizer"] + self.ms["casts and layout"]) * min(1.0, self.timed_ms / self.profiled_ms)
        if doubled is None or min(doubled, single) <= fixed:
            return None
        growth = (doubled - fixed) / (single - fixed)
        return growth if growth >= LEAST_GROWTH else None

    @property
    def idle(self) -> float:
        """The share of the step in which nothing runs, without the profiler's part."""
        return (self.ms["idle"] - self.lengthened_ms) / (self.profiled_ms - self.lengthened_ms)

    @property
    def call_us(self) -> float | None:
        """Mean time from one kernel, or operator on a CPU, to the next; None if they were not counted."""
        calls = self.value("step", "kernels" if self.runs_on_gpu else "operators")
        return 1e3 * self.profiled_ms / calls if calls else None

    @property
    def launch_bound(self) -> bool:
        """Whether launching kernels, or calling operators, is what takes the time."""
        if self.growth is None:
            return self.runs_on_gpu and self.idle >= 2 * LAUNCHING  # a CPU's trace lacks what torch.compile fused
        short = self.call_us is not None and self.call_us <= SHORT_US
        return self.growth < GROWTH and (self.idle >= LAUNCHING or short)


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
    def precision(self) -> str:
        """The precision that is explained."""
        return self.arm.precision

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
        return f"{self.precision} on {self.where}, batch {self.cell['batch_size']:.0f}"

    @property
    def techniques(self) -> list[str]:
        """Techniques that may remove the causes, without those that it was measured with."""
        used = [name.split("=")[0] for name in str(self.cell["techniques"]).split("+")]
        pointed = dict.fromkeys(name for reason in self.reasons for name in reason.techniques)
        return [name for name in pointed if name not in used]


def explanations(figures: pd.DataFrame) -> list[Explanation]:
    """Return an explanation of each precision of each cell; ``figures`` have the columns ``workload`` and ``where``."""
    explained = []
    for _, rows in figures.groupby(CELL, sort=False, dropna=False):
        cell = dict(rows[[*CELL, "workload", "where"]].iloc[0])
        steps = [_step(str(name), arm) for name, arm in rows.groupby("precision", sort=False)]
        by_name = {step.precision: step for step in steps if step is not None}
        baseline = by_name.pop(BASELINE, None)
        explained += [_explain(cell, baseline, arm) for arm in by_name.values() if baseline is not None]
    return explained


def _step(precision: str, rows: pd.DataFrame) -> Step | None:
    classes = rows[rows["kind"] == "class"].groupby("name")["value"].median()
    timed, profiled = (
        rows[(rows["kind"] == "step") & (rows["name"] == name)]["value"] for name in ("timed", "profiled")
    )
    if classes.empty or timed.empty or profiled.empty:
        return None
    return Step(
        precision=precision,
        timed_ms=float(timed.median()),
        profiled_ms=float(profiled.median()),
        ms={work: float(classes.get(work, 0.0)) for work in CLASSES},
        figures=rows,
    )


def _explain(cell: Mapping[str, Any], baseline: Step, arm: Step) -> Explanation:
    before, after = (step.of("step", "timed").set_index("round")["value"] for step in (baseline, arm))
    rounds = before.index.intersection(after.index)
    difference = rounds_interval(list(before[rounds] - after[rounds]))
    certain = difference.low is not None and difference.high is not None and difference.low * difference.high > 0
    return Explanation(
        cell=cell,
        baseline=baseline,
        arm=arm,
        speedup=rounds_interval(list(np.log(before[rounds] / after[rounds]))).exp(),
        unexplained=_unexplained(baseline, arm, difference.center) if certain else None,
        reasons=tuple(reasons(baseline, arm)),
    )


def _unexplained(baseline: Step, arm: Step, difference_ms: float) -> Interval | None:
    """Return the share of a difference that the classes do not add up to; None where the rounds leave it uncertain.

    In each round, the time without the profiler less the sum of the classes is taken of both steps; where it is the
    same in both, their difference is explained.
    """
    share = rounds_interval(list((baseline.unprofiled_rest - arm.unprofiled_rest).dropna() / difference_ms))
    return share if share.half_width is None or share.half_width <= CERTAIN else None


def product_ratio(baseline: Step, arm: Step) -> float | None:
    """Return the time of the baseline's products, each alone, in the arm's type over that in its own, or None."""
    before, after = (step.of("best").set_index("name")[["value", "count"]] for step in (baseline, arm))
    both = before.index.intersection(after.index)
    count = before.loc[both, "count"]
    total = float((before.loc[both, "value"] * count).sum())
    return float((after.loc[both, "value"] * count).sum()) / total if total else None


def _added_casts_ms(baseline: Step, arm: Step) -> float:
    return max(0.0, arm.ms["casts and layout"] - baseline.ms["casts and layout"])


Quantity = float | tuple[float | str, ...] | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause that is named where its quantity is large enough."""

    name: str
    at_least: float
    quantity: Callable[[Step, Step], Quantity]
    """Of the baseline's step and the arm's, perhaps with words for the sentence; None where the cause is ruled out, or
    was not measured."""
    sentence: str
    """``{share}`` in it is the quantity in per cent, ``{number}`` the quantity itself, ``{0}`` the first word."""
    techniques: tuple[str, ...] = ()

    def reason(self, baseline: Step, arm: Step) -> Reason | None:
        """Return the reason; None where the cause is not there."""
        figures = self.quantity(baseline, arm)
        quantity, *words = figures if isinstance(figures, tuple) else (figures,)
        if quantity is None or float(quantity) < self.at_least:
            return None
        sentence = self.sentence.format(*words, share=percent(float(quantity)), number=number(float(quantity), 2))
        offered = tuple(name for name in self.techniques if arm.runs_on_gpu or not TECHNIQUES[name].needs_gpu)
        return Reason(rule=self.name, sentence=sentence, techniques=offered)


def reasons(baseline: Step, arm: Step) -> list[Reason]:
    """Return the causes that hold a precision back; one sentence alone where too much is unknown or fp32 was none."""
    types = baseline.of("types")
    computed = " ".join(types["name"] + types["value"].map(":{:.0f}%".format))
    if other := strayed(baseline.precision, computed, ""):
        sentence = f"{baseline.precision} {other}, so this is no comparison with FP32 and no reason is given"
        return [Reason(rule="other types", sentence=sentence)]
    unknown = max(baseline.share("unknown"), arm.share("unknown"))
    if unknown > MOST_UNKNOWN:
        rows = pd.concat([step.of("operator")[step.of("operator")["work"] == "unknown"] for step in (baseline, arm)])
        names = ", ".join(dict.fromkeys(rows.sort_values("value", ascending=False)["name"].head(3)))
        which = f" ({names})" if names else ""
        sentence = f"{percent(unknown)} of the step are operators of unknown kind{which}, so no reason is given"
        return [Reason(rule="unknown", sentence=sentence)]
    return [reason for rule in RULES if (reason := rule.reason(baseline, arm)) is not None]


def _launching(_baseline: Step, arm: Step) -> Quantity:
    if not arm.launch_bound:
        return None
    waits, called = ("the GPU waits for the host", "kernel") if arm.runs_on_gpu else ("no operator runs", "operator")
    parts = [f"{waits} in {percent(arm.idle)} of the step"] if arm.idle >= LAUNCHING else []
    if arm.call_us is not None:
        parts.append(f"there is one {called} every {number(arm.call_us, 2)} µs")
    if arm.growth is not None:
        growth = number(arm.growth, 3)
        parts.append(f"with twice the batch the step, without optimizer and casts, takes {growth} times as long")
    return arm.idle, " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _no_gain(baseline: Step, arm: Step) -> Quantity:
    """Return the arm's time of products over the baseline's, each alone; None where products gain in the step."""
    rate = product_ratio(baseline, arm)
    before, after = (sum(step.ms[work] for work in PRODUCTS) for step in (baseline, arm))
    if not rate or before >= NO_GAIN * after or baseline.share(*PRODUCTS) < MATTERS:
        return None
    precision = find_precision(arm.precision)
    computed = arm.precision if precision is None or arm.is_fp32 else precision.compute
    speed = f"run {times(1 / rate)} as fast" if rate <= 2 else f"take {number(rate, 2)} times as long"
    large, in_fp32 = (step.value("rate", "products TFLOP/s") for step in (arm, baseline))
    cause = "the device has no gain to give"
    if large and in_fp32 and large / in_fp32 >= NO_GAIN:
        cause = f"large square ones run {times(large / in_fp32)} as fast, so it is their sizes that do not gain"
    return rate, f"{speed} in {computed} as in fp32: {cause}"


def _missed_pct(_baseline: Step, arm: Step) -> Quantity:
    rows = arm.of("types", "float32")
    if rows.empty or arm.is_fp32 or find_precision(arm.precision) is None:
        return None
    return float(rows["value"].iloc[0]), f", in {modules}" if (modules := rows["detail"].iloc[0]) else ""


def _memory_bound(baseline: Step, _arm: Step) -> Quantity:
    return None if baseline.launch_bound else (baseline.share(*FOLLOWING), percent(baseline.share(*PRODUCTS)))


def _casting(baseline: Step, arm: Step) -> Quantity:
    return None if arm.launch_bound else _added_casts_ms(baseline, arm) / arm.profiled_ms  # many small ones are calls


def _scaling(_baseline: Step, arm: Step) -> Quantity:
    precision = find_precision(arm.precision)
    if precision is None or not precision.loss_scaling or arm.launch_bound:
        return None
    scaling, waiting = arm.share("loss scaling"), (arm.value("step", "scaling wait") or 0.0) / arm.profiled_ms
    return scaling + waiting, percent(scaling), percent(waiting)


def _saving(arm: Step, kind: str, *, by: str, least: float = 0.0) -> Quantity:
    """Return the share of its time that an operator saves, its name, its share of the FLOPs, and its module."""
    rows = arm.of(kind)
    rows = rows.assign(saved=1 - rows["value"])
    rows = rows[rows["saved"] >= least].sort_values(by)
    if rows.empty:
        return None
    row = rows.iloc[-1]
    return row["saved"], row["name"], percent(row["count"]), f" in {row['detail']}" if row["detail"] else ""


def _unreached(baseline: Step, _arm: Step) -> Quantity:
    """Return the share of the device's rate of large products that the baseline's, alone, do not reach."""
    peak, alone_ms = baseline.value("rate", "products TFLOP/s"), baseline.products_alone_ms
    if not peak or not alone_ms or baseline.share(*PRODUCTS) < MATTERS or baseline.launch_bound:
        return None
    reached = float(baseline.of("flops")["value"].sum()) / (alone_ms / 1e3) / 1e12 / peak
    return 1 - reached, percent(reached)


RULES: tuple[Rule, ...] = (
    Rule("launch-bound", 0.0, _launching, "launching limits it: {0}", ("cuda-graphs", "compile")),
    Rule("no gain from products", 1 / NO_GAIN, _no_gain, "the step's products, each alone, {0}"),
    Rule(
        "no matrix units",
        MATTERS,
        lambda _, arm: (
            arm.share(*PRODUCTS) if arm.runs_on_gpu and not arm.ms["matrix units"] and not arm.is_fp32 else None
        ),
        "none of its products, {share} of the step, ran on matrix units",
    ),
    Rule(
        "autocast missed",
        10.0,
        _missed_pct,
        "{number} % of its FLOPs were computed in fp32{0}: autocast did not reach them",
    ),
    Rule(
        "memory-bound",
        0.50,
        _memory_bound,
        "{share} of fp32's step are operators that move memory, norms and elementwise, and {0} products",
        ("compile",),
    ),
    Rule("casts", 0.10, _casting, "casts and changes of layout that it adds take {share} of its step"),
    Rule(
        "optimizer-bound",
        0.30,
        lambda _, arm: (arm.share("optimizer"), ", alike in either precision" * arm.updates_fp32),
        "the optimizer takes {share} of the step{0}",
        ("fused-optimizer",),
    ),
    Rule(
        "loss scaling",
        0.05,
        _scaling,
        "loss scaling takes {0} of the step, and its waits leave the GPU idle for {1} of it: each step checks whether "
        "gradients overflowed",
    ),
    Rule(
        "skipped steps",
        2.0,
        lambda _, arm: arm.value("step", "skipped"),
        "{number} % of the steps were skipped, because their gradients overflowed",
    ),
    Rule(
        "communication",
        0.10,
        lambda _, arm: arm.share("communication"),
        "communication that nothing else overlaps takes {share} of the step",
    ),
    Rule("copies", 0.10, lambda _, arm: arm.share("copies"), "copies between host and device take {share} of the step"),
    Rule(
        "loader", 10.0, lambda _, arm: arm.value("step", "waiting"), "training waits for batches {number} % of its time"
    ),
    Rule(
        "misaligned",
        0.07,
        lambda _, arm: _saving(arm, "padded", by="saved"),
        "{0}, {1} of the FLOPs{2}, takes {share} less time with its sizes padded to multiples of 64",
    ),
    Rule(
        "layout",
        0.15,
        lambda _, arm: _saving(arm, "channels-last", by="count", least=0.15),
        "the convolution{2}, {1} of the FLOPs, takes {share} less time with channels last",
        ("channels-last",),
    ),
    Rule(
        "small products",
        0.75,
        _unreached,
        "fp32's products, alone, reach {0} of this device's rate of large ones: they are too small to be limited by "
        "arithmetic",
    ),
)
