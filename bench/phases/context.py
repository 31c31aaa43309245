"""What every phase starts from: a trial's suite, data and device, and the arms that are built from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bench.data import random_batches
from bench.data.transfer import Batch
from bench.devices.backend import backend_of, device_at
from bench.planning import suite_registry
from bench.results.records import Switches
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import Precision, parse_precision
from bench.spec.suite import Data, Suite
from bench.spec.techniques import AblationStep, Techniques, techniques
from bench.spec.trial import Trial
from bench.training import amp, distributed
from bench.training.step import Arm, build_arm


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """A trial and the objects that it names."""

    trial: Trial
    suite: Suite
    data: Data
    device: torch.device
    techniques: Techniques
    """Those of all arms; the ablation's steps have their own."""

    def build(
        self,
        precision: str,
        *,
        techniques: Techniques | None = None,
        data: Data | None = None,
        steps: int | None = None,
        clip_grad: float | None = None,
    ) -> Arm:
        """Set the process to a precision and build its arm.

        Args:
            precision: its name.
            techniques: those of an ablation step; None are the trial's.
            data: the suite's data with the number of classes that there really are; None are the trial's.
            steps: optimizer steps of the whole training, for the schedule.
            clip_grad: the norm to clip gradients to.
        """
        wanted = parse_precision(precision)
        set_precision(wanted, self.device)
        arm = build_arm(
            self.suite,
            data or self.data,
            wanted,
            self.device,
            seed=self.trial.seed,
            steps=steps,
            clip_grad=clip_grad,
            techniques=techniques or self.techniques,
        )
        amp.apply(wanted)  # again: a model may have set switches of its own
        return arm

    def build_step(self, step: AblationStep) -> Arm:
        """Set the process to an ablation step's precision and build its arm.

        Raises:
            UnsupportedError: a technique does not go with this suite or device, or the suite has a loop of its own.
        """
        if self.suite.trainer == "lightning":
            raise UnsupportedError("Lightning's Trainer runs steps of its own, which the ladder cannot climb")
        return self.build(step.precision, techniques=step.settings)

    def resident_batches(self, count: int) -> list[Batch]:
        """Make random batches on the device; of processes that train together, this one's part of each."""
        return random_batches(
            self.data,
            batch_size=distributed.part(self.trial.cell.batch_size),
            count=count,
            device=self.device,
            seed=self.trial.seed + distributed.rank(),
        )


def open_context(trial: Trial) -> Context:
    """Load the trial's suite and name its device, without touching the device."""
    suite = suite_registry.load(trial.cell.suite)
    data = replace(suite.data, classes=trial.cell.classes) if trial.cell.classes else suite.data
    device = device_at(trial.cell.placement.device_of(distributed.rank()))
    # Shapes are fixed, so let cuDNN choose its algorithms by trying them: all arms get their best.
    torch.backends.cudnn.benchmark = True
    return Context(trial=trial, suite=suite, data=data, device=device, techniques=techniques(trial.cell.techniques))


def set_precision(precision: Precision, device: torch.device) -> None:
    """Make the device the current one and set the process to a precision."""
    backend_of(device).set_current()
    amp.apply(precision)


def enter(name: str, device: torch.device) -> tuple[Precision, Switches]:
    """Set the process to the precision called ``name``; return it and its switches as they read back."""
    precision = parse_precision(name)
    set_precision(precision, device)
    return precision, amp.read_back(precision, device)
