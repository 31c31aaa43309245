"""Why a precision gains or does not: the figures of the explain phase, and rules that turn them into words.

Each rule looks at measured figures alone, and says nothing where they do not show its cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pandas as pd

from bench.report.format import number, times
from bench.report.reading.load import CELL
from bench.results.records import WorkClass
from bench.spec.precisions import BASELINE, find_precision
from bench.stats import Interval, robust_interval

CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)
PRODUCTS: tuple[WorkClass, ...] = ("matrix units", "other products")
FOLLOWING: tuple[WorkClass, ...] = ("normalisation and softmax", "elementwise")
"""What runs in the type that the products before it leave behind, and gains by moving fewer bytes."""
HALVED = 0.5
"""Share of their time that these take at best by theory, where bytes are halved."""

BUSY_PCT = 10.0
"""Share of a CPU's cores from which other programs are worth saying."""
STRETCHED, SHORTENED = 1.5, 0.8
"""How many times as long a step takes under the profiler, from which, or up to which, that is worth saying."""
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
MEMORY_BOUND = 0.50
"""Share of fp32's step in operators that move memory, from which there is little for products to gain."""
CASTING = 0.10
OPTIMIZING = 0.30
SCALING = 0.05
COMMUNICATING = 0.10
COPYING = 0.10
WAITING_PCT = 10.0
SKIPPED_PCT = 2.0
NO_GAIN = 1.1
"""How many times fp32's rate products must reach, alone, for there to be a gain."""
TOLD = 0.5
"""A report tells what is unexplained only where half its interval is at most this share of the difference."""
MATTERS = 0.15
"""Share of a step that products must have for their rate to matter."""
MISSED_PCT = 10.0
"""Share of the FLOPs in fp32 from which autocast has missed a part of the model."""
PADDED, TURNED = 0.93, 0.85
"""Share of its time that a product may take with padded sizes, or channels last, for that to be worth saying."""
SMALL = 0.25
"""Share of the device's best rate that products reach alone, below which they are small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One cause, with its figures."""

    rule: str
    """Which rule of ``RULES`` says it."""
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
    """All that was sent of it."""

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

    def total(self, kind: str, works: Sequence[WorkClass] = ()) -> float:
        """Return what calls take together in a step: each one's time alone, as often as it is called."""
        rows = self.of(kind)
        rows = rows[rows["work"].isin(works)] if works else rows
        return float((rows["value"] * rows["count"]).sum())

    @property
    def stretched(self) -> float:
        """How many times as long it takes under the profiler."""
        return self.profiled_ms / self.timed_ms

    @property
    def lengthened_ms(self) -> float:
        """What the profiler adds to the step in which nothing runs: it works between operators."""
        return min(self.ms["idle"], max(0.0, self.profiled_ms - self.timed_ms))

    @property
    def sums(self) -> pd.Series[float]:
        """What the classes add up to in each round, in ms, by the round."""
        return self.of("class").groupby("round")["value"].sum()

    @property
    def runs_on_gpu(self) -> bool:
        """Whether kernels were traced."""
        return self.value("step", "kernels") is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One precision beside the baseline, in one cell."""

    cell: Mapping[str, object]
    baseline: Step
    arm: Step
    speedup: Interval
    """Of the timed steps, from the rounds: for these figures alone, the speed phase has the result."""
    difference_ms: Interval
    """The baseline's time of a step less the arm's, from the rounds."""
    unexplained: Interval | None
    """Share of the difference that the classes do not add up to, negative where they add up to more, from the rounds;
    None where the difference's interval includes 0, or this one is too wide to tell."""
    ceiling: float | None
    """The largest speedup that the baseline's step leaves room for."""
    predicted: float | None
    """The speedup that follows from the baseline's step, and the operators of both alone."""
    reasons: tuple[Reason, ...]
    foreign_load_pct: float | None
    """Share of a CPU's cores that other programs took meanwhile."""


