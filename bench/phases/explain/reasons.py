"""Why a precision gains or does not: the figures of the explain phase, and the rules that name causes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import pandas as pd

from bench.report.format import number
from bench.report.reading.load import CELL
from bench.results.records import WorkClass
from bench.spec.precisions import BASELINE, find_precision, strayed
from bench.spec.techniques import TECHNIQUES
from bench.stats import Interval, rounds_interval

CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)
PRODUCTS: tuple[WorkClass, ...] = ("matrix units", "other products")
MOST_UNKNOWN_PCT = 10
"""Of a step in operators of unknown kind above which no reason is given."""
CERTAIN = 0.5
"""The unexplained share is reported only where half its interval is at most this share of the difference."""
CHANGED = 10
"""Operators whose time changed most."""


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

    def in_ms(self, *classes: WorkClass) -> float:
        """Return the time that classes take."""
        return sum(self.ms[work] for work in classes)

    def pct(self, *classes: WorkClass) -> float:
        """Return the share of the step that classes take, in per cent."""
        return 100 * self.in_ms(*classes) / self.profiled_ms

    def of(self, kind: str, name: str = "") -> pd.DataFrame:
        """Return the figures of a kind, or those of them that are called ``name``."""
        rows = self.figures[self.figures["kind"] == kind]
        return rows[rows["name"] == name] if name else rows

    def figure(self, name: str) -> float:
        """Return the median of a figure of the step; 0 if it was not measured."""
        values = self.of("step", name)["value"]
        return float(values.median()) if len(values) else 0.0

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
    def launching_pct(self) -> float:
        """The share of the step without the profiler in which a GPU waits for the host to launch kernels.

        What the profiler adds lies between operators, so in the time in which nothing runs. On a CPU it is 0: an
        operator's time has that of calling it.
        """
        added_ms = max(0.0, self.profiled_ms - self.timed_ms)
        waiting_ms = self.ms["idle"] - added_ms - self.figure("scaling wait")
        return 100 * max(0.0, waiting_ms) / (self.profiled_ms - added_ms) if self.runs_on_gpu else 0.0


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
    reasons: list[Reason]

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
        possible = []
        for name in dict.fromkeys(name for reason in self.reasons for name in reason.techniques):
            if name not in used and (self.arm.runs_on_gpu or not TECHNIQUES[name].needs_gpu):
                possible.append(name)
        return possible

    @property
    def changed(self) -> list[tuple[str, float, float]]:
        """The operators whose time changed most, with the sizes of their inputs, and the ms of both steps."""
        times_ms = []
        for step in (self.baseline, self.arm):
            rows = step.of("operator")
            times_ms.append(rows["value"].groupby(rows["name"] + " " + rows["detail"]).sum())
        before, after = times_ms
        largest = after.sub(before, fill_value=0.0).abs().nlargest(CHANGED)
        return [(operator, before.get(operator, 0.0), after.get(operator, 0.0)) for operator in largest.index]


def explanations(figures: pd.DataFrame) -> list[Explanation]:
    """Return an explanation of each precision of each cell; ``figures`` have the columns ``workload`` and ``where``."""
    explained = []
    for _, rows in figures.groupby(CELL, sort=False, dropna=False):
        cell = dict(rows[[*CELL, "workload", "where"]].iloc[0])
        steps = {}
        for name, of_arm in rows.groupby("precision", sort=False):
            step = Step(str(name), of_arm)
            if step.timed_ms and step.profiled_ms:
                steps[step.precision] = step
        baseline = steps.pop(BASELINE, None)
        if baseline is not None:
            explained += [_explain(cell, baseline, arm) for arm in steps.values()]
    return explained


def _explain(cell: Mapping[str, Any], baseline: Step, arm: Step) -> Explanation:
    before, after = baseline.rounds_ms, arm.rounds_ms
    speedup = rounds_interval(list(np.log((before / after).dropna()))).exp()
    # In each round the time without the profiler less the sum of the classes is taken of both steps; where it is the
    # same in both, their difference is explained. Of a difference within its noise there is no share.
    unexplained = None
    if speedup.low is not None and speedup.high is not None and not speedup.low <= 1 <= speedup.high:
        rest_ms = (baseline.unprofiled_rest - arm.unprofiled_rest).dropna()
        share = rounds_interval(list(rest_ms / (before - after).median()))
        if share.half_width is None or share.half_width <= CERTAIN:
            unexplained = share
    return Explanation(
        cell=cell,
        baseline=baseline,
        arm=arm,
        speedup=speedup,
        unexplained=unexplained,
        reasons=reasons(baseline, arm),
    )


# The rules. Each reads measured figures alone, and is silent where they do not show its cause.

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause, when it applies, and its sentence with places for the figures of ``_figures``."""

    name: str
    applies: Callable[[Figures], bool]
    sentence: str
    techniques: tuple[str, ...] = ()


