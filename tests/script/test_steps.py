"""Figures of a script's steps follow from recorded events: pauses, periods, waits, losses."""

import math
from itertools import accumulate

import pytest

from bench.script.steps import RefusedError, compared, order, timing

MS = 1e-3


def record(times_ms, *, marks=None, optimizers=None, backwards=None, **more):
    """Return a recorded process whose steps end after these times, the first of them right away."""
    optimizers = optimizers or [0] * len(times_ms)
    backwards = backwards or [1] * len(times_ms)
    steps = []
    for number, end_ms in enumerate(accumulate(times_ms)):
        step = {"s": end_ms * MS, "gpu_s": None, "loss": 2.0, "skipped": False, "data_s": None}
        step |= {"optimizer": optimizers[number], "backwards": backwards[number]}
        steps.append(step | {"marks": (marks or {}).get(number, [])})
    names = [f"Adam{number}" for number in sorted({*optimizers})]
    process = {"steps": steps, "start_s": 100.0, "optimizers": names, "computed": {"float32": 10}}
    return process | more


def test_a_step_is_the_mean_so_that_what_comes_in_bursts_counts():
    assert timing(record([10, *[10, 10, 10, 50] * 4]), 1).step_ms == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("times_ms", "warming", "steady"),
    [
        ([30.0] * 10 + [10.0] * 40, 10, True),
        ([10.0, 10.0, 10.0, 50.0] * 10, 0, True),
        ([10.0 + 2 * (number % 5) for number in range(50)], 0, True),
        ([30.0] * 30 + [10.0] * 20, 25, False),  # five slow steps are left
    ],
)
def test_steps_at_the_beginning_that_are_slower_than_what_follows_are_warm_up(
    times_ms, warming, steady
):
    measured = timing(record([10.0, *times_ms]), 1)
    assert (measured.warming, measured.steady) == (warming, steady)
    discarded = [block.discarded for block in measured.blocks]
    assert discarded == ["warm-up"] * warming + [""] * (len(times_ms) - warming)


@pytest.mark.parametrize(
    ("passes", "step_ms", "steady"),
    [
        ([1] * 6 + [2] * 6 + [3] * 6 + [4] * 32, 40.0, True),
        ([1] * 12 + [4] * 11 + [2] + [4] * 24 + [2, 4], 40.0, True),  # epochs end with 2
        ([1] * 10 + [2] * 20 + [3] * 20, 30.0, False),  # and may go on
        ([4] * 10 + [1] * 40, 10.0, True),
    ],
)
def test_steps_with_other_backward_passes_than_the_later_ones_do_not_count(passes, step_ms, steady):
    times_ms = [10.0 * count for count in [1, *passes]]
    measured = timing(record(times_ms, backwards=[1, *passes]), 1)
    assert (measured.step_ms, measured.steady) == (pytest.approx(step_ms), steady)
    left_out = [block.discarded != "" for block in measured.blocks]
    assert left_out == [count != passes[-1] for count in passes]


@pytest.mark.parametrize(
    ("slow", "step_ms", "pauses"), [(range(5, 13, 4), 30.0, 2), (range(1, 21, 2), 465.0, 0)]
)
def test_a_rare_event_leaves_its_interval_out_and_one_in_half_of_the_steps_is_part_of_them(
    slow, step_ms, pauses
):
    times_ms = [900 if number in slow else 30 for number in range(21)]
    marks = {number: ["evaluation"] for number in slow}
    measured = timing(record(times_ms, marks=marks), 1)
    assert measured.step_ms == pytest.approx(step_ms)
    assert [block.discarded for block in measured.blocks].count("evaluation") == pauses


@pytest.mark.parametrize(("order_of_one", "length"), [([0], 1), ([0, 1], 2), ([0] * 5 + [1], 6)])
def test_an_iteration_ends_when_the_order_of_optimizers_repeats(order_of_one, length):
    turns = [0, *order_of_one * 4]
    measured = timing(record([10.0] * len(turns), optimizers=turns), 1)
    assert len(measured.shape[1]) == length
    assert measured.step_ms == pytest.approx(10.0 * length)
    assert len(measured.blocks) == 4


@pytest.mark.parametrize(
    ("optimizers", "warmup", "why"),
    [([0, 0, 1, 1, 0, 1, 0, 0, 1, 1], 1, "no order"), ([0] * 8, 6, "ended after 8")],
)
def test_steps_that_show_no_iteration_are_refused(optimizers, warmup, why):
    with pytest.raises(RefusedError, match=why):
        timing(record([10.0] * len(optimizers), optimizers=optimizers), warmup)


def test_events_of_a_gpu_are_read_where_all_steps_have_them():
    events = record([10.0] * 12)
    for number, step in enumerate(events["steps"]):
        step["gpu_s"] = 7 * MS * number
    assert timing(events, 1).step_ms == pytest.approx(7.0)
    events["steps"][5]["gpu_s"] = None
    assert timing(events, 1).step_ms == pytest.approx(10.0)


def test_the_loss_is_that_of_finite_steps_and_diverged_where_none_of_the_last_is():
    events = record([10.0] * 12)
    events["steps"][5]["loss"] = math.inf
    assert (timing(events, 1).loss, timing(events, 1).diverged) == (2.0, False)
    for step in events["steps"][7:]:
        step["loss"] = math.nan
    assert timing(events, 1).diverged


def test_waiting_for_data_is_unknown_without_a_loader_and_a_share_of_what_counts_with_one():
    events = record([10.0] * 12, marks={6: ["epoch"]})
    assert timing(events, 1).wait_pct is None
    for number, step in enumerate(events["steps"]):
        step["data_s"] = 9 * MS if number == 6 else 2 * MS
    assert timing(events, 1).wait_pct == pytest.approx(20.0)


def test_each_arm_has_the_same_mean_place_in_a_round():
    assert [order("AB", 0), order("AB", 1)] == [list("ABBA"), list("BAAB")]
    assert order("ABC", 0) == list("ABCCBA")


@pytest.mark.parametrize(
    ("optimizers", "why"), [([0] * 5, "changed nothing"), ([0, 0, 1, 0, 0], "another training")]
)
def test_an_arm_that_changes_nothing_or_the_optimizer_is_refused(optimizers, why):
    with pytest.raises(RefusedError, match=why):
        compared(record([10.0] * 5, optimizers=optimizers), record([10.0] * 5))


def test_other_first_losses_are_warned_of():
    other = record([10.0] * 5, computed={"bfloat16": 9, "float32": 1})
    assert compared(other, record([10.0] * 5)) == []
    for step in other["steps"]:
        step["loss"] = 3.0
    assert "further apart" in compared(other, record([10.0] * 5))[0]
