"""The arms of a trial from their names."""

from bench.spec.techniques import ArmSpec


def arm(name: str) -> ArmSpec:
    """Return the arm of a name as in CSVs: fp32, amp-bf16+set-to-none."""
    precision, *techniques = name.split("+")
    return ArmSpec(precision=precision, techniques=tuple(techniques))


def arms(*names: str) -> tuple[ArmSpec, ...]:
    """Return the arms of some names."""
    return tuple(map(arm, names))
