"""Figures of a script's steps follow from recorded events: pauses, periods, waits, losses."""

import math
from itertools import accumulate

import pytest

from bench.script.steps import RefusedError, compared, order, timing

MS = 1e-3


EVEN_MS = [10.0] * 12


def record(times_ms=EVEN_MS, **columns):
    """Return a recorded process whose steps take these times; columns have other values of each."""
    steps = []
    for number, end_ms in enumerate(accumulate(times_ms)):
        step = {
            "s": end_ms * MS,
            "gpu_s": None,
            "loss": 2.0,
            "skipped": False,
            "data_s": None,
            "optimizer": 0,
            "backwards": 1,
            "marks": [],
        }
        for column, values in columns.items():
            step[column] = values[number]
        steps.append(step)
    optimizers = {step["optimizer"] for step in steps}
    return {
        "steps": steps,
        "start_s": 100.0,
        "optimizers": sorted(map(str, optimizers)),
        "computed": {"float32": 10},
    }


def measure(times_ms=EVEN_MS, **columns):
    return timing(record(times_ms, **columns), 1)


def discarded(measured):
    """Return why each iteration does not count, "" where it does."""
    return [block.discarded for block in measured.blocks]


@pytest.mark.parametrize(
    ("times_ms", "warming", "steady", "step_ms"),
    [
        ([30.0] * 10 + [10.0] * 40, 10, True, 10.0),
        ([10.0, 10.0, 10.0, 50.0] * 10, 0, True, 20.0),  # the mean: what comes in bursts counts
        ([10.0, 12.0, 14.0, 16.0, 18.0] * 10, 0, True, 14.0),
        ([30.0] * 30 + [10.0] * 20, 25, False, 14.0),  # five slow steps are left
    ],
)
def test_steps_at_the_beginning_that_are_slower_than_what_follows_are_warm_up(
    times_ms, warming, steady, step_ms
):
    measured = measure([10.0, *times_ms])
    assert measured.warming == warming
    assert measured.steady == steady
    assert measured.step_ms == pytest.approx(step_ms)
    reasons = discarded(measured)
    assert reasons[:warming] == ["warm-up"] * warming
    assert not any(reasons[warming:])


@pytest.mark.parametrize(
    ("passes", "step_ms", "steady"),
    [
        ("11111122222233333344444444444444444444444444444444", 40.0, True),
        ("11111111111144444444444244444444444444444444444424", 40.0, True),  # epochs end with 2
        ("11111111112222222222222222222233333333333333333333", 30.0, False),  # and may go on
        ("44444444441111111111111111111111111111111111111111", 10.0, True),
    ],
)
def test_steps_with_other_backward_passes_than_the_later_ones_do_not_count(passes, step_ms, steady):
    backwards = [1, *map(int, passes)]
    times_ms = [10.0 * count for count in backwards]
    measured = measure(times_ms, backwards=backwards)
    assert measured.step_ms == pytest.approx(step_ms)
    assert measured.steady == steady
    for count, why in zip(passes, discarded(measured), strict=True):
        assert (why == "") == (count == passes[-1])


@pytest.mark.parametrize(
    ("slow", "step_ms", "pauses"),
    [
        ([5, 9], 30.0, 2),
        (range(1, 21, 2), 465.0, 0),
    ],
)
def test_a_rare_event_leaves_its_interval_out_and_one_in_half_of_the_steps_is_part_of_them(
    slow, step_ms, pauses
):
    times_ms = [30] * 21
    marks = [[]] * 21
    for number in slow:
        times_ms[number] = 900
        marks[number] = ["evaluation"]
    measured = measure(times_ms, marks=marks)
    assert measured.step_ms == pytest.approx(step_ms)
    assert discarded(measured).count("evaluation") == pauses


@pytest.mark.parametrize("iteration", [[0], [0, 1], [0, 0, 0, 0, 0, 1]])
def test_an_iteration_ends_when_the_order_of_optimizers_repeats(iteration):
    optimizers = [0, *iteration * 4]
    times_ms = [10.0] * len(optimizers)
    measured = measure(times_ms, optimizer=optimizers)
    assert len(measured.blocks) == 4
    iteration_ms = 10.0 * len(iteration)
    assert measured.step_ms == pytest.approx(iteration_ms)


@pytest.mark.parametrize(
    ("optimizers", "why"),
    [
        ([0, 0, 1, 1, 0, 1, 0, 0, 1, 1], "no order"),
        ([0] * 3, "ended after 3"),
    ],
)
def test_steps_that_show_no_iteration_are_refused(optimizers, why):
    times_ms = [10.0] * len(optimizers)
    with pytest.raises(RefusedError, match=why):
        measure(times_ms, optimizer=optimizers)


def test_events_of_a_gpu_are_read_where_all_steps_have_them():
    ends_s = [7 * MS * number for number in range(12)]
    assert measure(gpu_s=ends_s).step_ms == pytest.approx(7.0)
    ends_s[5] = None
    assert measure(gpu_s=ends_s).step_ms == pytest.approx(10.0)


def test_the_loss_is_that_of_finite_steps_and_diverged_where_none_of_the_last_is():
    losses = [2.0] * 12
    losses[5] = math.inf
    measured = measure(loss=losses)
    assert measured.loss == 2.0
    assert not measured.diverged
    losses[7:] = [math.nan] * 5
    assert measure(loss=losses).diverged


def test_waiting_for_data_is_unknown_without_a_loader_and_a_share_of_what_counts_with_one():
    assert measure().wait_pct is None
    waits_s = [2 * MS] * 12
    waits_s[6] = 9 * MS
    marks = [[]] * 12
    marks[6] = ["evaluation"]
    assert measure(data_s=waits_s, marks=marks).wait_pct == pytest.approx(20.0)


def test_each_arm_has_the_same_mean_place_in_a_round():
    assert order("ABC", 0) == list("ABCCBA")
    assert order("ABC", 1) == list("CBAABC")


def test_an_arm_with_other_optimizers_is_refused_and_one_with_another_first_loss_is_warned_of():
    reference = record()
    with pytest.raises(RefusedError, match="another training"):
        compared(record(optimizer=[0, 1] * 6), reference)
    arm = record()
    arm["computed"] = {"bfloat16": 9, "float32": 1}
    assert compared(arm, reference) == []
    arm["steps"][0]["loss"] = 3.0
    (warning,) = compared(arm, reference)
    assert "further apart" in warning