def explanations(figures: pd.DataFrame) -> list[Explanation]:
    """Return an explanation for each precision of each cell in rows of ``Runs.explained``."""
    found = []
    for cell, rows in figures.groupby(CELL, sort=False, dropna=False):
        named = dict(zip(CELL, cell, strict=True))
        steps = [_step(str(name), arm) for name, arm in rows.groupby("precision", sort=False)]
        by_name = {step.precision: step for step in steps if step is not None}
        baseline = by_name.pop(BASELINE, None)
        if baseline is not None:
            found += [_explain(named, baseline, arm) for arm in by_name.values()]
    return found


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


def _explain(cell: Mapping[str, object], baseline: Step, arm: Step) -> Explanation:
    before, after = (step.of("step", "timed").set_index("round")["value"] for step in (baseline, arm))
    rounds = before.index.intersection(after.index)
    difference = robust_interval(list(before[rounds] - after[rounds]))
    ratio = robust_interval(list(np.log(before[rounds] / after[rounds])))
    certain = difference.low is not None and difference.high is not None and difference.low * difference.high > 0
    return Explanation(
        cell=cell,
        baseline=baseline,
        arm=arm,
        speedup=_exponential(ratio),
        difference_ms=difference,
        unexplained=_unexplained(baseline, arm, difference.center) if certain else None,
        ceiling=ceiling(baseline, arm),
        predicted=predicted(baseline, arm),
        reasons=tuple(reasons(baseline, arm)),
        foreign_load_pct=baseline.value("step", "foreign load"),
    )


def _unexplained(baseline: Step, arm: Step, difference_ms: float) -> Interval | None:
    """Return the share of a difference that the classes do not add up to; None where the rounds do not tell it.

    What the profiler and the classes make of a step less the step as timed, in the same round, is taken of both; where
    that is the same in both, their difference is explained.
    """
    left = [step.of("step", "timed").set_index("round")["value"] - step.sums for step in (baseline, arm)]
    found = robust_interval(list((left[0] - left[1]).dropna()))
    low, high = (None if end is None else end / difference_ms for end in (found.low, found.high))
    if difference_ms < 0:
        low, high = high, low
    share = Interval(center=found.center / difference_ms, low=low, high=high, n=found.n)
    return share if share.half_width is None or share.half_width <= TOLD else None


def _exponential(logs: Interval) -> Interval:
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Interval(center=math.exp(logs.center), low=low, high=high, n=logs.n)


def product_ratio(baseline: Step, arm: Step, kind: str = "best") -> float | None:
    """Return the time of the baseline's products in the arm's type over their own, each alone; None if not measured.

    Args:
        baseline: the baseline's step.
        arm: another's.
        kind: ``best`` of each product's times, or ``product`` for their medians, or ``cached`` for the best of those
            whose operands the cache may hold.
    """
    own, other = (_products_alone(step, kind) for step in (baseline, arm))
    both = own.index.intersection(other.index)
    count = own.loc[both, "count"]
    total = float((own.loc[both, "value"] * count).sum())
    return float((other.loc[both, "value"] * count).sum()) / total if total else None


def _products_alone(step: Step, kind: str) -> pd.DataFrame:
    rows = step.of(kind)
    return rows[~rows["work"].isin(CLASSES)].set_index("name")[["value", "count"]]


def _ratio_alone(baseline: Step, arm: Step, *works: WorkClass, kind: str = "alone") -> float | None:
    """Return the time that the arm's operators of some classes take alone over the baseline's."""
    own, other = (step.total(kind, works) for step in (baseline, arm))
    return other / own if own and other else None


def _added_casts_alone_ms(baseline: Step, arm: Step, kind: str = "alone") -> float | None:
    """Return what the casts and changes of layout that the arm adds take alone; None if none was measured."""
    before, after = (step.total(kind, ("casts and layout",)) for step in (baseline, arm))
    return max(0.0, after - before) if after else None


