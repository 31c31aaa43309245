"""The arithmetic that torchao brings, trained where the GPU has it and the library is there.

``perf/gpu_checklist.py`` runs these as its part ``libraries``; the log says of each that was
skipped why.
"""

import pytest

from bench.planning import suite_registry
from bench.spec.data_source import DataSource
from bench.spec.placement import Placement
from bench.spec.precisions import PRECISIONS
from bench.spec.trial import Cell, Trial
from tests.arms import arms
from tests.gpu.conftest import ON_SIMULATED, run

pytestmark = pytest.mark.skipif(
    ON_SIMULATED, reason="simulated GPUs have neither these kernels nor Triton"
)
NAMES = [name for name, precision in PRECISIONS.items() if precision.conversion]
FITTING = """
from bench.spec import Data, Suite


def suite():
    def model(data):
        from torch import nn

        return nn.Sequential(
            nn.Embedding(256, 128),
            nn.LayerNorm(128),
            nn.Linear(128, 512),
            nn.GELU(),
            nn.Linear(512, 256),
        )

    def optimizer(parameters):
        from torch import optim

        return optim.AdamW(parameters, lr=0.01)

    return Suite(
        name="fitting",
        title="sizes that fit every precision",
        data=Data(
            input_shape=(128,), classes=256, tokens=True, source="markov", steps_per_epoch=50
        ),
        model=model,
        optimizer=optimizer,
        batch_size=128,
    )
"""
LINEAR = ("2", "4")
WORST_NATS = 0.1
"""By how much a training's loss may end above fp32's, which is 0.04 above the entropy. On a CPU all
end within 0.001 of it; wrong products end far above."""


@pytest.fixture(scope="module")
def train(tmp_path_factory, device):
    """Return a function that trains the suite for an epoch in a precision, in a new process."""
    file = tmp_path_factory.mktemp("suite") / "fitting.py"
    file.write_text(FITTING)
    cell = Cell(
        suite=suite_registry.refer(str(file)),
        placement=Placement(name=device.placement),
        batch_size=128,
        data=DataSource(kind="markov"),
    )

    def train(name):
        (result,) = run(Trial(cell=cell, phase="train", arms=arms(name)), device)
        assert (result.status, result.detail) == ("ok", "")
        return result

    return train


@pytest.fixture(scope="module")
def plain(train):
    return train("fp32").row


@pytest.mark.parametrize("name", NAMES)
def test_a_librarys_arithmetic_learns_as_fp32_does(name, device, train, plain):
    if reason := (device.unsupported or {}).get(name):
        pytest.skip(reason)
    result = train(name)
    assert result.conversion.converted_layers == LINEAR
    assert result.conversion.kept_layers == {}
    assert result.row.test_loss < plain.test_loss + WORST_NATS
