"""Shared by models of libraries: the optimizer, and batch sizes that planning fits to a device."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.spec import Suite, UsageError, require
from bench.spec.errors import first_line

if TYPE_CHECKING:
    from torch import nn, optim

# Batch sizes that planning halves until a step should fit into the device's memory.
GPU_BATCH, CPU_BATCH = 64, 4
# Of ImageNet's images, channel by channel.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Optimizer(NamedTuple):
    """torch's name of an optimizer, its rate where none is set, and its other settings."""

    name: str
    lr: float
    settings: dict[str, float]


OPTIMIZERS = {
    "adamw": Optimizer("AdamW", 3e-4, {}),
    "sgd": Optimizer("SGD", 0.05, {"momentum": 0.9}),
}


def recipe(
    *,
    title: str,
    optimizer: str,
    lr: float,
    weight_decay: float,
    weights: str,
    batch_size: int,
    **fields: Any,
) -> Suite:
    """Return the suite of a library's model, at a constant rate; planning may halve its batch."""
    require(optimizer in OPTIMIZERS, "optimizer", " or ".join(OPTIMIZERS), optimizer)
    require(batch_size >= 0, "batch_size", "0 or more", batch_size)
    name, usual_lr, settings = OPTIMIZERS[optimizer]

    def build(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        kind: Callable[..., optim.Optimizer] = getattr(optim, name)
        return kind(parameters, lr=lr or usual_lr, weight_decay=weight_decay, **settings)

    initial = "random" if weights == "none" else weights
    more = "".join(f", {key} {value:g}" for key, value in settings.items())
    trained = f"{name} at {lr or usual_lr:g}{more}, weight decay {weight_decay:g}"
    return Suite(
        title=f"{title}; {initial} weights; {trained}",
        optimizer=build,
        batch_size=batch_size or GPU_BATCH,
        cpu_batch_sizes=(batch_size or CPU_BATCH,),
        sized=True,
        **fields,
    )


def fetched(build: Callable[[], nn.Module], name: str) -> nn.Module:
    """Build a model with its published weights.

    Raises:
        UsageError: they are not on the disk and cannot be downloaded.
    """
    try:
        return build()
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"The pretrained weights of {name} are not on this machine and cannot be downloaded "
            f"({first_line(error)}). Give --weights none for random ones."
        ) from error


def require_size(name: str, value: int, most: int | None = None) -> None:
    """Refuse a size that is neither 0, the model's own, nor one up to ``most``."""
    limit = f", {most} at most" if most is not None else ""
    fits = value >= 0 and (most is None or value <= most)
    require(fits, name, f"0 for the model's own, or a size{limit}", value)


def unknown(library: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error of a name that a library does not have, with the nearest ones."""
    nearest = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    listed = ", ".join(f"{library}:{each}" for each in nearest)
    hint = f" The nearest are {listed}." if nearest else ""
    return UsageError(
        f"There is no model '{name}' in {library}.{hint} All: run_bench.py list '{library}:*'."
    )
