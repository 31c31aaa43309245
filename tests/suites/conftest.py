"""Suites by name, and a step of them."""

from bench.data import first_batches
from bench.planning import suite_registry
from bench.training.step import training_step
from tests.training.conftest import CPU, arm_of


def suite_of(name, **settings):
    return suite_registry.load(suite_registry.refer(name, settings))


def take_step(suite, precision="amp-bf16"):
    """Train on a batch of two; return the loss."""
    (batch,) = first_batches(suite, suite.data, batch_size=2, count=1, device=CPU, seed=0)
    return training_step(arm_of(suite, precision, steps=10), batch)
