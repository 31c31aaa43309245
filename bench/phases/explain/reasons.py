"""Why a precision gains or does not: figures of the explain phase, and rules that name causes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import pandas as pd

from bench.phases.explain import CLASSES
from bench.report.format import MIB, at_batch, number
from bench.report.reading.load import CELL
from bench.results.columns import LIST
from bench.results.records import WorkClass
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE, find_precision
from bench.spec.techniques import refusal

PRODUCTS: list[WorkClass] = ["matrix units", "other products"]
# What reads and writes memory, and computes little.
MOVING: list[WorkClass] = ["normalisation and softmax", "elementwise"]
# Operators whose time, or memory at the peak, changed most.
CHANGED = 10
# Most operators that a reason names.
NAMED = 3
# Types of operators that autocast left as they are, as a trace calls them.
WIDE = ("float", "double", "c10::complex<float>")
# Share of the peak, or of a time, from which a copy of a tensor, or an operator, is named.
LARGE = 0.05
# MiB, and share of fp32's memory, by which the peak grows outside tensors before that is a reason:
# a process' resident set scatters by some MiB.
OUTSIDE_MIB = 5
OUTSIDE = 0.1


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause, when it applies, and its sentence."""

    name: str
    applies: Callable[[SimpleNamespace], bool]
    sentence: str
    """With places for the figures of ``_figures``, or in an explanation with these."""
    techniques: tuple[str, ...] = ()
    """Techniques that may remove the cause."""


