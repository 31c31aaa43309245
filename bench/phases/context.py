"""What every phase starts from: the suite, its data and the device, with the switches set and read back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bench.data import random_batches
from bench.data.transfer import Batch
from bench.devices.backend import backend_of, device_at
from bench.planning import suite_registry
from bench.results.records import Switches
from bench.spec.precisions import Precision, parse_precision
from bench.spec.suite import Data, Suite
from bench.spec.techniques import Techniques, techniques
from bench.spec.trial import Trial
from bench.training import amp as switches
from bench.training import distributed


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A trial's objects."""

    suite: Suite
    data: Data
    device: torch.device
    techniques: Techniques


def open_setting(trial: Trial) -> Setting:
    """Load the trial's suite and name its device, without touching the device."""
    suite = suite_registry.load(trial.cell.suite)
    data = replace(suite.data, classes=trial.cell.classes) if trial.cell.classes else suite.data
    index = trial.cell.placement.device_of(distributed.rank())
    device = device_at(index)
    # Shapes are fixed, so let cuDNN choose its algorithms by trying them: all arms get their best.
    torch.backends.cudnn.benchmark = True
    return Setting(suite=suite, data=data, device=device, techniques=techniques(trial.cell.techniques))


def resident_batches(setting: Setting, trial: Trial, count: int) -> list[Batch]:
    """Make random batches of a trial on its device: of several that train together, this process's part of each."""
    return random_batches(
        setting.data,
        batch_size=distributed.part(trial.cell.batch_size),
        count=count,
        device=setting.device,
        seed=trial.seed + distributed.rank(),
    )


def enter(name: str, device: torch.device) -> tuple[Precision, Switches]:
    """Set the process to the precision called ``name``; return it and what its switches read back as."""
    precision = parse_precision(name)
    backend_of(device).set_current()
    switches.apply(precision)
    return precision, switches.read_back(precision, device)
