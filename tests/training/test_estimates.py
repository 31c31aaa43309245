"""The FLOPs of a suite's step, and the memory of its model, before the estimate."""

import pytest
import torch
from torch import nn

from bench.measure.operations import observe
from bench.spec.suite import Data
from bench.spec.trial import SuiteRef
from bench.training.estimates import count_flops, footprint, training_flops_per_sample
from bench.training.step import leave_gradients
from tests.training.conftest import batches, make, make_suite

WIDE = """
from torch import nn, optim
from bench.spec import Data, Suite

def suite():
    model = lambda: nn.Linear(10**6, 10**6, bias=False)
    data = Data(input_shape=(10**6,), target_shape=(10**6,))
    optimizer = lambda parameters: optim.SGD(parameters, lr=1, momentum=0.9)
    return Suite(name="wide", title="", data=data, model=model, optimizer=optimizer, batch_size=2)
"""
IMAGES = Data(input_shape=(3, 8, 8), classes=5)


def convolutional(data):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Flatten(),
        nn.Linear(256, data.classes),
    )


def test_a_samples_flops_counted_on_shapes_are_those_of_forward_and_both_gradients_as_they_run():
    arm = make(model=convolutional, data=IMAGES)
    (batch,) = batches(1, size=4)
    ran = observe(lambda: leave_gradients(arm, batch))
    suite = make_suite(convolutional, data=IMAGES)
    assert ran.flops_per_step == 4 * training_flops_per_sample(suite)


def test_a_model_that_is_compiled_by_its_suite_is_counted_as_the_plain_one():
    def compiled_model(data):
        return torch.compile(convolutional(data))

    compiled = make_suite(compiled_model)
    plain = make_suite(convolutional)
    assert training_flops_per_sample(compiled) == training_flops_per_sample(plain)


class Fails(nn.Linear):
    def forward(self, inputs):
        return inputs.numpy()


class Trilinear(nn.Bilinear):
    def forward(self, inputs):
        return super().forward(inputs, inputs)[:, 0, 0]


@pytest.mark.parametrize("model", [Fails(8, 5), Trilinear(8, 8, 5)], ids=["fails", "no formula"])
def test_the_flops_of_a_model_that_cannot_be_counted_are_unknown(model):
    suite = make_suite(lambda _data: model)
    assert training_flops_per_sample(suite) is None


def test_a_suite_is_counted_by_its_reference(tiny_file):
    tiny = SuiteRef(name="tiny", file=str(tiny_file))
    assert count_flops(tiny) == 2 * (2 * 192 * 16 + 3 * 16 * 2)


def test_the_memory_of_weights_gradients_and_optimizer_states_is_counted_without_taking_any(
    tmp_path,
):
    file = tmp_path / "wide.py"
    file.write_text(WIDE)
    wide = SuiteRef(name="wide", file=str(file))
    counted = footprint(wide)
    weights = 4 * 10**6 * 10**6  # of a layer that no machine holds
    assert counted.model_bytes == weights
    assert counted.state_bytes == 3 * weights
    assert counted.sample_bytes >= 4 * 10**6