def _added_casts_ms(baseline: Step, arm: Step) -> float:
    return max(0.0, arm.ms["casts and layout"] - baseline.ms["casts and layout"])


def _rest(step: Step) -> float:
    return sum(ms for work, ms in step.ms.items() if work not in (*PRODUCTS, *FOLLOWING))


def ceiling(baseline: Step, arm: Step) -> float | None:
    """Return Amdahl's ceiling: the speedup if all that can gain did, at the best rates that the device showed.

    Products take what they take alone in the arm's type; norms and elementwise operators each half their time, or what
    they take alone; the optimizer half its time if the weights have 16 bits; the casts that were added what they take
    in the step, or alone. Alone is with operands from memory or from the cache, for a step may find them in either.
    Where there are several figures the smallest counts. All else stays, without what the profiler added between
    operators.
    """
    rates = [product_ratio(baseline, arm, kind) for kind in ("product", "best", "cached")]
    products = sum(baseline.ms[work] for work in PRODUCTS)
    if products and not any(rates):
        return None
    left = products * _smallest(rates, 1.0)
    for work in FOLLOWING:
        ratios = [_ratio_alone(baseline, arm, work, kind=kind) for kind in ("alone", "cached")]
        left += baseline.ms[work] * min(HALVED, _smallest(ratios, HALVED))
    left -= 0.0 if _updates_fp32(arm) else HALVED * baseline.ms["optimizer"]
    casts = [_added_casts_alone_ms(baseline, arm, kind) for kind in ("alone", "cached")]
    left += _smallest([_added_casts_ms(baseline, arm), *casts], 0.0)
    as_it_is = sum(baseline.ms.values()) - baseline.lengthened_ms
    return as_it_is / (_rest(baseline) - baseline.lengthened_ms + left)


def _smallest(values: Iterable[float | None], otherwise: float) -> float:
    return min((value for value in values if value is not None), default=otherwise)


