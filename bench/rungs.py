"""The ladder: techniques one on top of the other, in the order in which a training loop is usually made faster."""

from __future__ import annotations

from dataclasses import dataclass

from bench.precision_names import base
from bench.spec import BASELINE
from bench.technique_names import TECHNIQUES, Techniques, refusal, techniques

FIXED = ("set-to-none", "non-blocking", "prefetcher")
"""The rungs above mixed precision that every ladder has."""
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


def build_ladder(mixed: str, kind: str, more: tuple[str, ...] = ()) -> Ladder:
    """Return the ladder from fp32 over a mixed precision to all techniques.

    Args:
        mixed: the mixed precision.
        kind: the kind of device, cuda or cpu.
        more: canonical names of techniques to put on top.
    """
    rungs, missing = [Rung(precision=BASELINE), Rung(precision=mixed)], []
    for technique in (*FIXED, *(name for name in more if name not in FIXED)):
        rung = Rung(precision=mixed, techniques=(*rungs[-1].techniques, technique))
        reason = refusal(rung.techniques, kind, "ladder")
        if reason is None:
            rungs.append(rung)
        else:
            missing.append((rung, reason))
    return Ladder(rungs=tuple(rungs), missing=tuple(missing))


def choose_mixed(named: tuple[str, ...] | None, unsupported: dict[str, str]) -> str:
    """Return the mixed precision of the ladder: the first named that is none of fp32's kind, else by device.

    Args:
        named: what ``--precisions`` named.
        unsupported: the precisions that the device cannot do.
    """
    mixed = [name for name in named or () if base(name) not in (BASELINE, "tf32")]
    if mixed:
        return mixed[0]
    return "amp-bf16" if "amp-bf16" not in unsupported else "amp-fp16"
