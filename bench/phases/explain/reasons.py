"""Why a precision gains or does not: the figures of the explain phase, and the rules that name causes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import pandas as pd

from bench.report.format import at_batch, number
from bench.report.reading.load import CELL
from bench.results.records import WorkClass
from bench.spec.precisions import BASELINE, find_precision
from bench.spec.techniques import TECHNIQUES

CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)
PRODUCTS: tuple[WorkClass, ...] = ("matrix units", "other products")
MOST_UNKNOWN_PCT = 10
"""Of a step in operators of unknown kind above which no reason is given."""
CHANGED = 10
"""Operators whose time, or memory at the peak, changed most."""
NAMED = 3
"""Most modules that a reason names."""
WIDE = ("float", "double", "c10::complex<float>")
"""Types of operators that autocast left as they are, as a trace calls them."""
LARGE = 0.05
"""Share of the peak from which a copy of a tensor, or what an operator takes inside, is named."""
MIB = 2**20


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

    @property
    def timed_ms(self) -> float:
        """The time without the profiler."""
        return self.figure("timed")

    @cached_property
    def profiled_ms(self) -> float:
        """The time under it: the sum of the classes."""
        return sum(self.ms.values())

    @cached_property
    def ms(self) -> dict[WorkClass, float]:
        """The time of each class."""
        return {work: self.figure(work, kind="class") for work in CLASSES}

    @cached_property
    def peak_bytes(self) -> float:
        """The most that tensors held at once; 0 if it was not observed."""
        return float(self.of("peak")["value"].sum())

    @property
    def peak_at(self) -> str:
        """The operator that ran at the peak, with its module."""
        (row,) = self.of("peak").to_dict("records")
        return in_module(row["name"], row["module"])

    def in_ms(self, *classes: WorkClass) -> float:
        """Return the time that classes take."""
        return sum(self.ms[work] for work in classes)

    def pct(self, *classes: WorkClass) -> float:
        """Return the share of the step that classes take, in per cent."""
        return 100 * self.in_ms(*classes) / self.profiled_ms

    def of(self, kind: str) -> pd.DataFrame:
        """Return the figures of a kind."""
        return self.figures[self.figures["kind"] == kind]

    def figure(self, name: str, kind: str = "step") -> float:
        """Return a figure of the step; 0 if it was not measured."""
        rows = self.of(kind)
        return float(rows["value"][rows["name"] == name].sum())

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
        if not self.runs_on_gpu:
            return 0.0
        added_ms = max(0.0, self.profiled_ms - self.timed_ms)
        waiting_ms = self.ms["idle"] - added_ms - self.figure("scaling wait")
        return 100 * max(0.0, waiting_ms) / (self.profiled_ms - added_ms)

    def by_module(self, *classes: WorkClass, types: tuple[str, ...] = ()) -> pd.Series[float]:
        """Return the ms of operators of some classes, or those of them with inputs of these types, by their module."""
        rows = self.of("operator")
        rows = rows[rows["work"].isin(classes)]
        if types:
            rows = rows[rows["dtype"].isin(types)]
        return rows.groupby("module")["value"].sum()


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A figure of an operator in both steps."""

    operator: str
    """With the module that called it, and sizes."""
    before: float
    after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One precision compared with the baseline, in one cell."""

    cell: Mapping[str, Any]
    """The columns ``CELL``, ``workload`` and ``where``."""
    baseline: Step
    arm: Step
    reasons: list[Reason]

    @property
    def speedup(self) -> float:
        """That of the timed steps, for these figures alone: the speed phase has the result."""
        return self.baseline.timed_ms / self.arm.timed_ms

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
        return f"{self.arm.precision} on {self.where}{at_batch(self.cell)}"

    @property
    def techniques(self) -> list[str]:
        """Techniques that may remove the causes, without those that it was measured with."""
        used = [name.split("=")[0] for name in str(self.cell["techniques"]).split("+")]
        possible = []
        for name in dict.fromkeys(name for reason in self.reasons for name in reason.techniques):
            if name not in used and (self.arm.runs_on_gpu or not TECHNIQUES[name].needs_gpu):
                possible.append(name)
        return possible

    def changed(self, kind: str, *, shapes: bool = True) -> list[Change]:
        """Return the operators of a kind of figure that changed most between the two steps, in both directions.

        Those of a module count by the sizes of their tensors, or together.
        """
        values: dict[str, list[float]] = {}
        for place, step in enumerate((self.baseline, self.arm)):
            for row in step.of(kind).to_dict("records"):
                sizes = row["detail"]
                if kind == "held":  # the type differs where the tensors are the same
                    sizes = sizes.rpartition(" ")[0]
                name = in_module(row["name"], row["module"], sizes if shapes else "")
                values.setdefault(name, [0.0, 0.0])[place] += row["value"]
        changes = [Change(operator=name, before=before, after=after) for name, (before, after) in values.items()]
        return sorted(changes, key=lambda it: abs(it.after - it.before), reverse=True)[:CHANGED]


def in_module(operator: str, module: str, sizes: str = "") -> str:
    """Write an operator with the module that called it and its sizes."""
    place = f" in {module}" if module else ""
    return f"{operator.removeprefix('aten::')}{place} {sizes}".rstrip()


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
            for arm in steps.values():
                why = reasons(baseline, arm)
                explained.append(Explanation(cell=cell, baseline=baseline, arm=arm, reasons=why))
    return explained


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
        "not finite",
        lambda it: bool(it["nonfinite"]),
        "the first module with a result that is no finite number, from finite ones, is {nonfinite}: keep it in fp32, "
        "or let the command layers say which parts cannot be narrow",
    ),
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
        ("fused-optimizer",),
    ),
    Rule(
        "skipped steps",
        lambda it: it["skipped"] >= 2,
        "{skipped:.1f} % of the steps were skipped, because their gradients overflowed",
    ),
    Rule(
        "loader",
        lambda it: it["waiting"] >= 10,
        "training waits for batches {waiting:.0f} % of its time: give the loader more workers, or less to do",
    ),
    Rule(
        "communication",
        lambda it: it["communication"] >= 15,
        "communication between the devices takes {communication:.0f} % of the step ({fp32_communication:.0f} % in "
        "fp32), and no precision here shortens it: larger batches or grad-accumulation make it rarer",
    ),
    Rule(
        "no gain from products",
        lambda it: it["fp32_products"] >= 15 and it["ratio"] > 1 / 1.1 and it["launching"] < LAUNCH_BOUND,
        "its products take {ratio:.2f} times as long as in fp32, where they are {fp32_products:.0f} % of the step",
    ),
    Rule(
        "no matrix units",
        lambda it: it["is_narrow"] and it["on_gpu"] and it["products"] >= 15 and it["off_units"] >= 50,
        "{off_units:.0f} % of its products' time ran on no matrix units{odd_sizes}",
    ),
    Rule(
        "autocast missed",
        lambda it: it["is_narrow"] and it["in_fp32"] >= 10,
        "{in_fp32:.0f} % of the time of its products is computed in fp32{fp32_modules}: autocast did not reach them",
    ),
    Rule(
        "left in fp32",
        lambda it: it["is_narrow"] and it["wide"] >= 10,
        "operators between the products that are computed in fp32 take {wide:.0f} % of its step{wide_modules}: each "
        "costs two casts besides",
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
        lambda it: it["casts"] >= 15 and it["launching"] < LAUNCH_BOUND,  # many small ones are launches
        "casts and changes of layout that it adds take {casts:.0f} % of its step{cast_modules}",
    ),
    Rule(
        "repeated casts",
        lambda it: it["casts"] >= 15 and bool(it["repeated"]),
        "the same tensors are cast several times in one step: {repeated}; cast once, and within one autocast context, "
        "they would be cast once",
    ),
    Rule(
        "expanded",
        lambda it: bool(it["expanded"]),
        "a tensor that is a view of less memory in fp32 is copied whole in another type: {expanded}; cast it before "
        "it is expanded",
    ),
    Rule(
        "workspace",
        lambda it: bool(it["unfolded"]),
        "an operator takes several times the memory of its tensors: {unfolded}; the library has fallen back to an "
        "algorithm that unfolds its input, which another version of torch or cuDNN may not",
        ("channels-last",),
    ),
    Rule(
        "optimizer-bound",
        lambda it: it["optimizer"] >= 30,
        "the optimizer takes {optimizer:.0f} % of the step: {optimizer_ms} ms, and {fp32_optimizer_ms} ms in fp32",
        ("fused-optimizer",),
    ),
    Rule(
        "recomputation",
        lambda it: it["recomputed"] >= 15,
        "activation checkpointing computes {recomputed:.0f} % of the step a second time",
    ),
    Rule(
        "copies",
        lambda it: it["copies"] >= 10,
        "copies between host and device take {copies:.0f} % of the step",
    ),
)


def _figures(baseline: Step, arm: Step) -> Figures:
    """Return what the rules read: shares of the arm's step in per cent, or of the baseline's (``fp32_``), and names."""
    precision = find_precision(arm.precision)
    in_fp32 = arm.by_module(*PRODUCTS, types=WIDE)
    wide = arm.by_module("elementwise", types=WIDE).drop("", errors="ignore")  # the loss is computed in fp32
    casts_ms = arm.ms["casts and layout"] - baseline.ms["casts and layout"]
    added_casts = arm.by_module("casts and layout").sub(baseline.by_module("casts and layout"), fill_value=0.0)
    products_ms = arm.in_ms(*PRODUCTS)
    large = LARGE * arm.peak_bytes
    return {
        "on_gpu": arm.runs_on_gpu,
        "is_narrow": precision is None or precision.compute != "float32",
        "nonfinite": _added("nonfinite", baseline, arm),
        "launching": arm.launching_pct,
        "fp32_launching": baseline.launching_pct,
        "kernel_us": 1e3 * arm.timed_ms / (arm.figure("kernels") or math.inf),
        "scaling": arm.pct("loss scaling"),
        "scaling_wait": 100 * arm.figure("scaling wait") / arm.profiled_ms,
        "skipped": arm.figure("skipped"),
        "waiting": arm.figure("waiting"),
        "communication": arm.pct("communication"),
        "fp32_communication": baseline.pct("communication"),
        "products": arm.pct(*PRODUCTS),
        "fp32_products": baseline.pct(*PRODUCTS),
        "ratio": products_ms / (baseline.in_ms(*PRODUCTS) or math.inf),
        "off_units": 100 * arm.ms["other products"] / (products_ms or math.inf),
        "odd_sizes": _odd_sizes(arm),
        "in_fp32": 100 * in_fp32.sum() / (products_ms or math.inf),
        "fp32_modules": _longest(in_fp32, 0.0),
        "wide": 100 * wide.sum() / arm.profiled_ms,
        "wide_modules": _longest(wide, 0.0),
        "fp32_moving": baseline.pct("normalisation and softmax", "elementwise"),
        "casts": 100 * casts_ms / arm.profiled_ms,
        "cast_modules": _longest(added_casts, 0.05 * arm.profiled_ms),
        "repeated": _added("repeated", baseline, arm),
        "expanded": _added("expanded", baseline, arm, large, MIB),
        "unfolded": _added("unfolded", baseline, arm, large, MIB),
        "optimizer": arm.pct("optimizer"),
        "optimizer_ms": number(arm.ms["optimizer"], 3),
        "fp32_optimizer_ms": number(baseline.ms["optimizer"], 3),
        "recomputed": 100 * arm.figure("recomputed") / arm.profiled_ms,
        "copies": arm.pct("copies"),
    }


def _longest(ms: pd.Series[float], least_ms: float) -> str:
    """Name the modules that operators take most time in, each with more than the least."""
    longest = ms[(ms.index != "") & (ms > least_ms)].nlargest(NAMED)
    parts = [f"{module} ({number(value, 2)} ms)" for module, value in longest.items()]
    return f", most of all in {', '.join(parts)}" if parts else ""


def _added(kind: str, baseline: Step, arm: Step, least: float = 0.0, unit: float = 1.0) -> str:
    """Name what the arm has of a kind and fp32 has not, with its module, detail and value in a unit."""
    before = {(row["name"], row["module"]) for row in baseline.of(kind).to_dict("records")}
    parts = []
    for row in arm.of(kind).to_dict("records"):
        if (row["name"], row["module"]) not in before and row["value"] >= least:
            place = in_module(row["name"], row["module"], row["detail"])
            parts.append(f"{place} ({number(row['value'] / unit, 3)} {'MiB' if unit == MIB else 'times'})")
    return "; ".join(parts[:NAMED])


def _odd_sizes(arm: Step) -> str:
    """Name products on no matrix units that have a size which is no multiple of 8, which tensor cores want in fp16."""
    rows = arm.of("operator")
    odd = []
    for row in rows[rows["work"] == "other products"].nlargest(CHANGED, "value").to_dict("records"):
        sizes = sorted({int(size) for size in re.findall(r"\d+", row["detail"]) if int(size) % 8})
        if sizes and sizes[-1] > 8:
            place = in_module(row["name"], row["module"])
            odd.append(f"{place} has a size of {sizes[-1]}, no multiple of 8")
    return f": {'; '.join(odd[:NAMED])}" if odd else ""


def reasons(baseline: Step, arm: Step) -> list[Reason]:
    """Return the causes that hold a precision back; one sentence alone where too much is unknown."""
    unknown_pct = max(baseline.pct("unknown"), arm.pct("unknown"))
    if unknown_pct > MOST_UNKNOWN_PCT:
        operators = pd.concat([baseline.of("operator"), arm.of("operator")])
        longest = operators[operators["work"] == "unknown"].nlargest(3, "value")
        names = ", ".join(dict.fromkeys(longest["name"]))
        sentence = f"{unknown_pct:.0f} % of the step are operators of unknown kind ({names}), so no reason is given"
        return [Reason("unknown", sentence)]
    figures = _figures(baseline, arm)
    return [Reason(it.name, it.sentence.format(**figures), it.techniques) for it in RULES if it.applies(figures)]
