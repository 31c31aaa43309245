"""The sentences at the head of a report: computed from the answers, and saying no more than they
do.
"""

import pytest

from bench.report.analysis.lead import lead, span
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.reading.load import load
from tests.report import fleet
from tests.report.builders import RunBuilder


def sentences(*folders):
    choices = answers(summarise(load(list(folders)).trials))
    return ["".join(part.text for part in sentence) for sentence in lead(choices)]


@pytest.fixture
def gain(tmp_path):
    return RunBuilder(tmp_path / "one").speed(speedups=[3.0, 3.02, 2.98]).folder


def test_one_answer_names_precision_speedup_device_and_batch_size(gain):
    assert sentences(gain) == ["amp-bf16 is 3.00× as fast as fp32 on Test 1 for mlp at batch 128."]


def test_the_batch_size_is_that_of_the_advice_and_not_the_smallest(tmp_path):
    run = RunBuilder(tmp_path / "one")
    for batch, gain in ((64, 1.5), (256, 2.0)):
        run.speed(speedups=[gain] * 3, batch=batch)
    assert " for mlp at batch 256." in sentences(run.folder)[0]


def test_devices_with_one_advice_share_a_range_and_others_are_named_apart(gain, tmp_path):
    other = RunBuilder(tmp_path / "slow").speed(speedups=[1.5, 1.51, 1.49]).folder
    slow = RunBuilder(tmp_path / "stay").speed(speedups=[0.5, 0.51, 0.49]).folder
    runs = [
        gain,
        fleet.copy(other, tmp_path / "a", device="NVIDIA A", architecture="Volta", jitter=0),
        fleet.copy(slow, tmp_path / "b", device="NVIDIA B", architecture="Turing", jitter=0),
    ]
    (speed,) = sentences(*runs)
    assert speed == (
        "amp-bf16 is 1.5–3.0× as fast as fp32 on A and Test 1; stay with fp32 on B (amp-bf16: "
        "2.0× slower)."
    )


def test_a_device_on_which_fp32_does_not_fit_is_not_counted_among_the_faster(gain, tmp_path):
    big = RunBuilder(tmp_path / "big").lost("speed", "fp32", "oom").alone("amp-bf16", [5.0, 5.1])
    alone = fleet.copy(
        big.folder, tmp_path / "b", device="NVIDIA B", architecture="Turing", jitter=0
    )
    assert (
        sentences(gain, alone)[0]
        == "amp-bf16 is 3.00× as fast as fp32 on Test 1; only amp-bf16 fits on B."
    )


def test_where_nothing_gains_it_says_to_stay_and_claims_no_gain(run):
    assert sentences(run.speed(speedups=[0.09, 0.091, 0.089]).folder) == [
        "Stay with fp32 on Test 1 for mlp at batch 128 (amp-bf16: 11× slower)."
    ]


def test_a_range_of_one_value_is_one_figure():
    assert (span(1.09, 1.1049), span(1.1, 1.1), span(2.61, 3.73)) == (
        "1.09–1.10×",
        "1.10×",
        "2.6–3.7×",
    )
