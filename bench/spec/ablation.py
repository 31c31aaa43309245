"""The ablation of ``--ladder``: techniques added one by one, in the order that usually makes a training loop faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.spec.errors import UsageError
from bench.spec.phases import LADDER
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.techniques import TECHNIQUES, Techniques, refusal, techniques

FIXED = ("set-to-none", "non-blocking", "prefetcher")
"""The techniques that every ablation adds to mixed precision."""
ORDER = (*FIXED, *(name for name in TECHNIQUES if name not in FIXED))
"""Techniques in the order in which they are added."""
TF32 = "tf32"
"""Changes how fp32 is multiplied and is no mixed precision, so it is no step."""
ZEROED = Techniques(set_to_none=False)
"""The first steps zero gradients and copy batches from pageable memory, blocking."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationStep:
    """One arm of the ablation."""

    precision: str
    techniques: tuple[str, ...] = ()
    """Canonical names, in the order in which they were added."""

    @property
    def name(self) -> str:
        """Its name in CSVs: amp-bf16+set-to-none+prefetcher."""
        return "+".join((self.precision, *self.techniques))

    @property
    def added(self) -> str:
        """What it adds to the step before, for a reader."""
        return f"+ {self.techniques[-1]}" if self.techniques else self.precision

    @property
    def number(self) -> int:
        """The number of steps before it: 0 for fp32."""
        return len(self.techniques) + (self.precision != BASELINE)

    @property
    def rank(self) -> int:
        """Its position among all steps that an ablation may have, unsupported ones included."""
        if not self.techniques:
            return int(self.precision != BASELINE)
        return 2 + ORDER.index(self.techniques[-1].partition("=")[0])

    @property
    def previous(self) -> AblationStep | None:
        """The step that it adds to; None for fp32."""
        if self.techniques:
            return replace(self, techniques=self.techniques[:-1])
        return None if self.precision == BASELINE else AblationStep(precision=BASELINE)

    def on(self, previous: AblationStep) -> AblationStep:
        """Return the step that adds the same technique to ``previous``; a precision without techniques is unchanged."""
        if not self.techniques:
            return self
        return replace(previous, techniques=(*previous.techniques, self.techniques[-1]))

    def without(self, failed: Sequence[AblationStep]) -> AblationStep:
        """Return this step without what failed steps add, on fp32 where its precision failed and fp32 did not."""
        left_out = {step.techniques[-1] for step in failed if step.techniques}
        precisions = {step.precision for step in failed if not step.techniques}
        lost = self.techniques and self.precision in precisions and BASELINE not in precisions
        left = tuple(name for name in self.techniques if name not in left_out)
        return AblationStep(precision=BASELINE if lost else self.precision, techniques=left)

    @property
    def settings(self) -> Techniques:
        """The techniques that its arm is built with."""
        return techniques(self.techniques, ZEROED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """The steps to measure, and those that this device does not support."""

    steps: tuple[AblationStep, ...]
    missing: tuple[tuple[AblationStep, str], ...] = ()
    """Each with the reason; later steps add to the last supported one."""


def parse_step(name: str) -> AblationStep:
    """Return the step of a name as ``AblationStep.name`` makes it; a precision's options may hold a plus too."""
    parts = name.split("+")
    cut = len(parts)
    while cut > 1 and parts[cut - 1].partition("=")[0] in TECHNIQUES:
        cut -= 1
    return AblationStep(precision="+".join(parts[:cut]), techniques=tuple(parts[cut:]))


def rebase(planned: Iterable[AblationStep], works: Callable[[AblationStep], bool]) -> Iterator[AblationStep]:
    """Yield each step without what failed steps before it would have added.

    Args:
        planned: steps in their order.
        works: whether a yielded step works; called after the consumer resumes the generator.
    """
    failed: list[AblationStep] = []
    for step in planned:
        rebased = step.without(failed)
        yield rebased
        if not works(rebased):
            failed.append(rebased)


def arm_of(phase: str, name: str) -> AblationStep:
    """Return the arm of a trial that a name stands for: in the ladder an ablation step, else a precision."""
    return parse_step(name) if phase in LADDER else AblationStep(precision=name)


def build_ablation(mixed: str, kind: str, more: tuple[str, ...] = (), *, unable: str | None = None) -> Ablation:
    """Return the ablation from fp32 over a mixed precision to all techniques.

    Args:
        mixed: the mixed precision; fp32 leaves that step out.
        kind: the kind of device.
        more: canonical names of techniques to add last.
        unable: why the device does not support the mixed precision; techniques are then added to fp32.
    """
    names = (*FIXED, *(name for name in more if name not in FIXED))
    additions = [AblationStep(precision=mixed)] if mixed != BASELINE else []
    additions += [AblationStep(precision=mixed, techniques=(name,)) for name in names]
    steps, missing = [AblationStep(precision=BASELINE)], []
    for addition in additions:
        step = addition.on(steps[-1])
        reason = refusal(step.techniques, kind, "ladder") if step.techniques else unable
        if reason is None:
            steps.append(step)
        else:
            missing.append((step, reason))
    return Ablation(steps=tuple(steps), missing=tuple(missing))


def named_mixed(named: tuple[str, ...]) -> str:
    """Return the only mixed precision that ``--precisions`` named; fp32 if it named none.

    Raises:
        UsageError: it named several.
    """
    mixed = [name for name in dict.fromkeys(named) if parse_precision(name).base not in (BASELINE, TF32)]
    if len(mixed) > 1:
        raise UsageError(f"A ladder climbs to one mixed precision: name one of {', '.join(mixed)} in --precisions.")
    return mixed[0] if mixed else BASELINE


def choose_mixed(named: tuple[str, ...] | None, unsupported: dict[str, str]) -> str:
    """Return the mixed precision of the ablation: the named one, or the device's default where nothing was named.

    Args:
        named: what ``--precisions`` named.
        unsupported: the precisions that the device does not support.

    Raises:
        UsageError: several were named.
    """
    if named:
        return named_mixed(named)
    return "amp-bf16" if "amp-bf16" not in unsupported else "amp-fp16"