def predicted(baseline: Step, arm: Step) -> float | None:
    """Return the speedup that the baseline's step and the operators alone let expect; None if they were not measured.

    Products and what follows them change as they do alone; the casts that the arm calls take what they take alone; all
    else stays as under the profiler. Nothing of the arm's timing is in it.
    """
    rate = product_ratio(baseline, arm)
    if rate is None:
        return None
    follow = _ratio_alone(baseline, arm, *FOLLOWING) or 1.0
    changed = sum(baseline.ms[work] for work in PRODUCTS) * rate + follow * sum(baseline.ms[work] for work in FOLLOWING)
    return baseline.profiled_ms / (_rest(baseline) + changed + (_added_casts_alone_ms(baseline, arm) or 0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """One operator of the baseline's step, alone, against the rates that this device showed."""

    operator: str
    """With its operands."""
    module: str
    """That called it first."""
    count: float
    """Calls in a step."""
    ms: float
    """Of one call."""
    limit: str
    """What bounds it from below: ``arithmetic`` or ``memory``."""
    share: float
    """The least time by that bound over the time that it takes; above 1 where a cache held its operands."""
    other_ms: float | None
    """Of one call in another precision's type, for products."""


def rooflines(baseline: Step, arm: Step | None = None) -> list[Roofline]:
    """Return the operators of a step with their bounds, those that take longest in the step first.

    The bound of arithmetic is the rate of the fastest of large matrix products, that of memory the rate of a copy, both
    measured in the same process.

    Args:
        baseline: the step whose operators they are.
        arm: the precision in whose type its products were timed too.
    """
    tera, giga = baseline.value("rate", "products TFLOP/s"), baseline.value("rate", "copies GB/s")
    if not tera or not giga:
        return []
    calls = pd.concat([baseline.of("best"), baseline.of("alone")])
    flops = baseline.of("flops").groupby("name")["value"].sum()
    moved = baseline.of("bytes").groupby("name")["value"].max()
    others = arm.of("best").groupby("name")["value"].min() if arm is not None else pd.Series(dtype=float)
    found = []
    for name, rows in calls.groupby("name", sort=False):
        count, ms = float(rows["count"].sum()), float(rows["value"].median())
        arithmetic_ms = float(flops.get(name, 0.0)) / count / tera / 1e9
        memory_ms = float(moved.get(name, 0.0)) / giga / 1e6
        found.append(
            Roofline(
                operator=str(name),
                module=str(rows["detail"].iloc[0]),
                count=count,
                ms=ms,
                limit="arithmetic" if arithmetic_ms >= memory_ms else "memory",
                share=max(arithmetic_ms, memory_ms) / ms,
                other_ms=float(others[name]) if name in others else None,
            )
        )
    return sorted(found, key=lambda one: -one.count * one.ms)


# The rules. Each takes the baseline's step and the arm's, and yields at most one reason.

Rule = Callable[[Step, Step], Iterator[Reason]]


def reasons(baseline: Step, arm: Step) -> Iterator[Reason]:
    """Yield what holds a precision back, by every rule; one sentence alone where too much of a step is unknown."""
    unknown = max(baseline.share("unknown"), arm.share("unknown"))
    if unknown > MOST_UNKNOWN:
        rows = pd.concat([step.of("operator")[step.of("operator")["work"] == "unknown"] for step in (baseline, arm)])
        names = ", ".join(dict.fromkeys(rows.sort_values("value", ascending=False)["name"].head(3)))
        which = f" ({names})" if names else ""
        yield Reason(
            rule="unknown",
            sentence=f"{_percent(unknown)} of the step are operators of unknown kind{which}, so no reason is given",
        )
        return
    for rule in RULES:
        yield from rule(baseline, arm)


def _launching(_baseline: Step, arm: Step) -> Iterator[Reason]:
    idle, growth = (arm.ms["idle"] - arm.lengthened_ms) / (arm.profiled_ms - arm.lengthened_ms), growth_of(arm)
    calls = arm.value("step", "kernels" if arm.runs_on_gpu else "operators")
    mean_us = 1e3 * arm.profiled_ms / calls if calls else None
    short = mean_us is not None and mean_us <= SHORT_US
    if growth is None:
        bound = arm.runs_on_gpu and idle >= 2 * LAUNCHING  # a CPU's trace lacks what torch.compile fused
    else:
        bound = growth < GROWTH and (idle >= LAUNCHING or short)
    if not bound:
        return
    if arm.runs_on_gpu:
        what = [f"the GPU waits for the host in {_percent(idle)} of the step"]
    else:
        what = [f"no operator runs in {_percent(idle)} of the step"] if idle >= 0.01 else []
    called = "kernel" if arm.runs_on_gpu else "operator"
    if mean_us is not None:
        what.append(f"there is one {called} every {number(mean_us, 2)} µs")
    if growth is not None:
        what.append(f"with twice the batch the step takes {number(growth, 3)} times as long, optimizer and casts apart")
    yield Reason(
        rule="launch-bound",
        sentence=f"launching limits it: {', and '.join([', '.join(what[:-1]), what[-1]] if what[1:] else what)}",
        techniques=("cuda-graphs", "compile") if arm.runs_on_gpu else ("compile",),
    )


def growth_of(step: Step) -> float | None:
    """Return how many times as long a step of twice the batch takes, optimizer and casts apart; None if unknown.

    These two go by the number of weights, whatever the batch.
    """
    doubled = step.value("step", "doubled")
    beside = step.value("step", "not doubled") or step.timed_ms
    fixed = (step.ms["optimizer"] + step.ms["casts and layout"]) * min(1.0, step.timed_ms / step.profiled_ms)
    if doubled is None or min(doubled, beside) <= fixed:
        return None
    growth = (doubled - fixed) / (beside - fixed)
    return growth if growth >= LEAST_GROWTH else None


def _memory_bound(baseline: Step, _arm: Step) -> Iterator[Reason]:
    share = baseline.share(*FOLLOWING)
    if share >= MEMORY_BOUND and not _is(_launching, baseline):
        products = baseline.share(*PRODUCTS)
        yield Reason(
            rule="memory-bound",
            sentence=(
                f"{_percent(share)} of fp32's step are operators that move memory, norms and elementwise, and "
                f"{_percent(products)} products"
            ),
            techniques=("compile",),
        )


def _no_gain(baseline: Step, arm: Step) -> Iterator[Reason]:
    rate = product_ratio(baseline, arm)
    in_step = [sum(step.ms[work] for work in PRODUCTS) for step in (baseline, arm)]
    gains = rate is None or 1 / rate >= NO_GAIN or in_step[0] >= NO_GAIN * in_step[1]
    if rate is None or gains or baseline.share(*PRODUCTS) < MATTERS:
        return
    compute = arm.precision if _is_fp32(arm) else _compute(arm)
    how = f"{times(1 / rate)} as fast" if rate <= 2 else f"{number(rate, 2)} times as long"
    takes = "run" if rate <= 2 else "take"
    large, in_fp32 = (step.value("rate", "products TFLOP/s") for step in (arm, baseline))
    device = large / in_fp32 if large and in_fp32 else None
    why = "the device has no gain to give"
    if device is not None and device >= NO_GAIN:
        why = f"large square ones run {times(device)} as fast, so it is these products' sizes that do not gain"
    yield Reason(
        rule="no gain from products",
        sentence=(f"the step's products, each alone, {takes} {how} in {compute} as in fp32: {why}"),
    )


def _no_matrix_units(_baseline: Step, arm: Step) -> Iterator[Reason]:
    if not arm.runs_on_gpu or arm.share(*PRODUCTS) < MATTERS or arm.ms["matrix units"] > 0 or _is_fp32(arm):
        return
    yield Reason(
        rule="no matrix units",
        sentence=f"none of its products ran on matrix units, which are {_percent(arm.share(*PRODUCTS))} of the step",
    )


def _casting(baseline: Step, arm: Step) -> Iterator[Reason]:
    added = _added_casts_ms(baseline, arm) / arm.profiled_ms
    if added >= CASTING and not _is(_launching, arm):  # many small ones cost what calling them does
        yield Reason(
            rule="casts",
            sentence=f"casts and changes of layout that it adds take {_percent(added)} of its step",
        )


def _optimizing(_baseline: Step, arm: Step) -> Iterator[Reason]:
    if (share := arm.share("optimizer")) >= OPTIMIZING:
        also = ", in fp32 in either precision" if _updates_fp32(arm) else ""
        yield Reason(
            rule="optimizer-bound",
            sentence=f"the optimizer takes {_percent(share)} of the step{also}",
            techniques=("fused-optimizer",),
        )


def _scaling(baseline: Step, arm: Step) -> Iterator[Reason]:
    precision = find_precision(arm.precision)
    if precision is None or not precision.loss_scaling:
        return
    # In ms: the same wait is a larger share of a shorter step.
    own, waiting = arm.share("loss scaling"), max(0.0, arm.ms["idle"] - baseline.ms["idle"]) / arm.profiled_ms
    if own + waiting >= SCALING and not _is(_launching, arm):
        yield Reason(
            rule="loss scaling",
            sentence=(
                f"loss scaling takes {_percent(own)} of the step, and the time in which nothing runs grew by "
                f"{_percent(waiting)} of it: each step asks whether gradients overflowed"
            ),
        )


def _skipping(_baseline: Step, arm: Step) -> Iterator[Reason]:
    skipped = arm.value("step", "skipped")
    if skipped is not None and skipped >= SKIPPED_PCT:
        yield Reason(
            rule="skipped steps",
            sentence=f"{number(skipped, 2)} % of the steps were skipped, for their gradients overflowed",
        )


def _communicating(_baseline: Step, arm: Step) -> Iterator[Reason]:
    if (share := arm.share("communication")) >= COMMUNICATING:
        yield Reason(
            rule="communication",
            sentence=f"communication that nothing else overlaps takes {_percent(share)} of the step",
        )


def _copying(_baseline: Step, arm: Step) -> Iterator[Reason]:
    if (share := arm.share("copies")) >= COPYING:
        yield Reason(rule="copies", sentence=f"copies between host and device take {_percent(share)} of the step")


def _loading(_baseline: Step, arm: Step) -> Iterator[Reason]:
    waiting = arm.value("step", "waiting")
    if waiting is not None and waiting >= WAITING_PCT:
        yield Reason(rule="loader", sentence=f"training waits for batches {number(waiting, 2)} % of its time")


def _missing(_baseline: Step, arm: Step) -> Iterator[Reason]:
    rows = arm.of("types", "float32")
    precision = find_precision(arm.precision)
    if rows.empty or _is_fp32(arm) or precision is None:
        return
    share, where = float(rows["value"].iloc[0]), str(rows["detail"].iloc[0])
    if share >= MISSED_PCT:
        modules = f", in {where}" if where else ""
        yield Reason(
            rule="autocast missed",
            sentence=f"{number(share, 2)} % of its FLOPs were computed in fp32{modules}: autocast did not reach them",
        )


def _misaligned(_baseline: Step, arm: Step) -> Iterator[Reason]:
    rows = arm.of("padded")
    rows = rows[rows["value"] <= PADDED]
    if rows.empty:
        return
    best = rows.sort_values("value").iloc[0]
    yield Reason(
        rule="misaligned",
        sentence=(
            f"{best['name']}, {_percent(float(best['count']))} of the FLOPs{_in(best['detail'])}, takes "
            f"{_percent(1 - float(best['value']))} less time with its sizes padded to multiples of 64"
        ),
    )


def _layout(_baseline: Step, arm: Step) -> Iterator[Reason]:
    rows = arm.of("channels-last")
    rows = rows[rows["value"] <= TURNED]
    if rows.empty:
        return
    best = rows.sort_values("count").iloc[-1]
    yield Reason(
        rule="layout",
        sentence=(
            f"the convolution{_in(best['detail'])}, {_percent(float(best['count']))} of the FLOPs, takes "
            f"{_percent(1 - float(best['value']))} less time with channels last"
        ),
        techniques=("channels-last",),
    )


def _small_products(baseline: Step, _arm: Step) -> Iterator[Reason]:
    peak, flops = baseline.value("rate", "products TFLOP/s"), baseline.of("flops")["value"].sum()
    alone_ms = baseline.total("best")
    if not peak or not alone_ms or baseline.share(*PRODUCTS) < MATTERS or _is(_launching, baseline):
        return
    reached = flops / (alone_ms / 1e3) / 1e12 / peak
    if reached < SMALL:
        yield Reason(
            rule="small products",
            sentence=(
                f"fp32's products, alone, reach {_percent(float(reached))} of this device's rate of large ones: they "
                "are too small to be limited by arithmetic"
            ),
        )


def _is(rule: Callable[[Step, Step], Iterator[Reason]], step: Step) -> bool:
    return any(True for _ in rule(step, step))


def _is_fp32(step: Step) -> bool:
    precision = find_precision(step.precision)
    return precision is not None and precision.compute == "float32"


def _updates_fp32(step: Step) -> bool:
    precision = find_precision(step.precision)
    return precision is None or precision.weights is None or precision.master


def _compute(step: Step) -> str:
    precision = find_precision(step.precision)
    return precision.compute if precision is not None else step.precision


def _in(module: object) -> str:
    return f" in {module}" if module else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


RULES: tuple[Rule, ...] = (
    _launching,
    _no_gain,
    _no_matrix_units,
    _missing,
    _memory_bound,
    _casting,
    _optimizing,
    _scaling,
    _skipping,
    _communicating,
    _copying,
    _loading,
    _misaligned,
    _layout,
    _small_products,
)
