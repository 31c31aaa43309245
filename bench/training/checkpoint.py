"""Checkpoints: the state of a training after an epoch, written atomically, to resume from.

A checkpoint holds what the next epoch depends on: weights, the states of optimizer and schedule,
the GradScaler's scale and, of every rank, the states of the global random generators. Data order
and augmentation follow from seed and epoch. On a CPU, in the same precision, a resumed training
ends with the same bits as one that was never interrupted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bench.devices.backend import backend_of
from bench.results.files import replacing
from bench.results.records import EpochResult
from bench.training import distributed
from bench.training.step import BuiltArm

CPU = torch.device("cpu")
# Tensors and plain values by name, which load without running code.
State = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a training, and the epochs that led to it."""

    trial: str
    """The trial's id."""
    epochs: tuple[EpochResult, ...]
    model: dict[str, Tensor]
    optimizers: State
    """The state of each, by its name."""
    schedules: tuple[State, ...]
    scaler: State
    """Empty where the precision does not scale the loss."""
    generators: tuple[State, ...]
    """States of each rank's random generators."""

    @staticmethod
    def of(arm: BuiltArm, trial: str, epochs: Sequence[EpochResult]) -> Checkpoint:
        """Take the state of ``arm``.

        Its tensors are not copied, so write it before training continues.

        All ranks must call this; they have the same weights.
        """
        optimizers = {name: each.state_dict() for name, each in arm.optimizers.items()}
        schedules = [schedule.state_dict() for schedule in arm.schedules]
        generators = generator_states(arm.device)
        return Checkpoint(
            trial=trial,
            epochs=tuple(epochs),
            model=arm.weights.state_dict(),
            optimizers=optimizers,
            schedules=tuple(schedules),
            scaler=arm.scaler.state_dict(),
            generators=distributed.gathered(generators),
        )

    def restore(self, arm: BuiltArm) -> None:
        """Restore this state to ``arm``, newly built from the same suite.

        The arm may be of another precision: fp32 weights are kept where there are any. Where the
        checkpoint holds no scale, the arm keeps its new GradScaler; an arm that does not scale
        ignores the checkpoint's scale.
        """
        arm.weights.load_state_dict(self.model)
        for name, optimizer in arm.optimizers.items():
            optimizer.load_state_dict(self.optimizers[name])
        for schedule, state in zip(arm.schedules, self.schedules, strict=False):
            schedule.load_state_dict(state)
        # A precision that does not scale leaves no scale to go on with.
        if self.scaler and arm.scaler.is_enabled():
            arm.scaler.load_state_dict(self.scaler)
        restore_generators(self.generators[distributed.rank()], arm.device)

    def write(self, path: Path) -> None:
        """Replace ``path`` atomically: a process killed here leaves the previous checkpoint."""
        # Plain dicts: a class of this project would not load without running code.
        epochs = [asdict(epoch) for epoch in self.epochs]
        state = {**vars(self), "epochs": epochs}
        path.parent.mkdir(parents=True, exist_ok=True)
        # It is on the disk then: writing it back later would disturb the next epoch's time.
        with replacing(path) as draft:
            torch.save(state, draft)


def generator_states(device: torch.device) -> State:
    """Return the states of torch's, Python's and NumPy's global generators.

    A user's suite may draw from any of them, in its weights, its dropout or its loss. They are
    values that load without running code.
    """
    name, key, *rest = cast(tuple[Any, ...], np.random.get_state())
    states: State = {
        "python": random.getstate(),
        "numpy": (name, key.tolist(), *rest),
    }
    for each in (CPU, device):
        states[each.type] = backend_of(each).rng_state()
    return states


def restore_generators(states: State, device: torch.device) -> None:
    """Restore what ``generator_states`` returned."""
    for each in (CPU, device):
        # A training may continue on another kind of device, whose generator is left as it is.
        if each.type in states:
            backend_of(each).set_rng_state(states[each.type])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint in ``path``, its tensors on the CPU; None if none can be read."""
    try:
        # Refuses all but tensors and plain values, which cannot run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
        epochs = []
        for epoch in state.pop("epochs"):
            epochs.append(EpochResult(**epoch))
        return Checkpoint(**state, epochs=tuple(epochs))
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file raises nearly anything
        print(f"The checkpoint {path} cannot be read, so training begins anew: {error}")
        return None


def stored_bytes(model: nn.Module) -> int:
    """Return the bytes of the tensors in the model's state dict."""
    state = model.state_dict(keep_vars=True).values()
    # A set, because a weight of several layers is stored once.
    tensors = {value for value in state if isinstance(value, Tensor)}
    return sum(tensor.nbytes for tensor in tensors)
