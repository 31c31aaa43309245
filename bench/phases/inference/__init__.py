"""The forward pass in eval mode: time, latency, agreement with fp32."""

from __future__ import annotations

from dataclasses import dataclass

from bench.phases.speed import with_interval
from bench.results.records import Diverging, Positive, TrialResult
from bench.spec.phase import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """The forward pass in eval mode, compared with fp32's in the same process."""

    latency_p50_ms: float
    """Inference: median time of the forward pass of one sample in eval mode, waited for."""
    latency_p95_ms: float
    """95th percentile of the same."""
    inference_samples_per_s: Positive
    """Throughput of the forward pass at the batch size, on data already on the device."""
    inference_speedup: Positive | None
    """fp32's time over this precision's, in ABBA rounds within this process; empty for fp32."""
    inference_speedup_low: float | None
    """Lower end of its 95 % interval within this process."""
    inference_speedup_high: float | None
    """Upper end of that interval."""
    top1_agreement_pct: float | None
    """Share of random inputs, or of their tokens, for which the largest output is the same one as
    fp32's, with untrained weights unless the suite has others; empty for regression."""
    output_error: Diverging
    """Largest difference of an output from fp32's, over fp32's largest absolute output."""


def describe(result: TrialResult) -> str:
    """Return an arm's line on the terminal."""
    inference: Inference = result.row
    times = with_interval(
        inference.inference_speedup,
        inference.inference_speedup_low,
        inference.inference_speedup_high,
    )
    line = f"{result.arm} {inference.inference_samples_per_s:,.1f} samples/s{times}"
    line += f", one sample in {inference.latency_p50_ms:.3g} ms"
    if result.status == "unconverged":
        line += " (unconverged)"
    return line


PHASE = Phase(
    name="inference",
    order=100,
    summary="the forward pass in eval mode: time, latency, agreement with fp32",
    row=Inference,
    describe=describe,
    key="seed",
    trains=False,
    has_own_baseline=True,
    refuses={"cuda-graphs": "cuda-graphs captures the training step, and inference has none"},
    estimate=lambda work: 2 * (work.warm_up_s + work.budget_s),
)
