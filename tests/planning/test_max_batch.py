"""The search for the largest batch, with attempts that answer by a rule."""

from dataclasses import replace

import pytest

from bench.devices.cpu import available_bytes
from bench.phases.fit import Fit, largest
from bench.planning.batch_sizes import common_multiple
from bench.results.records import Device, TrialResult

MIB = 2**20


def search(
    trial, most, *, on_gpu=True, free=2**40, fixed_bytes=0, wall_s=0.0, other="oom", multiple=1
):
    """Search where batches up to ``most`` fit; return size, result and the sizes tried."""
    tried = []

    def attempt(candidate):
        size = candidate.cell.batch_size
        tried.append(size)
        if size > most:
            return TrialResult(arm="fp32", status=other, detail="too big")
        fit = Fit(fit_peak_bytes=fixed_bytes + MIB * size, fit_free_bytes=free)
        return TrialResult(arm="fp32", status="ok", row=fit, wall_s=wall_s * size)

    device = Device(placement="0", kind="cuda" if on_gpu else "cpu", name="", architecture="")
    size, result = largest.search(trial, device, attempt, multiple)
    return size, result, tried


@pytest.mark.parametrize("most", [1, 2, 7, 31, 32, 100, 127, 128, 129, 4097, 65_536])
@pytest.mark.parametrize(
    ("start", "parts", "multiple"), [(4, 1, 1), (64, 3, 1), (64, 10, 1), (4, 2, 16), (50, 2, 16)]
)
def test_the_size_found_fits_and_a_sixteenth_more_does_not_in_multiples_of_the_parts(
    tiny_trial, most, start, parts, multiple
):
    cell = replace(tiny_trial.cell, techniques=(f"grad-accumulation={parts}",), batch_size=start)
    size, result, tried = search(replace(tiny_trial, cell=cell), most, multiple=multiple)
    unit = parts * multiple
    assert {each % unit for each in tried} == {0}
    assert "too big" in result.detail
    if most < unit:
        assert (size, result.status) == (unit, "oom")
    else:
        assert size <= most <= size + max(unit, size // 16)
        assert result.row.fit_bound == "memory"
        assert f"{size} fits" in result.detail


@pytest.mark.parametrize(
    ("precisions", "rows", "multiple"),
    [
        (("fp32", "amp-bf16"), 1, 1),
        (("fp32", "fp8-rowwise", "fp8-tensorwise"), 1, 16),
        (("fp8-rowwise",), 8, 2),
        (("fp8-rowwise",), 64, 1),
        (("fp8-rowwise",), 197, 16),
    ],
)
def test_all_that_is_compared_can_be_trained_at_common_multiples(precisions, rows, multiple):
    assert common_multiple(precisions, rows) == multiple


@pytest.mark.parametrize(("other", "sizes"), [("oom", [4, 2, 1]), ("failed", [4])])
def test_where_no_sample_fits_the_row_says_so_and_what_fails_otherwise_is_not_tried_smaller(
    tiny_trial, other, sizes
):
    size, result, tried = search(tiny_trial, 0, other=other)
    assert (size, result.status, tried) == (sizes[-1], other, sizes)
    _, result, _ = search(tiny_trial, 40, other=other)
    assert (result.status, result.row.fit_bound) == ("ok", "memory" if other == "oom" else "error")


def test_on_a_cpu_nothing_is_tried_that_would_not_leave_a_fifth_of_memory(tiny_trial):
    free = 1000 * MIB
    size, result, tried = search(tiny_trial, 10**9, on_gpu=False, free=free, fixed_bytes=200 * MIB)
    assert 600 - 600 // 16 - 8 < size == max(tried) <= 600
    assert result.row.fit_bound == "predicted memory"
    _, on_gpu, _ = search(tiny_trial, 4096, free=free)
    assert on_gpu.row.fit_bound == "memory"  # a GPU says itself when it is full


@pytest.mark.parametrize(("on_gpu", "wall_s", "most"), [(False, 0.05, 128), (True, 1.0, 64)])
def test_steps_that_would_take_too_long_end_the_search(tiny_trial, on_gpu, wall_s, most):
    size, result, tried = search(tiny_trial, 10**9, on_gpu=on_gpu, wall_s=wall_s)
    assert (size, max(tried), result.row.fit_bound) == (most, most, "time")


@pytest.mark.parametrize(("limit", "is_less"), [("5000000\n", True), ("max\n", False)])
def test_a_containers_limit_counts_where_it_is_less_than_the_machines(tmp_path, limit, is_less):
    most, used = tmp_path / "max", tmp_path / "current"
    most.write_text(limit)
    used.write_text("1000000\n")
    assert (available_bytes(((str(most), str(used)),)) == 4_000_000) == is_less
