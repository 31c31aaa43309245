"""The arms of a trial from their names."""

from bench.spec.techniques import TECHNIQUES, ArmSpec


def arm(name: str) -> ArmSpec:
    """Return the arm of a name as in CSVs: fp32, amp-bf16+set-to-none."""
    precision, *names = name.split("+")
    assert all(word.partition("=")[0] in TECHNIQUES for word in names)
    return ArmSpec(precision=precision, techniques=tuple(names))


def arms(*names: str) -> tuple[ArmSpec, ...]:
    """Return the arms of some names."""
    return tuple(map(arm, names))