@dataclass(frozen=True)
class Step:
    """The figures of one precision's step."""

    precision: str
    figures: pd.DataFrame
    """Its rows of explain_figures.csv, with ``place``: the operator and its module."""

    @cached_property
    def ms(self) -> pd.Series[float]:
        """The time of each class under the profiler."""
        values = self.of("class").groupby("name")["value"].sum()
        return values.reindex([*CLASSES], fill_value=0.0)

    @cached_property
    def profiled_ms(self) -> float:
        """The time under the profiler."""
        return float(self.ms.sum())

    @property
    def timed_ms(self) -> float:
        """The time without it."""
        return self.figure("timed")

    @cached_property
    def peak_bytes(self) -> float:
        """The most that tensors held at once; 0 if it was not observed."""
        return float(self.of("peak")["value"].sum())

    @property
    def peak_at(self) -> str:
        """The operator that ran at the peak, with its module; empty if it was not observed."""
        return "".join(self.of("peak")["place"])

    @property
    def memory_mib(self) -> float:
        """The peak of the memory phase, as its table shows it; 0 if that did not run."""
        return max(self.of("memory")["value"], default=0.0) / MIB

    def pct(self, ms: float) -> float:
        """Return a time as a share of the step under the profiler, in per cent."""
        return 100 * ms / self.profiled_ms

    def of(self, kind: str) -> pd.DataFrame:
        """Return the figures of a kind."""
        return self.figures[self.figures["kind"] == kind]

    def figure(self, name: str) -> float:
        """Return a figure of the step; 0 if it was not measured."""
        rows = self.of("step")
        return float(rows["value"][rows["name"] == name].sum())

    @property
    def runs_on_gpu(self) -> bool:
        """Whether kernels were traced."""
        return self.figure("kernels") > 0

    @property
    def launching_pct(self) -> float:
        """The share of the step without the profiler in which a GPU waits for launches of kernels.

        What the profiler adds lies between operators, so in the time in which nothing runs. On a
        CPU it is 0: an operator's time has that of calling it.
        """
        if not self.runs_on_gpu:
            return 0.0
        added_ms = max(0.0, self.profiled_ms - self.timed_ms)
        waiting_ms = self.ms["idle"] - added_ms - self.figure("scaling wait")
        return 100 * max(0.0, waiting_ms) / (self.profiled_ms - added_ms)

    def operators(self, *classes: WorkClass) -> pd.DataFrame:
        """Return the figures of operators of some classes."""
        rows = self.of("operator")
        return rows[rows["work"].isin(classes)]

    def in_fp32(self) -> pd.DataFrame:
        """Return the figures of operators in fp32 that are narrower elsewhere.

        They are products, and what runs in modules that cast to fp32 and whose results are cast
        back.
        """
        rows = self.operators("elementwise", *PRODUCTS)
        is_between = rows["module"].isin(self.of("widened")["module"])
        is_wide = rows["dtype"].isin(WIDE)
        return rows[is_wide & (is_between | rows["work"].isin(PRODUCTS))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One precision compared with the baseline, in one cell."""

    cell: Mapping[str, Any]
    """The columns ``CELL``, ``workload`` and ``where``."""
    baseline: Step
    arm: Step
    reasons: list[Rule]

    @property
    def speedup(self) -> float:
        """That of the timed steps, for these figures alone: the speed phase has the result."""
        return self.baseline.timed_ms / self.arm.timed_ms

    @property
    def subject(self) -> str:
        """Its precision, device and batch size."""
        return f"{self.arm.precision} on {self.cell['where']}{at_batch(self.cell)}"

    @property
    def techniques(self) -> list[str]:
        """Techniques that may remove the causes, and that were not measured and can be."""
        used = [name.partition("=")[0] for name in str(self.cell["techniques"]).split(LIST)]
        refused = [*self.arm.of("refused")["name"]]
        kind = "cuda" if self.arm.runs_on_gpu else "cpu"
        devices = len(Placement(name=str(self.cell["placement"])).members)
        possible: list[str] = []
        for reason in self.reasons:
            for name in reason.techniques:
                is_new = name not in (*used, *refused, *possible)
                if is_new and refusal((name,), kind, "speed", devices) is None:
                    possible.append(name)
        return possible

    def changed(self, kind: str, *, by_size: bool = True) -> pd.DataFrame:
        """Return the operators of a kind of figure that changed most between the two steps.

        Those of a module count by the sizes of their tensors, or together. The columns are those
        of ``side_by_side``.
        """
        values = []
        for step in (self.baseline, self.arm):
            rows = step.of(kind)
            names = rows["place"]
            if by_size:
                # Without the type, which differs where the tensors are the same.
                sizes = rows["detail"].str.replace(r" [a-z]\w*$", "", regex=True)
                names = (names + " " + sizes).str.rstrip()
            values.append(rows["value"].groupby(names).sum())
        changes = side_by_side(*values)
        return changes.sort_values("change", key=abs, ascending=False, kind="stable").head(CHANGED)


def side_by_side(before: pd.Series[float], after: pd.Series[float]) -> pd.DataFrame:
    """Return figures of two steps by name: ``name``, ``before``, ``after`` and ``change``."""
    rows = pd.DataFrame({"before": before, "after": after}).fillna(0.0)
    rows["change"] = rows["after"] - rows["before"]
    return rows.rename_axis("name").reset_index()


def explanations(figures: pd.DataFrame) -> list[Explanation]:
    """Return an explanation of each precision of each cell.

    ``figures`` are rows of explain_figures.csv with the columns ``workload`` and ``where``.
    """
    module = figures["module"]
    in_module = (" in " + module).where(module != "", "")
    figures = figures.assign(place=figures["name"].str.removeprefix("aten::") + in_module)
    explained = []
    for _, rows in figures.groupby(CELL, sort=False, dropna=False):
        cell = dict(rows[[*CELL, "workload", "where"]].iloc[0])
        steps = {}
        for name, of_arm in rows.groupby("precision", sort=False):
            step = Step(str(name), of_arm)
            if step.timed_ms and step.profiled_ms:
                steps[step.precision] = step
        baseline = steps.pop(BASELINE, None)
        if baseline is None:
            continue
        for arm in steps.values():
            why = reasons(baseline, arm)
            explained.append(
                Explanation(
                    cell=cell,
                    baseline=baseline,
                    arm=arm,
                    reasons=why,
                )
            )
    return explained


# The rules. Each reads measured figures alone, and is silent where they do not show its cause.


# Per cent of a step in which a GPU waits for launches, from which they limit it: kernels that take
# twice as long would make the step at most 1.3 times as long.
LAUNCH_BOUND = 35
RULES = (
    # Alone where it applies: the others would judge by a part of the step.
    Rule(
        "unknown",
        lambda it: it.unknown > 10,
        "{unknown:.0f} % of the step are operators of unknown kind{unknown_operators}, so no "
        "reason is given",
    ),
    Rule(
        "not finite",
        lambda it: bool(it.nonfinite),
        "the first module with a result that is no finite number, from finite ones, is "
        "{nonfinite}: keep it in fp32, or let the command layers say which parts cannot be "
        "narrow",
    ),
    Rule(
        "launch-bound",
        lambda it: it.launching >= LAUNCH_BOUND,
        "launching kernels limits it: the GPU waits for the host in {launching:.0f} % of the "
        "step, and there is one kernel every {kernel_us:.1f} µs",
        ("cuda-graphs", "compile"),
    ),
    Rule(
        "loss scaling",
        lambda it: it.scaling + it.scaling_wait >= 5 and it.launching < LAUNCH_BOUND,
        "loss scaling takes {scaling:.0f} % of the step, and its waits leave the GPU idle for "
        "{scaling_wait:.0f} % of it: each step checks whether gradients overflowed",
        ("fused-optimizer",),
    ),
    Rule(
        "skipped steps",
        lambda it: it.skipped >= 2,
        "{skipped:.1f} % of the steps were skipped, because their gradients overflowed",
    ),
    Rule(
        "loader",
        lambda it: it.waiting >= 10,
        (
            "training waits for batches {waiting:.0f} % of its time: give the loader more workers, "
            "or less to do"
        ),
    ),
    Rule(
        "communication",
        lambda it: it.communication >= 15,
        "communication between the devices takes {communication:.0f} % of the step "
        "({fp32_communication:.0f} % in fp32){collectives}; no precision here shortens it, "
        "but larger batches make it rarer",
    ),
    Rule(
        "no gain from products",
        lambda it: it.fp32_products >= 15 and it.ratio > 1 / 1.1 and it.launching < LAUNCH_BOUND,
        "its matrix products and convolutions take {ratio:.2f} times as long as in fp32, where "
        "they are {fp32_products:.0f} % of the step",
    ),
    Rule(
        "no matrix units",
        lambda it: it.is_narrow and it.on_gpu and it.products >= 15 and it.off_units >= 50,
        (
            "{off_units:.0f} % of the time of its matrix products and convolutions ran without "
            "tensor cores{off_operators}"
        ),
    ),
    Rule(
        "left in fp32",
        lambda it: it.is_narrow and it.in_fp32 >= 10,
        "{in_fp32:.0f} % of its step is computed in fp32{in_fp32_operators}: look there for "
        ".float(), autocast(enabled=False), or an operator that autocast leaves in fp32; casts "
        "before and after it come on top",
    ),
    Rule(
        "memory-bound",
        lambda it: it.fp32_moving >= 50 and it.fp32_launching < LAUNCH_BOUND,
        "in fp32 {fp32_moving:.0f} % of the step are norms, activations and other operators "
        "that wait for memory{moving_operators}, and {fp32_products:.0f} % are matrix "
        "products and convolutions, which gain most",
        ("compile",),
    ),
    Rule(
        "casts",
        lambda it: it.casts >= 15 and it.launching < LAUNCH_BOUND,  # many small ones are launches
        (
            "casts and changes of layout that it adds take {casts:.0f} % of its "
            "step{cast_operators}{repeated}"
        ),
    ),
    Rule(
        "expanded",
        lambda it: bool(it.expanded),
        "a tensor that only repeats a smaller one, as expand() makes it, is written in full when "
        "it is cast: {expanded}; cast it before it is expanded",
    ),
    Rule(
        "workspace",
        lambda it: bool(it.unfolded),
        "an operator takes several times the memory of its tensors while it runs: {unfolded}; a "
        "library that has no algorithm of its own for it unfolds its input, and another version "
        "of torch or cuDNN may have one",
    ),
    Rule(
        "outside tensors",
        lambda it: it.outside_mib >= max(OUTSIDE_MIB, OUTSIDE * it.fp32_memory_mib),
        "peak memory grows from {fp32_memory_mib:.0f} to {memory_mib:.0f} MiB, and "
        "{outside_mib:.0f} MiB of that are in no tensor: torch and its libraries keep them, as "
        "kernels compiled for each shape and as workspaces; where tensors hold most, {peak_at} "
        "runs",
    ),
    Rule(
        "optimizer-bound",
        lambda it: it.optimizer >= 30,
        (
            "the optimizer takes {optimizer:.0f} % of the step: {optimizer_ms} ms, and "
            "{fp32_optimizer_ms} ms in fp32"
        ),
        ("fused-optimizer",),
    ),
    Rule(
        "recomputation",
        lambda it: it.recomputed >= 15,
        "activation checkpointing computes {recomputed:.0f} % of the step a second time",
    ),
    Rule(
        "copies",
        lambda it: it.copies >= 10,
        "copies between host and device take {copies:.0f} % of the step",
    ),
)


def _figures(baseline: Step, arm: Step) -> SimpleNamespace:
    """Return what the rules read, names of operators among it.

    Figures without a unit in their name are shares in per cent: of the arm's step, or with
    ``fp32_`` of the baseline's.
    """
    precision = find_precision(arm.precision)
    products_ms = arm.ms[PRODUCTS].sum()
    fp32_products_ms = baseline.ms[PRODUCTS].sum()
    in_fp32 = arm.in_fp32()
    casts, fp32_casts = (step.operators("casts and layout") for step in (arm, baseline))
    added_casts = pd.concat([casts, fp32_casts.assign(value=-fp32_casts["value"])])
    casts_ms = arm.ms["casts and layout"] - baseline.ms["casts and layout"]
    off_units = arm.operators("other products")
    misaligned = off_units["detail"].map(_misaligned)
    repeated = _added("repeated", baseline, arm)
    if repeated:
        repeated = f"; each autocast context casts some tensors again: {repeated}"
    unknown = [step.operators("unknown") for step in (baseline, arm)]
    return SimpleNamespace(
        unknown=max(step.pct(step.ms["unknown"]) for step in (baseline, arm)),
        unknown_operators=_longest(pd.concat(unknown)),
        on_gpu=arm.runs_on_gpu,
        is_narrow=precision is None or precision.compute != "float32",
        nonfinite=_added("nonfinite", baseline, arm),
        launching=arm.launching_pct,
        fp32_launching=baseline.launching_pct,
        kernel_us=1e3 * arm.timed_ms / (arm.figure("kernels") or math.inf),
        scaling=arm.pct(arm.ms["loss scaling"]),
        scaling_wait=arm.pct(arm.figure("scaling wait")),
        skipped=arm.figure("skipped"),
        waiting=arm.figure("waiting"),
        communication=arm.pct(arm.ms["communication"]),
        fp32_communication=baseline.pct(baseline.ms["communication"]),
        collectives=_longest(arm.operators("communication")),
        products=arm.pct(products_ms),
        fp32_products=baseline.pct(fp32_products_ms),
        ratio=products_ms / (fp32_products_ms or math.inf),
        off_units=100 * arm.ms["other products"] / (products_ms or math.inf),
        off_operators=_longest(off_units.assign(place=off_units["place"] + misaligned)),
        in_fp32=arm.pct(in_fp32["value"].sum()),
        in_fp32_operators=_longest(in_fp32),
        fp32_moving=baseline.pct(baseline.ms[MOVING].sum()),
        moving_operators=_longest(baseline.operators(*MOVING)),
        casts=arm.pct(casts_ms),
        cast_operators=_longest(added_casts),
        repeated=repeated,
        expanded=_added("expanded", baseline, arm),
        unfolded=_added("unfolded", baseline, arm),
        fp32_memory_mib=baseline.memory_mib,
        memory_mib=arm.memory_mib,
        outside_mib=_outside_tensors_mib(baseline, arm),
        peak_at=arm.peak_at,
        optimizer=arm.pct(arm.ms["optimizer"]),
        optimizer_ms=number(arm.ms["optimizer"], 3),
        fp32_optimizer_ms=number(baseline.ms["optimizer"], 3),
        recomputed=arm.pct(arm.figure("recomputed")),
        copies=arm.pct(arm.ms["copies"]),
    )


def _longest(operators: pd.DataFrame) -> str:
    """Name the operators that take most time, of those that take some."""
    ms = operators.groupby("place")["value"].sum()
    parts = []
    for place, value in ms[ms > LARGE * ms.sum()].nlargest(NAMED).items():
        parts.append(f"{place} ({number(value, 2)} ms)")
    if parts:
        return f", most of all {', '.join(parts)}"
    return ""


def _added(kind: str, baseline: Step, arm: Step) -> str:
    """Name what the arm has of a kind and fp32 has not, with how often or how large it is.

    What is counted in bytes is left out where it is small.
    """
    rows = arm.of(kind)
    rows = rows[~rows["place"].isin(baseline.of(kind)["place"])]
    is_bytes = kind in ("expanded", "unfolded")
    if is_bytes:
        rows = rows[rows["value"] >= LARGE * arm.peak_bytes]
    parts = []
    for row in rows.head(NAMED).to_dict("records"):
        text = f"{row['place']} {row['detail']}".rstrip()
        if is_bytes:
            text += f" ({number(row['value'] / MIB, 3)} MiB)"
        elif kind == "repeated":
            text += f" ({row['value']:.0f} times)"
        parts.append(text)
    return "; ".join(parts)


def _outside_tensors_mib(baseline: Step, arm: Step) -> float:
    """Return by how much the memory phase's peak grows beyond what tensors do; 0 if unknown."""
    if not (baseline.memory_mib and arm.memory_mib and baseline.peak_bytes and arm.peak_bytes):
        return 0.0
    by_tensors_mib = max(0.0, arm.peak_bytes - baseline.peak_bytes) / MIB
    return arm.memory_mib - baseline.memory_mib - by_tensors_mib


def _misaligned(sizes: str) -> str:
    """Name the largest size that is no multiple of 8, as tensor cores want them in 16 bits."""
    largest = 0
    for digits in re.findall(r"\d+", sizes):
        size = int(digits)
        if size > 8 and size % 8:
            largest = max(largest, size)
    if largest:
        return f" with a size of {largest}, no multiple of 8"
    return ""


def reasons(baseline: Step, arm: Step) -> list[Rule]:
    """Return the causes that hold a precision back, with their figures."""
    figures = _figures(baseline, arm)
    causes = []
    for rule in RULES:
        if rule.applies(figures):
            causes.append(replace(rule, sentence=rule.sentence.format(**vars(figures))))
            if rule.name == "unknown":
                break
    return causes
