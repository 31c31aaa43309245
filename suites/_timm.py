"""Models of timm by name, such as timm:resnet50, each with its own size, mean and deviation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.spec import Data, Suite, UsageError
from bench.spec.errors import first_line
from suites import _library

if TYPE_CHECKING:
    from torch import nn


def names() -> list[str]:
    """Return the names of all models."""
    from timm import list_models

    known: list[str] = list_models()
    return known


def suite(
    name: str,
    /,
    *,
    image_size: int = 0,
    optimizer: str = "adamw",
    lr: float = 0.0,
    weight_decay: float = 0.05,
    flip: bool = True,
    weights: str = "none",
    batch_size: int = 0,
    batches: int = 50,
) -> Suite:
    """Return a recipe for a model at a constant rate, on random images or those of --data.

    Args:
        name: as timm lists it, also with the tag of its weights after a dot.
        image_size: height and width of images; 0 is the model's own.
        optimizer: adamw or sgd, with momentum.
        lr: learning rate; 0 is 0.0003 of adamw and 0.05 of sgd.
        weight_decay: of the optimizer.
        flip: whether images are mirrored at random.
        weights: initial weights: none, pretrained, or the path of a state dict.
        batch_size: samples in a batch; 0 is as many as should fit, 64 at most.
        batches: batches in an epoch of random images.
    """
    import timm
    from timm.models import get_pretrained_cfg, is_model

    if not is_model(name):
        raise _library.unknown("timm", name, names())
    _library.require_size("image_size", image_size)
    try:
        config = get_pretrained_cfg(name)
    except RuntimeError as error:  # of the tag after the dot
        raise UsageError(f"timm knows no weights of this name: {first_line(error)}.") from error
    channels, height, width = config.input_size
    size = (image_size, image_size) if image_size else (height, width)

    def model(data: Data) -> nn.Module:
        from bench.training.pretrained import pretrained

        def build(num_classes: int, *, fetch: bool = False) -> nn.Module:
            create = partial(timm.create_model, name, pretrained=fetch, num_classes=num_classes)
            built: nn.Module
            try:
                built = create(img_size=size) if image_size else create()
            except TypeError:  # convolutions take any size
                built = create()
            return built

        if weights == "pretrained":
            return _library.fetched(lambda: build(data.classes or 1, fetch=True), name)
        return pretrained(build, weights, data)

    return _library.recipe(
        name=f"timm:{name}",
        title=f"timm's {name}, {size[0]}×{size[1]}",
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        weights=weights,
        batch_size=batch_size,
        data=Data(
            input_shape=(channels, *size),
            classes=config.num_classes or 1000,
            mean=config.mean,
            std=config.std,
            flip=flip,
            steps_per_epoch=batches,
        ),
        model=model,
        source=f"timm {timm.__version__}",
    )
