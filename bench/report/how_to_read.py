"""How to read a report, in short."""

from __future__ import annotations

from bench.report.reading.load import Runs

RESIDENT = (
    "Steps are timed on data already on the device. Time per epoch includes loading data; where it gains less "
    "than the step does, look at the time spent waiting for data."
)
LOADED = (
    "An ablation's steps are timed with the loader that feeds them: the step and the time per epoch include loading "
    "data."
)
LINES = (
    "A speedup is fp32's step time divided by the other precision's: 2 is twice as fast, below 1 is slower. For "
    "precisions timed side by side it is a trimmed mean over their ABBA rounds, and step (ms) is a median over blocks, "
    "so the ratio of two steps differs from the speedup by chance. Intervals are 95 % over fresh processes. With "
    '"one process", an interval holds within that process only; another process may land outside it.',
    "FASTER and SLOWER: the whole interval lies further from 1 than the A/A noise, which is how far fp32 measured "
    "against itself was from 1 on this machine (1 % where that was not measured). SAME: the interval lies within 1 %. "
    "INCONCLUSIVE: none of these.",
    RESIDENT,
    LOADED,
    "Peak memory is the steady peak of tensors on a GPU and of resident memory on a CPU, with one precision "
    "alone in its process.",
    "In a matrix of setups each figure says how many times as fast the row is as the column. Between devices the "
    "interval is that of these very boards; another board of the same name may differ by more.",
    '"–": not measured. A word such as oom, unsupported, nonfinite, invalid, timeout or failed replaces '
    "a figure that could not be measured; the notes say why.",
    "A verdict on parity of accuracy needs at least 5 seeds: two runs that differ only in their seed differ "
    "by some tenths of a point, too.",
)


def how_to_read(runs: Runs) -> list[str]:
    """Return how to read a report of these runs, without the lines on measurements that they do not have."""
    only_ablations = not runs.ablations.empty and runs.trials["phase"].eq("train").all()
    left_out = [RESIDENT] if only_ablations else [LOADED] if runs.ablations.empty else []
    return [line for line in LINES if line not in left_out]
