"""Initial weights of a torchvision model: random, ImageNet's, or those of a file.

A suite has them where its function has an argument ``weights``: ``none``, ``imagenet`` or a path. They are fetched
once, before any trial, and every trial then finds them on the disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.data.cifar10 import FAILURES, patience
from bench.planning import suite_registry
from bench.spec.errors import UsageError, first_line
from bench.spec.suite import Data
from bench.spec.trial import SuiteRef

NONE, IMAGENET = "none", "imagenet"


def fetch(ref: SuiteRef, _send: Callable[[object], None]) -> None:
    """Build a suite's model once, which downloads its weights if they are not there yet; run in a worker.

    Raises:
        UsageError: the weights cannot be had, or are not this model's.
    """
    suite = suite_registry.load(ref)
    suite.model(suite.data)


def pretrained(build: Callable[..., nn.Module], weights: str, data: Data, *, head: str) -> nn.Module:
    """Build a torchvision model with initial weights; its last layer is a new one where it has other classes.

    On the meta device, where tensors have no values, no weights are looked for.

    Args:
        build: torchvision's function, called with ``num_classes``.
        weights: ``none``, ``imagenet`` (torchvision's default weights of this model), or the path of a state dict.
        data: tells the number of classes.
        head: name of the last layer within the model.

    Raises:
        UsageError: the weights cannot be had, or are not this model's.
    """
    model = build(num_classes=data.classes)
    if weights != NONE and torch.get_default_device().type != "meta":
        name = build.__name__
        state = _download(name) if weights == IMAGENET else _read(Path(weights))
        _load(model, state, head, f"'{weights}'" if weights != IMAGENET else f"torchvision's weights of {name}")
    return model


def _download(name: str) -> dict[str, Tensor]:
    from torchvision import models

    api: Any = models  # which does not mark what it exports
    entry = api.get_model_weights(name).DEFAULT
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    try:
        with patience():
            state: dict[str, Tensor] = entry.get_state_dict(progress=False, check_hash=True)
    except FAILURES as error:
        raise UsageError(
            f"The ImageNet weights of {name} are not in '{folder}' and could not be downloaded from {entry.url} "
            f"({getattr(error, 'reason', error)}). Put {entry.url.rsplit('/', 1)[-1]} there, "
            "or give --weights PATH or --weights none."
        ) from error
    return state


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UsageError(f"There is no weights file '{path}'. Give --weights PATH of a state dict, or --weights none.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no state dict raises nearly anything
        # torch's own text advises to load what may run code.
        refused = isinstance(error, pickle.UnpicklingError)
        why = "it is no file of torch.save's, or holds more than tensors" if refused else first_line(error)
        raise UsageError(
            f"The weights file '{path}' cannot be read ({why}). Save model.state_dict() with torch.save, or give "
            "--weights none."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"The weights file '{path}' holds no state dict: it must be what model.state_dict() returns.")
    return state


def _load(model: nn.Module, state: dict[str, Tensor], head: str, where: str) -> None:
    """Load ``state``, except for the head where its shapes are others."""
    own = model.state_dict()
    last = {name for name in own if name.startswith(f"{head}.")}
    replaced = any(name not in state or state[name].shape != own[name].shape for name in last)
    skipped = last if replaced else set()
    problems = [f"{name} is missing" for name in own.keys() - state.keys() - skipped]
    problems += [f"{name} is unknown" for name in state.keys() - own.keys()]
    problems += [
        f"{name} has shape {tuple(state[name].shape)} instead of {tuple(own[name].shape)}"
        for name in (own.keys() & state.keys()) - skipped
        if state[name].shape != own[name].shape
    ]
    if problems:
        listed = ", ".join(sorted(problems)[:3]) + ", …" * (len(problems) > 3)
        raise UsageError(f"The weights of {where} are not those of this model: {listed}.")
    model.load_state_dict({**own, **{name: value for name, value in state.items() if name not in skipped}})
