"""The search for the largest batch, with attempts that answer by a rule."""

from dataclasses import replace

import pytest

from bench.devices.cpu import available_bytes
from bench.phases.fit import Fit, largest
from bench.planning.batch_sizes import common_multiple
from bench.results.records import Device, TrialResult

MIB = 2**20
FIXED_BYTES = 200 * MIB
"""The peak of a batch without samples, each of which adds a MiB."""
FREE_BYTES = 1000 * MIB


def search(trial, most, *, kind="cuda", wall_s=0.0, other="oom", multiple=1):
    """Search where batches up to ``most`` fit; return size, result and the sizes tried."""
    tried = []

    def attempt(candidate):
        size = candidate.cell.batch_size
        tried.append(size)
        if size > most:
            return TrialResult(arm="fp32", status=other, detail="too big")
        fit = Fit(fit_peak_bytes=FIXED_BYTES + MIB * size, fit_free_bytes=FREE_BYTES)
        return TrialResult(arm="fp32", status="ok", row=fit, wall_s=wall_s * size)

    device = Device(placement="0", kind=kind, name="", architecture="")
    size, result = largest.search(trial, device, attempt, multiple)
    return size, result, tried


@pytest.mark.parametrize("most", [1, 7, 31, 127, 128, 129, 65_536])
@pytest.mark.parametrize(
    ("start", "parts", "multiple"),
    [
        (4, 1, 1),
        (64, 3, 1),
        (50, 2, 16),
    ],
)
def test_the_size_found_fits_and_a_sixteenth_more_does_not_in_multiples_of_the_parts(
    tiny_trial, most, start, parts, multiple
):
    techniques = (f"grad-accumulation={parts}",)
    cell = replace(tiny_trial.cell, techniques=techniques, batch_size=start)
    trial = replace(tiny_trial, cell=cell)
    size, result, tried = search(trial, most, multiple=multiple)
    unit = parts * multiple
    for each in tried:
        assert each % unit == 0
    assert "too big" in result.detail
    if most < unit:
        assert size == unit
        assert result.status == "oom"
    else:
        assert size <= most <= size + max(unit, size // 16)
        assert result.row.fit_bound == "memory"  # a GPU says itself when it is full
        assert f"{size} fits" in result.detail


@pytest.mark.parametrize(
    ("precisions", "rows", "multiple"),
    [
        (("fp32", "amp-bf16"), 1, 1),
        (("fp32", "fp8-rowwise", "fp8-tensorwise"), 1, 16),
        (("fp8-rowwise",), 8, 2),
        (("fp8-rowwise",), 197, 16),
    ],
)
def test_all_that_is_compared_can_be_trained_at_common_multiples(precisions, rows, multiple):
    assert common_multiple(precisions, rows) == multiple


@pytest.mark.parametrize(
    ("other", "sizes", "bound"),
    [
        ("oom", [4, 2, 1], "memory"),
        ("failed", [4], "error"),
    ],
)
def test_where_no_sample_fits_the_row_says_so_and_what_fails_otherwise_is_not_tried_smaller(
    tiny_trial, other, sizes, bound
):
    size, result, tried = search(tiny_trial, 0, other=other)
    assert size == sizes[-1]
    assert result.status == other
    assert tried == sizes
    _, result, _ = search(tiny_trial, 40, other=other)
    assert result.status == "ok"
    assert result.row.fit_bound == bound


def test_on_a_cpu_nothing_is_tried_that_would_not_leave_a_fifth_of_memory(tiny_trial):
    size, result, tried = search(tiny_trial, 10**9, kind="cpu")
    assert size == max(tried)
    assert 555 <= size <= 600  # at most a sixteenth, and a multiple of 8, below
    assert result.row.fit_bound == "predicted memory"


@pytest.mark.parametrize(
    ("kind", "wall_s", "most"),
    [
        ("cpu", 0.05, 128),
        ("cuda", 1.0, 64),
    ],
)
def test_steps_that_would_take_too_long_end_the_search(tiny_trial, kind, wall_s, most):
    size, result, tried = search(tiny_trial, 10**9, kind=kind, wall_s=wall_s)
    assert size == max(tried) == most
    assert result.row.fit_bound == "time"


@pytest.mark.parametrize(("limit", "is_less"), [("5000000\n", True), ("max\n", False)])
def test_a_containers_limit_counts_where_it_is_less_than_the_machines(tmp_path, limit, is_less):
    most = tmp_path / "max"
    most.write_text(limit)
    used = tmp_path / "current"
    used.write_text("1000000\n")
    available = available_bytes([(str(most), str(used))])
    assert (available == 4_000_000) == is_less
