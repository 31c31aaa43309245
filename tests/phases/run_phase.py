"""A phase in this process."""

from __future__ import annotations

from dataclasses import replace

from bench import phases
from bench.results.records import TrialResult
from bench.spec.trial import Protocol
from tests.arms import arms

QUICK = Protocol(time_budget_s=0.05, replicates=1)


def run_phase(trial, device, phase, *names, sent=None, techniques=(), protocol=QUICK, **changes):
    """Run a phase for a moment, on the arms with these names if given; return all that it sent."""
    sent = [] if sent is None else sent
    changes |= {"arms": arms(*names)} if names else {}
    cell = replace(changes.pop("cell", trial.cell), techniques=techniques)
    phases.run(replace(trial, phase=phase, cell=cell, protocol=protocol, **changes), device, sent.append)
    return sent


def result_of(sent):
    """Return the only result among what a phase sent."""
    (result,) = [message for message in sent if isinstance(message, TrialResult)]
    return result
