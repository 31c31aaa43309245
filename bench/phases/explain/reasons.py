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
from bench.results.columns import LIST
from bench.results.records import WorkClass
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE, find_precision
from bench.spec.techniques import refusal

CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)
PRODUCTS: tuple[WorkClass, ...] = ("matrix units", "other products")
# What reads and writes memory, and computes little.
MOVING: tuple[WorkClass, ...] = ("normalisation and softmax", "elementwise")
# Of a step in operators of unknown kind above which no reason is given.
MOST_UNKNOWN_PCT = 10
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
OUTSIDE_MIB, OUTSIDE = 5, 0.1
MIB = 2**20
# Kinds of figures that are bytes of copies, and of what operators take inside.
IN_BYTES = ("expanded", "unfolded")


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
    def memory_bytes(self) -> float:
        """The peak of the memory phase, as its table shows it; 0 if that did not run."""
        return max(self.of("memory")["value"], default=0.0)

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

        What the profiler adds lies between operators, so in the time in which nothing runs. On a
        CPU it is 0: an operator's time has that of calling it.
        """
        if not self.runs_on_gpu:
            return 0.0
        added_ms = max(0.0, self.profiled_ms - self.timed_ms)
        waiting_ms = self.ms["idle"] - added_ms - self.figure("scaling wait")
        return 100 * max(0.0, waiting_ms) / (self.profiled_ms - added_ms)

    def by_operator(self, *classes: WorkClass, types: tuple[str, ...] = ()) -> pd.Series[float]:
        """Return the ms of operators of some classes, or those with inputs of these types, by their name and module."""
        rows = self.of("operator")
        rows = rows[rows["work"].isin(classes)]
        if types:
            rows = rows[rows["dtype"].isin(types)]
        return rows.groupby(["name", "module"])["value"].sum()

    def in_fp32(self) -> pd.Series[float]:
        """Return the ms of operators in fp32 that are narrower elsewhere, by their name and module.

        They are products, and what runs in modules that cast to fp32 and whose results are cast
        back.
        """
        others = self.by_operator("elementwise", types=WIDE)
        are_between = others.index.get_level_values("module").isin(self.of("widened")["module"])
        return pd.concat([self.by_operator(*PRODUCTS, types=WIDE), others[are_between]])


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
        """Techniques that may remove the causes, without those that it was measured with or cannot have."""
        used = [name.partition("=")[0] for name in str(self.cell["techniques"]).split(LIST)]
        refused = [*self.arm.of("refused")["name"]]
        kind = "cuda" if self.arm.runs_on_gpu else "cpu"
        devices = len(Placement(name=str(self.cell["placement"])).members)
        possible = []
        for name in dict.fromkeys(name for reason in self.reasons for name in reason.techniques):
            if name not in (*used, *refused) and refusal((name,), kind, "speed", devices) is None:
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
        changes = [
            Change(operator=name, before=before, after=after)
            for name, (before, after) in values.items()
        ]
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


# Per cent of a step in which a GPU waits for launches, from which they limit it: kernels that take
# twice as long would make the step at most 1.3 times as long.
LAUNCH_BOUND = 35
RULES = (
    Rule(
        "not finite",
        lambda it: bool(it["nonfinite"]),
        "the first module with a result that is no finite number, from finite ones, is "
        "{nonfinite}: keep it in fp32, or let the command layers say which parts cannot be "
        "narrow",
    ),
    Rule(
        "launch-bound",
        lambda it: it["launching"] >= LAUNCH_BOUND,
        "launching kernels limits it: the GPU waits for the host in {launching:.0f} % of the "
        "step, and there is one kernel every {kernel_us:.1f} µs",
        ("cuda-graphs", "compile"),
    ),
    Rule(
        "loss scaling",
        lambda it: it["scaling"] + it["scaling_wait"] >= 5 and it["launching"] < LAUNCH_BOUND,
        "loss scaling takes {scaling:.0f} % of the step, and its waits leave the GPU idle for "
        "{scaling_wait:.0f} % of it: each step checks whether gradients overflowed",
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
        (
            "training waits for batches {waiting:.0f} % of its time: give the loader more workers, "
            "or less to do"
        ),
    ),
    Rule(
        "communication",
        lambda it: it["communication"] >= 15,
        "communication between the devices takes {communication:.0f} % of the step "
        "({fp32_communication:.0f} % in fp32){collectives}; no precision here shortens it, "
        "but larger batches make it rarer",
    ),
    Rule(
        "no gain from products",
        lambda it: (
            it["fp32_products"] >= 15 and it["ratio"] > 1 / 1.1 and it["launching"] < LAUNCH_BOUND
        ),
        "its matrix products and convolutions take {ratio:.2f} times as long as in fp32, where "
        "they are {fp32_products:.0f} % of the step",
    ),
    Rule(
        "no matrix units",
        lambda it: (
            it["is_narrow"] and it["on_gpu"] and it["products"] >= 15 and it["off_units"] >= 50
        ),
        (
            "{off_units:.0f} % of the time of its matrix products and convolutions ran without "
            "tensor cores{off_operators}"
        ),
    ),
    Rule(
        "left in fp32",
        lambda it: it["is_narrow"] and it["in_fp32"] >= 10,
        "{in_fp32:.0f} % of its step is computed in fp32{in_fp32_operators}: look there for "
        ".float(), autocast(enabled=False), or an operator that autocast leaves in fp32; casts "
        "before and after it come on top",
    ),
    Rule(
        "memory-bound",
        lambda it: it["fp32_moving"] >= 50 and it["fp32_launching"] < LAUNCH_BOUND,
        "in fp32 {fp32_moving:.0f} % of the step are norms, activations and other operators "
        "that wait for memory{moving_operators}, and {fp32_products:.0f} % are matrix "
        "products and convolutions, which gain most",
        ("compile",),
    ),
    Rule(
        "casts",
        lambda it: (
            it["casts"] >= 15 and it["launching"] < LAUNCH_BOUND
        ),  # many small ones are launches
        (
            "casts and changes of layout that it adds take {casts:.0f} % of its "
            "step{cast_operators}{repeated}"
        ),
    ),
    Rule(
        "expanded",
        lambda it: bool(it["expanded"]),
        "a tensor that only repeats a smaller one, as expand() makes it, is written in full when "
        "it is cast: {expanded}; cast it before it is expanded",
    ),
    Rule(
        "workspace",
        lambda it: bool(it["unfolded"]),
        "an operator takes several times the memory of its tensors while it runs: {unfolded}; a "
        "library that has no algorithm of its own for it unfolds its input, and another version "
        "of torch or cuDNN may have one",
    ),
    Rule(
        "outside tensors",
        lambda it: it["outside"] >= OUTSIDE_MIB and it["outside"] >= OUTSIDE * it["fp32_memory"],
        "peak memory grows from {fp32_memory:.0f} to {memory:.0f} MiB, and {outside:.0f} "
        "MiB of that are in no tensor: torch and its libraries keep them, as kernels compiled for "
        "each shape and as workspaces; where tensors hold most, {peak_at} runs",
    ),
    Rule(
        "optimizer-bound",
        lambda it: it["optimizer"] >= 30,
        (
            "the optimizer takes {optimizer:.0f} % of the step: {optimizer_ms} ms, and "
            "{fp32_optimizer_ms} ms in fp32"
        ),
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
    in_fp32 = arm.in_fp32()
    casts_ms = arm.ms["casts and layout"] - baseline.ms["casts and layout"]
    before = baseline.by_operator("casts and layout")
    added_casts = arm.by_operator("casts and layout").sub(before, fill_value=0.0)
    repeated = _added("repeated", baseline, arm)
    products_ms = arm.in_ms(*PRODUCTS)
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
        "collectives": _longest(arm.by_operator("communication")),
        "products": arm.pct(*PRODUCTS),
        "fp32_products": baseline.pct(*PRODUCTS),
        "ratio": products_ms / (baseline.in_ms(*PRODUCTS) or math.inf),
        "off_units": 100 * arm.ms["other products"] / (products_ms or math.inf),
        "off_operators": _off_units(arm),
        "in_fp32": 100 * in_fp32.sum() / arm.profiled_ms,
        "in_fp32_operators": _longest(in_fp32),
        "fp32_moving": baseline.pct(*MOVING),
        "moving_operators": _longest(baseline.by_operator(*MOVING)),
        "casts": 100 * casts_ms / arm.profiled_ms,
        "cast_operators": _longest(added_casts),
        "repeated": repeated
        and f"; some tensors are cast again and again, as each autocast context does: {repeated}",
        "expanded": _added("expanded", baseline, arm),
        "unfolded": _added("unfolded", baseline, arm),
        **_outside_tensors(baseline, arm),
        "optimizer": arm.pct("optimizer"),
        "optimizer_ms": number(arm.ms["optimizer"], 3),
        "fp32_optimizer_ms": number(baseline.ms["optimizer"], 3),
        "recomputed": 100 * arm.figure("recomputed") / arm.profiled_ms,
        "copies": arm.pct("copies"),
    }


def _longest(ms: pd.Series[float]) -> str:
    """Name the operators that take most time, of those that take some."""
    parts = []
    for row in ms[ms > LARGE * ms.sum()].nlargest(NAMED).reset_index().to_dict("records"):
        parts.append(f"{in_module(row['name'], row['module'])} ({number(row['value'], 2)} ms)")
    return f", most of all {', '.join(parts)}" if parts else ""


def _added(kind: str, baseline: Step, arm: Step) -> str:
    """Name what the arm has of a kind and fp32 has not, with its module and detail, and how often or how large it is.

    What is counted in bytes is left out where it is small.
    """
    before = {(row["name"], row["module"]) for row in baseline.of(kind).to_dict("records")}
    parts = []
    for row in arm.of(kind).to_dict("records"):
        place, value = in_module(row["name"], row["module"], row["detail"]), row["value"]
        is_small = kind in IN_BYTES and value < LARGE * arm.peak_bytes
        if (row["name"], row["module"]) in before or is_small:
            continue
        if kind in IN_BYTES:
            place += f" ({number(value / MIB, 3)} MiB)"
        elif kind == "repeated":
            place += f" ({value:.0f} times)"
        parts.append(place)
    return "; ".join(parts[:NAMED])


def _outside_tensors(baseline: Step, arm: Step) -> Figures:
    """Return the peaks of the memory phase, and by how much the arm's grows beyond what tensors do, in MiB."""
    if not (baseline.memory_bytes and arm.memory_bytes and baseline.peak_bytes and arm.peak_bytes):
        return {"fp32_memory": 0.0, "memory": 0.0, "outside": 0.0, "peak_at": ""}
    by_tensors = max(0.0, arm.peak_bytes - baseline.peak_bytes)
    return {
        "fp32_memory": baseline.memory_bytes / MIB,
        "memory": arm.memory_bytes / MIB,
        "outside": (arm.memory_bytes - baseline.memory_bytes - by_tensors) / MIB,
        "peak_at": arm.peak_at,
    }


