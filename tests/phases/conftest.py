"""Phases in this process, on suites of the tests' own and with fake GPUs."""

import time
from dataclasses import replace

import pytest
import torch

from bench import phases
from bench.phases.energy import measure as energy
from bench.phases.energy import stream as measuring
from bench.phases.explain import measure as explain
from bench.planning import suite_registry
from bench.results.records import TrialResult
from bench.spec.phases import MEASURING
from bench.spec.protocol import Protocol
from bench.spec.suite import Data, Suite
from bench.training.step import build_arm
from tests.arms import arms
from tests.derived import figured
from tests.devices.fake_nvml import FakeDriver

QUICK = Protocol(time_budget_s=0.05, replicates=1)


def run_phase(trial, device, phase, *names, sent=None, techniques=(), protocol=QUICK, **changes):
    """Run a phase for a moment, on the arms with these names if given; return all that it sent,
    with its figures.
    """
    sent = [] if sent is None else sent
    changes |= {"arms": arms(*names)} if names else {}
    trial = replace(trial, phase=phase, protocol=protocol, **changes)
    cell = replace(trial.cell, techniques=techniques)
    trial = replace(trial, cell=cell)
    phases.run(trial, device, sent.append)
    return figured(trial, sent)


def of_kind(kind, sent):
    """Return the records of a kind."""
    return [message for message in sent if isinstance(message, kind)]


def result_of(sent):
    """Return the only result among what a phase sent."""
    (result,) = of_kind(TrialResult, sent)
    return result


@pytest.fixture
def use_suite(monkeypatch):
    """Return a function that makes a suite of the test's own, which every trial finds."""

    def use(model, **changes):
        usual = {
            "name": "own",
            "title": "",
            "data": Data(input_shape=(3, 8, 8), classes=2, steps_per_epoch=2),
            "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            "batch_size": 4,
        }
        suite = Suite(model=model, **usual | changes)
        monkeypatch.setattr(suite_registry, "load", lambda ref: suite)

    return use


@pytest.fixture
def built(monkeypatch):
    """The techniques of every arm that a phase builds."""
    seen = []

    def spy(*given, **asked):
        seen.append(asked["techniques"])
        return build_arm(*given, **asked)

    monkeypatch.setattr("bench.training.arms.build_arm", spy)
    return seen


def each_phase(*left_out):
    """Return the names of all phases but these, as parameters; those that take long are marked as
    slow.
    """
    parameters = []
    for name in MEASURING:
        if name not in left_out:
            marks = pytest.mark.slow if name == "explain" else ()
            parameters.append(pytest.param(name, marks=marks))
    return parameters


def shorten_energy(patched):
    """Make stretches of energy a tenth of their length, and bursts too."""
    for name in ("STRETCH_S", "IDLE_S", "LEAD_IN_S", "POWER_PERIOD_S", "BURST_S"):
        patched.setattr(measuring, name, getattr(measuring, name) / 10)
    patched.setattr(energy, "WARM_UP_S", 0.1)


def shorten_explain(patched):
    """Explain with short windows."""
    patched.setattr(explain, "WARM_UP_S", 0.3)
    patched.setattr(explain, "WINDOW_S", 0.05)


def install_gpus(patched, *gpus):
    """Let NVML know these GPUs, whose clock is the real one."""
    start = time.monotonic()
    FakeDriver(gpus, clock=lambda: time.monotonic() - start).install(patched)


class Now(list):
    """Samples of processes that compute all the time."""

    def __iter__(self):
        return ((int(time.time() * 1e6), *sample) for sample in super().__iter__())
