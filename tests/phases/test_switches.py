"""Every phase reads the fp32 switches back as its last step left them."""

import pytest
from torch import nn

from bench.results.records import TrialResult
from bench.spec.precisions import PRECISIONS
from bench.training import amp
from tests.phases.conftest import each_phase, of_kind, result_of, run_phase

COMPARED = ("speed", "floor", "inference")
"""The phases whose figures would be compared as those of a precision that was not computed in."""


@pytest.fixture
def turns_tf32_on(use_suite):
    """Use a suite whose model allows TF32 in its forward pass."""

    class Turns(nn.Linear):
        def forward(self, inputs):
            amp.apply(PRECISIONS["tf32"])
            return super().forward(inputs)

    use_suite(lambda data: nn.Sequential(nn.Flatten(), Turns(192, data.classes)))
    yield
    amp.apply(PRECISIONS["fp32"])


# They need a GPU's meter, or a narrow precision.
@pytest.mark.parametrize("phase", each_phase("energy", "layers"))
def test_a_model_that_turns_tf32_on_by_itself_is_seen_and_not_compared_as_fp32(
    tiny_trial, cpu, turns_tf32_on, phase
):
    result = result_of(run_phase(tiny_trial, cpu, phase, "fp32"))
    assert result.switches.fp32_matmul == "tf32"
    is_compared = phase in COMPARED
    assert result.status == ("invalid" if is_compared else "ok")
    changed = (
        "the model changed the fp32 switches from matmul ieee, conv ieee, rnn ieee "
        "to matmul tf32, conv tf32, rnn tf32"
    )
    assert (result.detail == changed) == is_compared


def test_arms_of_one_process_each_have_their_own_search_of_algorithms(tiny_trial, cpu):
    results = of_kind(TrialResult, run_phase(tiny_trial, cpu, "speed", "fp32", "default"))
    assert [result.switches.cudnn_benchmark for result in results] == [True, False]
