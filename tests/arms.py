"""The arms of a trial from their names."""

from bench.spec.ablation import AblationStep, parse_step


def arms(*names: str) -> tuple[AblationStep, ...]:
    """Return the arms with these names, as in CSVs: fp32, amp-bf16+set-to-none."""
    return tuple(map(parse_step, names))
