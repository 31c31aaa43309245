"""The time of a step before the estimate."""

import pytest

from bench.spec.precisions import PRECISIONS
from bench.spec.trial import SuiteRef
from bench.training import amp
from bench.training.pace import step_s


@pytest.fixture(autouse=True)
def fp32_afterwards():
    yield
    amp.apply(PRECISIONS["fp32"])


@pytest.mark.parametrize(("broken", "works"), [((), True), ((("fail", "raise"),), False)])
def test_a_step_is_timed_or_unknown_where_the_model_fails(tiny_file, broken, works):
    ref = SuiteRef(name="tiny", file=str(tiny_file), parameters=broken)
    seconds = step_s(ref, "cpu", "amp-bf16", 4, lambda _message: None)
    assert (seconds is not None and seconds > 0) == works
