"""Peak memory of a training step, and its bytes by kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from bench.results.records import SignedBytes, TrialResult
from bench.spec.metric import Metric
from bench.spec.phase import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPeak:
    """Peak memory of training alone in its process."""

    first_peak_bytes: SignedBytes | None = None
    """Peak during the first step, when libraries try their workspaces: allocated on a GPU, resident
    on a CPU."""
    peak_allocated_bytes: int | None = None
    """GPU: steady peak of bytes in tensors; the memory that reports show."""
    peak_reserved_bytes: int | None = None
    """GPU: steady peak of bytes that the allocator held."""
    driver_used_bytes: SignedBytes | None = None
    """GPU: bytes that the driver says this process holds, its context included; where it does not
    tell processes apart, bytes in use less those before the context."""
    gpu_used_bytes: int | None = None
    """GPU: bytes in use on the whole GPU then, by all processes, as nvidia-smi and gpustat show
    it."""
    peak_resident_bytes: SignedBytes | None = None
    """CPU: peak resident set of the process above what it was before the model; the memory that
    reports show, with the libraries' code loaded beforehand."""
    model_bytes: int | None = None
    """Bytes of parameters and buffers."""
    tracked_peak_bytes: int | None = None
    """The most that tensors held at once during a steady step, counted tensor by tensor on any
    device; the five kinds below are of that moment and add up to it."""
    parameter_bytes: int | None = None
    """Parameters, the fp32 master copy of 16-bit ones included, and buffers."""
    gradient_bytes: int | None = None
    """Gradients of parameters."""
    optimizer_bytes: int | None = None
    """The optimizer's state."""
    activation_bytes: int | None = None
    """Tensors that the forward pass keeps for the backward pass, the 16-bit copies of weights that
    autocast caches included."""
    temporary_bytes: int | None = None
    """Everything else, the batches included."""
    all_devices_bytes: int | None = None
    """Several devices: the sum of their peaks; the other figures of memory are the largest
    device's."""

    @property
    def headline_bytes(self) -> int | None:
        """The figure that tables show: steady peak, allocated on a GPU, resident on a CPU."""
        if self.peak_allocated_bytes is None:
            return self.peak_resident_bytes
        return self.peak_allocated_bytes

    @classmethod
    def of_all(cls, peaks: Sequence[MemoryPeak]) -> MemoryPeak:
        """Return the peak of devices, or of nodes, that train together.

        The sum is unknown where one's peak is.
        """
        largest = {}
        for field in fields(cls):
            values = [getattr(peak, field.name) for peak in peaks]
            known = [value for value in values if value is not None]
            largest[field.name] = max(known, default=None)
        # Of peaks that are partly sums, of nodes with several devices, the sums count.
        together: int | None = 0
        for peak in peaks:
            size = peak.headline_bytes if peak.all_devices_bytes is None else peak.all_devices_bytes
            together = None if together is None or size is None else together + size
        largest["all_devices_bytes"] = together
        return cls(**largest)


def describe(result: TrialResult) -> str:
    """Return an arm's line on the terminal."""
    peak = result.row.headline_bytes
    line = "peak unknown"
    if peak is not None:
        # Of a small model whole MiB would be a digit, or none.
        mib = peak / 2**20
        line = f"peak {mib:.2g} MiB" if 0 < mib < 10 else f"peak {mib:,.0f} MiB"
    return "; ".join(filter(None, (line, result.detail)))


METRICS = (
    Metric(
        name="memory",
        phase="memory",
        place=4,
        label="peak memory",
        unit="bytes",
        about="Steady peak: allocated on a GPU, resident on a CPU.",
        columns=("peak_allocated_bytes", "peak_resident_bytes"),
        replicate="once",
        # Peaks of two processes with the same model differ by up to this (docs/measuring.md).
        cpu_resolution=5 * 2**20,
        fewest=1,
        shown_as="share",
        figure="peak_memory_bytes",
        change="memory_change_ratio",
        tabled=True,
    ),
)
PHASE = Phase(
    name="memory",
    order=20,
    summary="peak memory of a training step, and its bytes by kind of tensor",
    row=MemoryPeak,
    metrics=METRICS,
    summarised={"all_devices_bytes": "max"},
    describe=describe,
    key="replicate",
    processes_on_gpu=2,  # cuDNN may choose another workspace in each process
    default=True,
    finds_unfit=True,
    joint=True,
    estimate=lambda work: 10 * work.step_s,  # seven steps, in memory that is new to the process
)