LAUNCH_BOUND = 35
"""Per cent of a step in which a GPU waits for launches, from which they limit it: kernels that take twice as long would
make the step at most 1.3 times as long."""
RULES = (
    Rule(
        "launch-bound",
        lambda it: it["launching"] >= LAUNCH_BOUND,
        "launching limits it: the GPU waits for the host in {launching:.0f} % of the step, and there is one kernel "
        "every {kernel_us:.1f} µs",
        ("cuda-graphs", "compile"),
    ),
    Rule(
        "loss scaling",
        lambda it: it["scaling"] + it["scaling_wait"] >= 5 and it["launching"] < LAUNCH_BOUND,
        "loss scaling takes {scaling:.0f} % of the step, and its waits leave the GPU idle for {scaling_wait:.0f} % of "
        "it: each step checks whether gradients overflowed",
    ),
    Rule(
        "skipped steps",
        lambda it: it["skipped"] >= 2,
        "{skipped:.1f} % of the steps were skipped, because their gradients overflowed",
    ),
    Rule("loader", lambda it: it["waiting"] >= 10, "training waits for batches {waiting:.0f} % of its time"),
    Rule(
        "no gain from products",
        lambda it: it["fp32_products"] >= 15 and it["ratio"] > 1 / 1.1 and it["launching"] < LAUNCH_BOUND,
        "its products take {ratio:.2f} times as long as in fp32, where they are {fp32_products:.0f} % of the step",
    ),
    Rule(
        "no matrix units",
        lambda it: it["is_narrow"] and it["on_gpu"] and it["products"] >= 15 and not it["matrix_units"],
        "none of its products, {products:.0f} % of the step, ran on matrix units",
    ),
    Rule(
        "autocast missed",
        lambda it: it["is_narrow"] and it["in_fp32"] >= 10,
        "{in_fp32:.0f} % of its FLOPs were computed in fp32{modules}: autocast did not reach them",
    ),
    Rule(
        "memory-bound",
        lambda it: it["fp32_moving"] >= 50 and it["fp32_launching"] < LAUNCH_BOUND,
        "{fp32_moving:.0f} % of fp32's step are operators that move memory, norms and elementwise, and "
        "{fp32_products:.0f} % products",
        ("compile",),
    ),
    Rule(
        "casts",
        lambda it: it["casts"] >= 10 and it["launching"] < LAUNCH_BOUND,  # many small ones are launches
        "casts and changes of layout that it adds take {casts:.0f} % of its step",
    ),
    Rule(
        "optimizer-bound",
        lambda it: it["optimizer"] >= 30,
        "the optimizer takes {optimizer:.0f} % of the step: {optimizer_ms} ms, and {fp32_optimizer_ms} ms in fp32",
        ("fused-optimizer",),
    ),
    Rule(
        "copies",
        lambda it: it["copies"] >= 10,
        "copies between host and device take {copies:.0f} % of the step",
    ),
)


def _figures(baseline: Step, arm: Step) -> Figures:
    """Return what the rules read: shares of the arm's step in per cent, or of the baseline's (``fp32_``)."""
    precision = find_precision(arm.precision)
    in_fp32 = arm.of("types", "float32")
    modules = ", ".join(name for name in in_fp32["detail"] if name)
    casts_ms = arm.ms["casts and layout"] - baseline.ms["casts and layout"]
    return {
        "on_gpu": arm.runs_on_gpu,
        "is_narrow": precision is None or precision.compute != "float32",
        "launching": arm.launching_pct,
        "fp32_launching": baseline.launching_pct,
        "kernel_us": 1e3 * arm.timed_ms / (arm.figure("kernels") or math.inf),
        "scaling": arm.pct("loss scaling"),
        "scaling_wait": 100 * arm.figure("scaling wait") / arm.profiled_ms,
        "skipped": arm.figure("skipped"),
        "waiting": arm.figure("waiting"),
        "products": arm.pct(*PRODUCTS),
        "fp32_products": baseline.pct(*PRODUCTS),
        "ratio": arm.in_ms(*PRODUCTS) / (baseline.in_ms(*PRODUCTS) or math.inf),
        "matrix_units": arm.ms["matrix units"],
        "in_fp32": in_fp32["value"].sum(),
        "modules": f", in {modules}" if modules else "",
        "fp32_moving": baseline.pct("normalisation and softmax", "elementwise"),
        "casts": 100 * casts_ms / arm.profiled_ms,
        "optimizer": arm.pct("optimizer"),
        "optimizer_ms": number(arm.ms["optimizer"], 3),
        "fp32_optimizer_ms": number(baseline.ms["optimizer"], 3),
        "copies": arm.pct("copies"),
    }


def reasons(baseline: Step, arm: Step) -> list[Reason]:
    """Return the causes that hold a precision back; one sentence alone where too much is unknown or fp32 was none."""
    types = baseline.of("types")
    computed = " ".join(types["name"] + types["value"].map(":{:.0f}%".format))
    if other := strayed(baseline.precision, computed, ""):
        sentence = f"{baseline.precision} {other}, so this is no comparison with FP32 and no reason is given"
        return [Reason("other types", sentence)]
    unknown_pct = max(baseline.pct("unknown"), arm.pct("unknown"))
    if unknown_pct > MOST_UNKNOWN_PCT:
        operators = pd.concat([baseline.of("operator"), arm.of("operator")])
        longest = operators[operators["work"] == "unknown"].nlargest(3, "value")
        names = ", ".join(dict.fromkeys(longest["name"]))
        sentence = f"{unknown_pct:.0f} % of the step are operators of unknown kind ({names}), so no reason is given"
        return [Reason("unknown", sentence)]
    figures = _figures(baseline, arm)
    return [Reason(it.name, it.sentence.format(**figures), it.techniques) for it in RULES if it.applies(figures)]
