"""From a word to a precision: names, aliases, and options after a colon, as in ``amp-fp16:init_scale=1024``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from bench.spec.suite import PRECISIONS, Parameter, Precision, UsageError, nearest

SCALING = ("scale", "init_scale", "growth_factor", "backoff_factor", "growth_interval")


def precision(name: str) -> Precision:
    """Return the precision that ``name`` names, its options included.

    Its own name is the canonical one: the alias resolved, options in one order, those left out that say what holds
    anyway. So two names that mean the same are one arm.

    Raises:
        UsageError: there is no such precision, or it has no such option, or the option cannot be that.
    """
    return _parse(name.strip())


def find(name: str) -> Precision | None:
    """Return the precision that ``name`` names; None for one unknown here, as another version's may be."""
    try:
        return precision(name)
    except UsageError:
        return None


def parse_precision(word: str) -> str:
    """Return the canonical name of what ``word`` names.

    Raises:
        UsageError: it names nothing.
    """
    return precision(word).name


def base(name: str) -> str:
    """Return the name without its options: what a device can do, or cannot, depends on no option."""
    return name.partition(":")[0]


def precision_rank(name: str) -> tuple[int, str]:
    """Order precisions as the harness lists them, each followed by its variants; unknown ones come last, by name."""
    names = list(PRECISIONS)
    return (names.index(base(name)) if base(name) in names else len(names), name)


def split(text: str) -> list[str]:
    """Split a list of precisions at its commas, but for those between options: ``a:x=1,y=2,b`` is two words."""
    words: list[str] = []
    for part in text.split(","):
        if words and "=" in part and ":" not in part:
            words[-1] += f",{part.strip()}"
        else:
            words.append(part.strip())
    return words


def options(plain: Precision) -> tuple[str, ...]:
    """Return the names of the options that a precision has."""
    return (*(SCALING if plain.loss_scaling else ()), *(("cache",) if plain.autocast else ()))


@cache
def _parse(word: str) -> Precision:
    head, colon, tail = word.partition(":")
    plain = next((known for known in PRECISIONS.values() if head in (known.name, known.alias)), None)
    if plain is None:
        raise UsageError(
            f"There is no precision '{head}'.{nearest(head, PRECISIONS)} Available: {', '.join(PRECISIONS)}."
        )
    given = dict(_option(plain, part.strip()) for part in tail.split(",")) if colon else {}
    if given.get("scale") is not None and (other := next((name for name in given if name in SCALING[1:]), None)):
        raise UsageError(f"{plain.name}: a static scale does not change, so {other} has no meaning beside it.")
    changed = [name for name in options(plain) if name in given and given[name] != getattr(plain, name)]
    if not changed:
        return plain
    name = f"{plain.name}:{','.join(f'{option}={_text(given[option])}' for option in changed)}"
    return replace(plain, name=name, **given)  # type: ignore[arg-type]  # each has been converted to its field's type


def _option(plain: Precision, text: str) -> tuple[str, Parameter | None]:
    name, equals, value = (part.strip() for part in text.partition("="))
    known = options(plain)
    if not known:
        raise UsageError(f"{plain.name} has no options, so '{text}' means nothing.")
    if name not in known:
        raise UsageError(
            f"{plain.name} has no option '{name}'.{nearest(name, known)} It has: {', '.join(known)}, "
            f"given as {plain.name}:{known[0]}=VALUE."
        )
    allowed, convert = _CONVERTERS[name]
    try:
        if not equals:
            raise ValueError("no value")
        return name, convert(value)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{plain.name}: {name} must be {allowed}, not '{value}'.") from error


def _number(least: float, most: float) -> Callable[[str], float]:
    def convert(word: str) -> float:
        value = float(word)
        if not (math.isfinite(value) and least < value < most):
            raise ValueError(word)
        return value

    return convert


def _interval(word: str) -> int:
    value = int(word)
    if not 0 < value < 10**9:
        raise ValueError(word)
    return value


def _scale(word: str) -> float | None:
    return None if word == "dynamic" else _POSITIVE(word)


def _text(value: Parameter | None) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(int(value)) if isinstance(value, float) and value.is_integer() and value < 1e15 else str(value)


_POSITIVE = _number(0, 2.0**127)
"""What an fp32 scale may be."""
_CONVERTERS: dict[str, tuple[str, Callable[[str], Parameter | None]]] = {
    "scale": ("a number above 0, or dynamic", _scale),
    "init_scale": ("a number above 0", _POSITIVE),
    "growth_factor": ("a number above 1", _number(1, 2.0**127)),
    "backoff_factor": ("a number between 0 and 1", _number(0, 1)),
    "growth_interval": ("a whole number of steps above 0", _interval),
    "cache": ("on or off", {"on": True, "off": False}.__getitem__),
}
