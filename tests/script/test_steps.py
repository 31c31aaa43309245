"""Figures of a script's steps follow from recorded events: pauses, periods, waits and what makes arms incomparable."""

from itertools import accumulate

import pytest

from bench.script.steps import RefusedError, compared, order, period, timing

MS = 1e-3


def record(times_ms, *, marks=None, optimizers=None, backwards=None, **more):
    """Return a recorded process whose steps end after these times, the first of them right away."""
    count = len(times_ms)
    ends = list(accumulate(times_ms, initial=0.0))[1:]
    steps = [
        {
            "s": end * MS,
            "gpu_s": None,
            "optimizer": (optimizers or [0] * count)[number],
            "backwards": (backwards or [1] * count)[number],
            "loss": 2.0,
            "marks": (marks or {}).get(number, []),
            "skipped": False,
            "data_s": None,
        }
        for number, end in enumerate(ends)
    ]
    names = [f"Adam{number}" for number in sorted({step["optimizer"] for step in steps})]
    computed = {"float32": 10}
    return {
        "steps": steps,
        "start_s": 100.0,
        "optimizers": names,
        "computed": computed,
        "world": 1,
        "load_pct": None,
        **more,
    }


def test_a_step_is_the_mean_so_that_what_comes_in_bursts_counts():
    assert timing(record([10, *[10, 10, 10, 50] * 4]), 1).step_ms == pytest.approx(20.0)


def test_a_rare_event_leaves_its_interval_out():
    slow = {5: ["evaluation"], 9: ["evaluation"]}
    measured = timing(record([900 if number in slow else 30 for number in range(20)], marks=slow), 1)
    assert measured.step_ms == pytest.approx(30.0)
    assert [iteration.pause for iteration in measured.iterations].count("evaluation") == 2


def test_an_event_in_half_of_the_steps_is_part_of_the_step():
    often = {number: ["evaluation"] for number in range(1, 21, 2)}
    assert timing(
        record([40 if number in often else 20 for number in range(21)], marks=often), 1
    ).step_ms == pytest.approx(30.0)


@pytest.mark.parametrize(("order_of_one", "length"), [([0], 1), ([0, 1], 2), ([0] * 5 + [1], 6)])
def test_an_iteration_ends_when_the_order_of_optimizers_repeats(order_of_one, length):
    turns = [0, *order_of_one * 4]
    measured = timing(record([10.0] * len(turns), optimizers=turns), 1)
    assert len(measured.shape[1]) == length
    assert measured.step_ms == pytest.approx(10.0 * length)
    assert len(measured.iterations) == 4


def test_optimizers_without_an_order_are_refused():
    assert period([0, 1, 1, 0, 1, 0, 0, 1, 1]) is None
    with pytest.raises(RefusedError, match="no order"):
        timing(record([10.0] * 10, optimizers=[0, 0, 1, 1, 0, 1, 0, 0, 1, 1]), 1)


def test_a_script_without_enough_steps_is_refused():
    with pytest.raises(RefusedError, match="ended after 8"):
        timing(record([10.0] * 8), 6)


def test_events_of_a_gpu_are_read_where_all_steps_have_them():
    events = record([10.0] * 12)
    for number, step in enumerate(events["steps"]):
        step["gpu_s"] = 7 * MS * number
    assert timing(events, 1).step_ms == pytest.approx(7.0)
    events["steps"][5]["gpu_s"] = None
    assert timing(events, 1).step_ms == pytest.approx(10.0)


def test_waiting_for_data_is_unknown_without_a_loader_and_a_share_of_what_counts_with_one():
    events = record([10.0] * 12, marks={6: ["epoch"]})
    assert timing(events, 1).wait_pct is None
    for number, step in enumerate(events["steps"]):
        step["data_s"] = 9 * MS if number == 6 else 2 * MS
    assert timing(events, 1).wait_pct == pytest.approx(20.0)


def test_accumulated_backward_passes_are_part_of_the_shape():
    parts = [timing(record([10.0] * 12, backwards=[count] * 12), 1).shape for count in (1, 4)]
    assert parts[0] != parts[1]


def test_each_arm_has_the_same_mean_place_in_a_round():
    assert [order("AB", 0), order("AB", 1)] == [list("ABBA"), list("BAAB")]
    assert order("ABC", 0) == list("ABCCBA")


@pytest.mark.parametrize(("optimizers", "why"), [([0] * 5, "changed nothing"), ([0, 0, 1, 0, 0], "another training")])
def test_an_arm_that_changes_nothing_or_the_optimizer_is_refused(optimizers, why):
    with pytest.raises(RefusedError, match=why):
        compared(record([10.0] * 5, optimizers=optimizers), record([10.0] * 5))


def test_products_left_in_fp32_and_other_first_losses_are_warned_of():
    mixed = record([10.0] * 5, computed={"bfloat16": 9, "float32": 1})
    assert compared(mixed, record([10.0] * 5)) == ["products left in fp32: 10 %"]
    for step in mixed["steps"]:
        step["loss"] = 3.0
    assert "further apart" in compared(mixed, record([10.0] * 5))[0]
