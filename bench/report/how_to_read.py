"""How to read a report, in short."""

from __future__ import annotations

from bench.report.reading.load import Runs

RESIDENT = (
    "Steps are timed on data already on the device. Time per epoch includes loading data; where it gains less "
    "than the step does, look at the time spent waiting for data."
)
FED = "A ladder's steps are timed with the loader that feeds them: they and its time per epoch include loading data."
READING = (
    "A speedup is fp32's step time over the arm's: 2 is twice as fast, below 1 is slower. Of precisions timed side by "
    "side it is a trimmed mean over their quads, and step (ms) is a median over blocks, so the ratio of two steps "
    'differs from it by chance. The interval is a 95 % interval over fresh processes; with "one process" it holds '
    "within that process only, and another process may land outside it.",
    "FASTER and SLOWER mean that the whole interval lies further from 1 than the floor, which is how far fp32 was "
    "from itself on this machine (1 % where that was not measured); SAME that it lies within 1 %; "
    "INCONCLUSIVE that the measurement does not say.",
    RESIDENT,
    FED,
    "Peak memory is the steady peak of tensors on a GPU, and of resident memory on a CPU, with one precision "
    "alone in its process.",
    "A matrix of setups tells how many times as fast its row is as its column. Between devices the interval is of "
    "these very boards, and another of the same name may differ by more.",
    '"–" is not measured. A word such as oom, unsupported, nonfinite, invalid, timeout or failed stands where '
    "a figure would, and the notes say why.",
    "Accuracy needs at least 5 seeds for a verdict on parity: two runs that differ only in their seed differ "
    "by some tenths of a point too.",
)


def reading(runs: Runs) -> list[str]:
    """Return how to read a report of these runs: without what is said of measurements that they do not have."""
    resident = runs.ablations.empty or not runs.trials["phase"].eq("train").all()
    untrue = [] if resident else [RESIDENT]
    untrue += [FED] if runs.ablations.empty else []
    return [line for line in READING if line not in untrue]
