"""Models of torchvision by their names, such as torchvision:efficientnet_b0: of images, of videos, of segmentation."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from bench.spec import Data, Suite, UsageError
from suites import _library

if TYPE_CHECKING:
    from torch import Tensor, nn

FRAMES = 16
"""Frames of a clip."""
WITHOUT_AUXILIARY = ("googlenet", "inception_v3")
"""Models that return a tuple while they have auxiliary classifiers, which are left out."""
SIZE_ARGUMENT = {"vit": "image_size", "maxvit": "input_size"}
"""The argument by which models of a module are built for another size of images."""


def names() -> list[str]:
    """Return the names of the models that can be trained by name."""
    return [name for name in _models().list_models() if _kind(name) in ("image", "video", "segmentation")]


def _models() -> Any:
    """Return torchvision.models, whose exports are not marked for mypy."""
    from torchvision import models

    return models


def _kind(name: str) -> str:
    """Return the folder of torchvision.models that a model lies in; image for those in none."""
    parts: list[str] = _models().get_model_builder(name).__module__.split(".")
    return "image" if len(parts) == 3 else parts[2]


def suite(
    name: str,
    /,
    *,
    image_size: int = 0,
    optimizer: str = "sgd",
    lr: float = 0.0,
    weight_decay: float = 1e-4,
    flip: bool = True,
    weights: str = "none",
    batch_size: int = 0,
    batches: int = 50,
) -> Suite:
    """Return a recipe for a model at a constant rate, on random images unless --data says otherwise.

    Args:
        name: as torchvision lists it.
        image_size: height and width of images; 0 is the model's own.
        optimizer: adamw or sgd, with momentum.
        lr: learning rate; 0 is 0.0003 of adamw and 0.05 of sgd.
        weight_decay: of the optimizer.
        flip: whether images are mirrored at random.
        weights: initial weights: none, pretrained or imagenet, or the path of a state dict.
        batch_size: samples in a batch; 0 is as many as should fit, 64 at most.
        batches: batches in an epoch of random images.
    """
    models = _models()
    if name not in models.list_models():
        raise _library.unknown("torchvision", name, names())
    if (kind := _kind(name)) not in ("image", "video", "segmentation"):
        raise UsageError(
            f"torchvision:{name} is a model of {kind.replace('_', ' ')}, which cannot be trained by its name. Write a "
            "suite with batches and a loss of its own, such as docs/examples/detection.py (docs/adding-a-suite.md)."
        )
    _library.require_size("image_size", image_size)
    entry = models.get_model_weights(name).DEFAULT
    usual: Any = entry.transforms()
    own = usual.resize_size if kind == "segmentation" else usual.crop_size
    size = (image_size or own[0], image_size or own[-1])
    data = Data(
        input_shape=(3, *size) if kind != "video" else (3, FRAMES, *size),
        classes=len(entry.meta["categories"]),
        mean=tuple(usual.mean),
        std=tuple(usual.std),
        flip=flip and kind == "image",
        steps_per_epoch=batches,
    )

    def model(data: Data) -> nn.Module:
        from bench.training.pretrained import pretrained

        builder: Any = models.get_model_builder(name)
        more: dict[str, Any] = {"aux_logits": False, "init_weights": True} if name in WITHOUT_AUXILIARY else {}
        if kind == "segmentation":
            more["weights_backbone"] = None
        if image_size and (argument := SIZE_ARGUMENT.get(name.partition("_")[0])):
            more[argument] = image_size if argument == "image_size" else size

        def build(num_classes: int) -> nn.Module:
            built: nn.Module = builder(num_classes=num_classes, **more)
            return built

        build.__name__ = name
        return pretrained(build, weights, data)

    def segmented(split: str, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]] | None:
        return _masks(data, batch_size, seed) if split == "train" else None

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(model(batch[0])["out"], batch[1])

    own_batches: dict[str, Any] = {"batches": segmented, "loss": loss} if kind == "segmentation" else {}
    return _library.recipe(
        name=f"torchvision:{name}",
        title=f"torchvision's {name}, {'×'.join(map(str, data.input_shape[1:]))}",
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        weights=weights,
        batch_size=batch_size,
        data=data,
        model=model,
        source=f"torchvision {version('torchvision')}",
        **own_batches,
    )


def _masks(data: Data, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield an epoch of random images, each with a class for every pixel."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    for _ in range(data.steps_per_epoch):
        images = torch.randn((batch_size, *data.input_shape), generator=rng)
        yield images, torch.randint(data.classes or 1, (batch_size, *data.input_shape[1:]), generator=rng)
