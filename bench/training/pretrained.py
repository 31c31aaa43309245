"""Initial weights of a torchvision model: random, ImageNet's, or those of a file.

A suite offers them by an argument ``weights`` of its function: ``none``, ``imagenet`` (or
``pretrained``), or a path. They are downloaded once, before any trial, and every trial then reads
them from the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.data.cifar10 import FAILURES, connection_timeout
from bench.planning import suite_registry
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.spec.trial import SuiteRef
from bench.training.step import build_model

NONE = "none"
PUBLISHED = ("imagenet", "pretrained")
# Tensors by the names that a model has for them.
StateDict = dict[str, Tensor]


def fetch(ref: SuiteRef) -> None:
    """Build a suite's model, which downloads missing weights; run in a worker before any trial.

    Raises:
        UsageError: the weights cannot be had, or are not this model's.
    """
    suite = suite_registry.load(ref)
    build_model(suite, suite.data)


def pretrained(build: Callable[..., nn.Module], weights: str, data: Data) -> nn.Module:
    """Build a torchvision model with initial weights.

    Its head, the last layer that has weights, is a new one where the number of classes differs. On
    the meta device, where tensors have no values, none are loaded.

    Args:
        build: torchvision's function, called with ``num_classes``.
        weights: ``none``, ``imagenet`` or ``pretrained`` (torchvision's default weights of this
            model), or the path of a state dict.
        data: has the number of classes.

    Raises:
        UsageError: the weights cannot be had, or are not this model's.
    """
    model = build(num_classes=data.classes)
    # Plans count on the meta device, and must need neither files nor a network.
    if weights == NONE or next(model.parameters()).is_meta:
        return model
    if weights in PUBLISHED:
        name = build.__name__
        _load(model, _download(name), f"torchvision's weights of {name}")
    else:
        _load(model, _read(Path(weights)), f"'{weights}'")
    return model


def _download(name: str) -> StateDict:
    from torchvision import models

    api: Any = models  # its exports are not marked for mypy
    entry = api.get_model_weights(name).DEFAULT
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    try:
        with connection_timeout():
            state: StateDict = entry.get_state_dict(progress=False, check_hash=True)
    except FAILURES as error:
        reason = getattr(error, "reason", error)
        file = entry.url.rpartition("/")[2]
        raise UsageError(
            f"The ImageNet weights of {name} are not in '{folder}' and could not be downloaded "
            f"from {entry.url} ({reason}). Put {file} there, or give --weights PATH or --weights "
            "none."
        ) from error
    return state


def _read(path: Path) -> StateDict:
    try:
        state: StateDict = dict(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise UsageError(
            f"There is no weights file '{path}'. Give --weights PATH, or --weights none."
        ) from None
    except Exception as error:
        # Nearly anything is raised; torch's own text advises to load what may run code.
        raise UsageError(
            f"The weights file '{path}' holds no state dict. Save model.state_dict() with "
            "torch.save, or give --weights none."
        ) from error
    return state


def _load(model: nn.Module, state: StateDict, where: str) -> None:
    """Load ``state``; the model keeps its own head if that has other shapes."""
    # The head is the last layer that has weights.
    *_, (last_weight, _) = model.named_parameters()
    head = last_weight.rpartition(".")[0] + "."
    own_head = {}
    for name, value in model.state_dict().items():
        if name.startswith(head):
            own_head[name] = value
    # A head for other classes has other shapes.
    for name, value in own_head.items():
        if name not in state or state[name].shape != value.shape:
            state = {**state, **own_head}
            break
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        # After a headline, a line for each problem.
        lines = str(error).splitlines()[1:4]
        problems = " ".join(line.strip() for line in lines)
        raise UsageError(
            f"The weights of {where} are not those of this model: {problems}"
        ) from error
