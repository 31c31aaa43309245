"""Figures as text, with a dash for what is unknown, and the rows of a frame as dicts."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.spec.precisions import find_precision

if TYPE_CHECKING:
    from bench.spec.metric import Metric
    from bench.stats import Interval

UNKNOWN = "–"
MIB = 2**20
GIB = 2**30
# A ratio whose interval's half width is a larger share of it has two decimals, others have three:
# of 2.314 ± 3 % the last digit would mean nothing.
WIDE = 0.03
# More names than this are counted, not listed, to keep a sentence short.
NAMED = 4


def known(value: Any) -> bool:
    """Return whether there is a value: not NaN or None."""
    return not pd.isna(value)


def number(value: float, digits: int = 4) -> str:
    """Write a figure with ``digits`` significant digits and thousands apart: 12,345 or 1.234."""
    if not known(value):
        return UNKNOWN
    text = f"{value:.{digits - 1}e}"
    # The exponent after rounding, for 0.998 of two digits is 1.0; infinity has none.
    exponent = int(text.partition("e")[2] or 0)
    # As Python's own format g, smaller figures stay in powers of ten.
    if exponent >= -4:
        decimals = max(0, digits - 1 - exponent)
        text = f"{value:,.{decimals}f}"
    return with_minus(text)


def error(value: float) -> str:
    """Write a relative error with two digits: 1.5e−7 or 0.069."""
    if not known(value):
        return UNKNOWN
    # Without the zero of Python's e-07.
    if 0 < abs(value) < 1e-3:
        return with_minus(f"{value:.1e}".replace("e-0", "e-"))
    return with_minus(f"{value:.2g}")


def with_minus(text: str) -> str:
    """Return a number with the sign that is as wide as a plus."""
    return text.replace("-", "−")


def source(data: str) -> str:
    """Name where samples came from; of a folder its name, not its path."""
    kind, colon, path = data.partition(":")
    if not colon:
        return data
    return f"{kind} {PurePath(path).name}"


def signed(value: float, decimals: int = 2) -> str:
    """Write a difference with its sign: +0.12 or −0.12."""
    if not known(value):
        return UNKNOWN
    # Adding 0 turns a negative zero, which rounding can leave, into a positive one.
    rounded = round(value, decimals) + 0.0
    return with_minus(f"{rounded:+.{decimals}f}")


def ratio(center: float, low: float | None = None, high: float | None = None) -> str:
    """Write a ratio and its interval: 2.31 [2.28, 2.34]."""
    if not known(center):
        return UNKNOWN
    if low is None or high is None or math.isnan(low):
        return _decimal(center, 3)
    decimals = 2 if half(low, high) > WIDE else 3
    of_center, of_low, of_high = (_decimal(value, decimals) for value in (center, low, high))
    return f"{of_center} [{of_low}, {of_high}]"


def estimate(interval: Interval) -> str:
    """Write an estimated ratio and its interval."""
    return ratio(*interval.ends)


def written(metric: Metric, change: Sequence[Any], unit: str = "") -> str:
    """Write a change in a metric: a ratio, or +0.12 points [−0.1, +0.3].

    ``change`` is the estimate and the ends of its interval, which are unknown where it has none.
    """
    if metric.scale == "ratio":
        return ratio(*change)
    center, low, high = (signed(value, metric.decimals) for value in change)
    text = f"{center} {unit}".rstrip()
    if known(change[1]):
        text += f" [{low}, {high}]"
    return text


def _decimal(value: float, decimals: int) -> str:
    if 0.1 <= value < 10:
        return f"{value:.{decimals}f}"
    # A small ratio has significant digits instead of decimals, and a large one its tens besides.
    digits = decimals if value < 10 else decimals + 1
    return number(value, digits)


def times(center: float, low: float | None = None, high: float | None = None) -> str:
    """Write a speedup with the digits that its interval bears: 3.16×, or 11× slower."""
    if not known(center):
        return UNKNOWN
    is_wide = False
    if low is not None and high is not None:
        is_wide = half(low, high) > WIDE
    digits = 2 if is_wide else 3
    # "0.09×" is harder to grasp than "11× slower".
    if center < 0.5:
        return f"{number(1 / center, digits)}× slower"
    if is_wide and center < 10:
        return f"{center:.2f}×"
    return f"{number(center, digits)}×"


def spread(low: float, high: float) -> str:
    """Write half the width of a ratio's interval as a share of the ratio: ±8 %."""
    percent = 100 * half(low, high)
    # ±0 % would claim that there is no uncertainty.
    decimals = 0 if percent >= 0.95 else 1
    return f"±{percent:.{decimals}f} %"


def half(low: float, high: float) -> float:
    """Return half the width of a ratio's interval as a share of it; infinite from 0 or NaN on."""
    if low > 0:
        return math.sqrt(high / low) - 1
    return math.inf


def change(share: float) -> str:
    """Write a change relative to the baseline: −41 % or +0.3 %."""
    if not known(share):
        return UNKNOWN
    percent = 100 * share
    # Two digits: −41 % or −4.1 %.
    decimals = 0 if abs(percent) >= 9.5 else 1
    return f"{signed(percent, decimals)} %"


def percent(share: float) -> str:
    """Write a share of 1 in per cent, without decimals: 8 %."""
    return f"{100 * share:.0f} %"


def memory_unit(largest_bytes: float) -> tuple[str, int]:
    """Choose a column's unit by its largest value: its name and its bytes."""
    # Below 10 GiB, three digits of GiB would hide changes of some MiB.
    if largest_bytes >= 10 * GIB:
        return "GiB", GIB
    return "MiB", MIB


def processes(count: int) -> str:
    """Say in how many fresh processes something was measured."""
    return "one process" if count == 1 else f"{count} processes"


def counted(count: float, what: str) -> str:
    """Write a number of things: 1 seed or 5 seeds."""
    plural = "" if count == 1 else "s"
    return f"{count:.0f} {what}{plural}"


def enumerated(names: Iterable[str]) -> str:
    """List names in a sentence: a, b and c; of more than four three, and how many more."""
    names = list(names)
    if len(names) > NAMED:
        listed = names[: NAMED - 1]
        names = [*listed, f"{len(names) - len(listed)} more"]
    *others, last = names
    if not others:
        return last
    return f"{', '.join(others)} and {last}"


def capital(sentence: str) -> str:
    """Begin a sentence with a capital, unless its first word is a precision's name."""
    # A possessive such as fp32's names a precision, too.
    before_apostrophe, _, _ = sentence.partition("'")
    word, *_ = before_apostrophe.split(maxsplit=1)
    if find_precision(word):
        return sentence
    return sentence[0].upper() + sentence[1:]


def at_batch(row: Mapping[Any, Any], before: str = ", batch ") -> str:
    """Write a row's batch size after some words; nothing of a script, which does not tell it."""
    size = row["batch_size"]
    if row.get("data") == "script" or not known(size):
        return ""
    return f"{before}{size:.0f}"


def titled(name: object, *more: object) -> str:
    """Write a name with what tells it from others: mlp (width=64, channels-last)."""
    parts = ", ".join(str(part) for part in more if part)
    if not parts:
        return str(name)
    return f"{name} ({parts})"


def records(frame: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Return the rows of a frame as dicts."""
    return frame.to_dict("records")