def _off_units(arm: Step) -> str:
    """Name products on no matrix units, with a size that is no multiple of 8, as tensor cores want them in 16 bits."""
    rows = arm.of("operator")
    parts = []
    for row in rows[rows["work"] == "other products"].nlargest(NAMED, "value").to_dict("records"):
        sizes = [int(size) for size in re.findall(r"\d+", row["detail"])]
        odd = max((size for size in sizes if size > 8 and size % 8), default=0)
        why = f", with a size of {odd}, no multiple of 8" if odd else ""
        parts.append(f"{in_module(row['name'], row['module'])} ({number(row['value'], 2)} ms{why})")
    return f", most of all {'; '.join(parts)}" if parts else ""


def reasons(baseline: Step, arm: Step) -> list[Reason]:
    """Return the causes that hold a precision back; one sentence alone where too much is unknown."""
    unknown_pct = max(baseline.pct("unknown"), arm.pct("unknown"))
    if unknown_pct > MOST_UNKNOWN_PCT:
        operators = pd.concat([baseline.of("operator"), arm.of("operator")])
        longest = operators[operators["work"] == "unknown"].nlargest(3, "value")
        names = ", ".join(dict.fromkeys(longest["name"]))
        sentence = (
            f"{unknown_pct:.0f} % of the step are operators of unknown kind ({names}), so no "
            "reason is given"
        )
        return [Reason("unknown", sentence)]
    figures = _figures(baseline, arm)
    return [
        Reason(it.name, it.sentence.format(**figures), it.techniques)
        for it in RULES
        if it.applies(figures)
    ]
