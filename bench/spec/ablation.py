"""The ladder: techniques one on top of the other, in the order in which a training loop is usually made faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.spec.errors import UsageError
from bench.spec.phases import LADDER
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.techniques import TECHNIQUES, Techniques, refusal, techniques

FIXED = ("set-to-none", "non-blocking", "prefetcher")
"""The rungs above mixed precision that every ladder has."""
ORDER = (*FIXED, *(name for name in TECHNIQUES if name not in FIXED))
"""Techniques in the order in which a ladder adds them."""
TF32 = "tf32"
"""A way to multiply fp32, and no mixed precision: no rung computes in it."""
ZEROED = Techniques(set_to_none=False)
"""What the first rungs do: gradients are zeroed, and batches are copied from pageable memory, waiting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One arm of the ladder."""

    precision: str
    techniques: tuple[str, ...] = ()
    """Canonical names, in the order in which they were added."""

    @property
    def name(self) -> str:
        """How CSVs call it: amp-bf16+set-to-none+prefetcher."""
        return "+".join((self.precision, *self.techniques))

    @property
    def added(self) -> str:
        """What it adds to the rung before, for a reader."""
        return f"+ {self.techniques[-1]}" if self.techniques else self.precision

    @property
    def number(self) -> int:
        """How many rungs it stands on: 0 for fp32."""
        return len(self.techniques) + (self.precision != BASELINE)

    @property
    def rank(self) -> int:
        """Where it comes among all rungs that a ladder may have, those that cannot be done among them."""
        if not self.techniques:
            return int(self.precision != BASELINE)
        return 2 + ORDER.index(self.techniques[-1].partition("=")[0])

    @property
    def below(self) -> Rung | None:
        """The rung that it stands on; None for fp32."""
        if self.techniques:
            return replace(self, techniques=self.techniques[:-1])
        return None if self.precision == BASELINE else Rung(precision=BASELINE)

    def on(self, below: Rung) -> Rung:
        """Return what adds the same to another rung than was planned; a precision stands by itself."""
        if not self.techniques:
            return self
        return replace(below, techniques=(*below.techniques, self.techniques[-1]))

    def without(self, broken: Sequence[Rung]) -> Rung:
        """Return this rung without what others add; without its precision it is on fp32, if that is not broken too."""
        left_out = {rung.techniques[-1] for rung in broken if rung.techniques}
        precisions = {rung.precision for rung in broken if not rung.techniques}
        lost = self.techniques and self.precision in precisions and BASELINE not in precisions
        left = tuple(name for name in self.techniques if name not in left_out)
        return Rung(precision=BASELINE if lost else self.precision, techniques=left)

    @property
    def chosen(self) -> Techniques:
        """What its arm is built with."""
        return techniques(self.techniques, ZEROED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """Rungs to climb, and those that this device cannot."""

    rungs: tuple[Rung, ...]
    missing: tuple[tuple[Rung, str], ...] = ()
    """Each with the reason; the rungs above stand on the last that could be done."""


def parse_rung(name: str) -> Rung:
    """Return the rung that a name of ``Rung.name`` names; a precision's options may hold a plus too."""
    parts = name.split("+")
    cut = len(parts)
    while cut > 1 and parts[cut - 1].partition("=")[0] in TECHNIQUES:
        cut -= 1
    return Rung(precision="+".join(parts[:cut]), techniques=tuple(parts[cut:]))


def stacked(planned: Iterable[Rung], works: Callable[[Rung], bool]) -> Iterator[Rung]:
    """Yield each rung as it stands: without what those before that do not work would have added.

    Args:
        planned: rungs from the lowest up.
        works: asked of each as it stands, once whoever takes it has asked for the next.
    """
    broken: list[Rung] = []
    for rung in planned:
        standing = rung.without(broken)
        yield standing
        if not works(standing):
            broken.append(standing)


def identity(phase: str, name: str) -> str:
    """Return what an arm is known by whatever it stands on: what a rung adds; a precision's name in other phases."""
    return parse_rung(name).added if phase in LADDER else name


def build_ladder(mixed: str, kind: str, more: tuple[str, ...] = (), *, unable: str | None = None) -> Ladder:
    """Return the ladder from fp32 over a mixed precision to all techniques.

    Args:
        mixed: the mixed precision; fp32 leaves that rung out.
        kind: the kind of device, cuda or cpu.
        more: canonical names of techniques to put on top.
        unable: why the device cannot do the mixed precision; its techniques then stand on fp32.
    """
    names = (*FIXED, *(name for name in more if name not in FIXED))
    additions = [Rung(precision=mixed)] if mixed != BASELINE else []
    additions += [Rung(precision=mixed, techniques=(name,)) for name in names]
    rungs, missing = [Rung(precision=BASELINE)], []
    for addition in additions:
        rung = addition.on(rungs[-1])
        reason = refusal(rung.techniques, kind, "ladder") if rung.techniques else unable
        if reason is None:
            rungs.append(rung)
        else:
            missing.append((rung, reason))
    return Ladder(rungs=tuple(rungs), missing=tuple(missing))


def named_mixed(named: tuple[str, ...]) -> str:
    """Return the only mixed precision that ``--precisions`` named; fp32, on which all techniques then stand, if none.

    Raises:
        UsageError: it named several, and a ladder has a rung for one.
    """
    mixed = [name for name in dict.fromkeys(named) if parse_precision(name).base not in (BASELINE, TF32)]
    if len(mixed) > 1:
        raise UsageError(f"A ladder climbs to one mixed precision: name one of {', '.join(mixed)} in --precisions.")
    return mixed[0] if mixed else BASELINE


def choose_mixed(named: tuple[str, ...] | None, unsupported: dict[str, str]) -> str:
    """Return the mixed precision of the ladder: ``named_mixed``, or by device where nothing was named.

    Args:
        named: what ``--precisions`` named.
        unsupported: the precisions that the device cannot do.

    Raises:
        UsageError: several were named.
    """
    if named:
        return named_mixed(named)
    return "amp-bf16" if "amp-bf16" not in unsupported else "amp-fp16"
