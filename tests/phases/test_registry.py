"""The registry of phases: each phase has a runner, and no two of its trials share an id."""

from dataclasses import replace

import pytest

from bench.spec.phases import MEASURING


@pytest.mark.parametrize("phase", MEASURING.values(), ids=MEASURING)
def test_trials_of_a_phase_are_told_apart_by_what_is_repeated(phase, tiny_trial):
    trial = replace(tiny_trial, phase=phase.name)
    seeds = {replace(trial, seed=seed).id for seed in (0, 1)}
    replicates = {replace(trial, replicate=replicate).id for replicate in (0, 1)}
    assert (len(seeds), len(replicates)) == (1 + (phase.key == "seed"), 1 + (phase.key == "replicate"))
