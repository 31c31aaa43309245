"""Why a precision gains nothing, or less than the device offers: in one sentence, from what was measured."""

from __future__ import annotations

import pandas as pd

from bench.precision_names import find
from bench.report.format import known, number, ratio

LITTLE_GAIN = 1.1
"""Ratio of two precisions' rates of large matrix products below which the device has no gain to give."""
LAUNCH_BOUND = 0.8
"""Host time over GPU time from which launching kernels is what limits."""
LITTLE_OF_CEILING = 25.0
"""Share of the ceiling, in per cent, below which arithmetic is not what limits."""


def reason(arm: pd.Series, baseline: pd.Series | None) -> str:
    """Say why an arm gains nothing; empty where nothing measured tells.

    Args:
        arm: the arm's row of the summary.
        baseline: fp32's row of the same cell.
    """
    name, computed = arm["precision"], arm["compute_dtypes"]
    precision = find(name)
    wanted = precision.autocast if precision and not precision.float8 else None
    if wanted and known(computed) and computed and wanted not in computed:
        return f"autocast did not reach the model, whose products ran in {computed}"
    if baseline is None:
        return ""
    if known(arm["host_ratio"]) and arm["host_ratio"] >= LAUNCH_BOUND:
        return (
            f"launching kernels limits it, not arithmetic (the host takes {number(arm['host_ratio'], 2)} of the GPU's "
            "time; try larger batches)"
        )
    gain = float(arm["peak_tflops"] / baseline["peak_tflops"])
    if known(gain) and gain < LITTLE_GAIN:
        return f"large matrix products run at {ratio(gain)}× fp32's rate here, so the device has no gain to give"
    if known(baseline["pct_of_peak"]) and baseline["pct_of_peak"] < LITTLE_OF_CEILING:
        return (
            f"fp32 reaches {number(baseline['pct_of_peak'], 2)} % of this device's rate of large matrix products, "
            "so memory traffic or overhead limits it, not arithmetic"
        )
    return ""
