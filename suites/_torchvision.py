"""Models of torchvision by name, such as torchvision:efficientnet_b0, and its detectors."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from bench.spec import Data, Suite, UsageError, require
from suites import _detection, _library

if TYPE_CHECKING:
    from torch import nn

KINDS = ("image", "detection")
# Detectors that need masks or key points.
OTHER_LABELS = ("maskrcnn", "keypointrcnn")
DETECTOR_LR, SSD_BATCH, DETECTOR_BATCH = 1e-3, 32, 8
# Words for torchvision's own weights; of a detector those of its backbone.
PUBLISHED = ("imagenet", "pretrained")
# Models that return a tuple while they have auxiliary classifiers, which are left out.
WITHOUT_AUXILIARY = ("googlenet", "inception_v3")


def names() -> list[str]:
    """Return the names of the models that can be trained by name."""
    return [name for name in _models().list_models() if _kind(name) in KINDS]


def _models() -> Any:
    """Return torchvision.models, whose exports are not marked for mypy."""
    from torchvision import models

    return models


def _kind(name: str) -> str:
    """Return the folder of torchvision.models that a model lies in; image for those in none."""
    if name.startswith(OTHER_LABELS):
        return "masks_or_key_points"
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
    folder: str = "",
    workers: int = 2,
    evaluated: bool = True,
) -> Suite:
    """Return a recipe for a model at a constant rate, on random images or those of --data.

    Args:
        name: as torchvision lists it.
        image_size: height and width of images; 0 is the model's own.
        optimizer: adamw or sgd, with momentum.
        lr: learning rate; 0 is 0.0003 of adamw and 0.05 of sgd, 0.001 for a detector.
        weight_decay: of the optimizer.
        flip: whether images are mirrored at random.
        weights: initial weights: none, pretrained or imagenet, or the path of a state dict.
        batch_size: samples in a batch; 0 is as many as should fit, 64 at most.
        batches: batches in an epoch of random images.
        folder: a detector's images with boxes, in the layout of VOC; empty is made-up ones.
        workers: processes that read that folder.
        evaluated: whether a detector's epoch ends with the mAP of VOC 2007 on its test images.
    """
    models = _models()
    if name not in models.list_models():
        raise _library.unknown("torchvision", name, names())
    if (kind := _kind(name)) not in KINDS:
        raise UsageError(
            f"torchvision:{name} is a model of {kind.replace('_', ' ')}, which cannot be trained "
            "by its name. Write a suite with batches and a loss of its own, such as "
            "docs/examples/detection.py (docs/adding-a-suite.md)."
        )
    _library.require_size("image_size", image_size)
    common: dict[str, Any] = {
        "name": f"torchvision:{name}",
        "source": f"torchvision {version('torchvision')}",
        "optimizer": optimizer,
        "weight_decay": weight_decay,
        "weights": weights,
        "batch_size": batch_size,
    }
    if kind == "detection":
        return _detector(
            image_size=image_size,
            lr=lr,
            folder=folder,
            workers=workers,
            count=batches,
            evaluated=evaluated,
            **common,
        )
    require(not folder, "folder", "empty but for detectors: give --data folder:PATH", folder)
    entry = models.get_model_weights(name).DEFAULT
    usual: Any = entry.transforms()
    size = (image_size or usual.crop_size[0], image_size or usual.crop_size[-1])
    data = Data(
        input_shape=(3, *size),
        classes=len(entry.meta["categories"]),
        mean=tuple(usual.mean),
        std=tuple(usual.std),
        flip=flip,
        steps_per_epoch=batches,
    )

    def model(data: Data) -> nn.Module:
        from bench.training.pretrained import pretrained

        builder: Any = models.get_model_builder(name)
        more: dict[str, Any] = {}
        if name in WITHOUT_AUXILIARY:
            more = {"aux_logits": False, "init_weights": True}
        family = name.partition("_")[0]
        if image_size and family == "vit":
            more["image_size"] = image_size
        elif image_size and family == "maxvit":
            more["input_size"] = size

        def build(num_classes: int) -> nn.Module:
            built: nn.Module = builder(num_classes=num_classes, **more)
            return built

        build.__name__ = name
        return pretrained(build, weights, data)

    return _library.recipe(
        title=f"torchvision's {name}, {'×'.join(map(str, data.input_shape[1:]))}",
        lr=lr,
        data=data,
        model=model,
        **common,
    )


def _detector(
    *,
    image_size: int,
    folder: str,
    workers: int,
    count: int,
    evaluated: bool,
    lr: float,
    batch_size: int,
    **common: Any,
) -> Suite:
    """Return the recipe of a detector; its loss is the sum of those that the model returns."""
    name = common["name"].partition(":")[2]
    is_ssd = name.startswith("ssd")
    weights = common["weights"]
    known = weights in ("none", *PUBLISHED)
    require(known, "weights", "none, or imagenet for the backbone's", weights)
    fits = not image_size or not is_ssd
    require(fits, "image_size", "0 for an SSD, whose size is its own", image_size)
    if folder:
        _detection.require_layout(folder)
    if evaluated:
        _detection.require_metric()

    def model() -> nn.Module:
        builder: Any = _models().get_model_builder(name)
        usual = inspect.signature(builder).parameters["weights_backbone"].default
        more: dict[str, Any] = (
            {"min_size": image_size, "max_size": 2 * image_size} if image_size else {}
        )
        more["weights_backbone"] = usual if weights != "none" else None
        build = partial(builder, num_classes=_detection.VOC_CLASSES, **more)
        return _library.fetched(build, name)

    def batches(split: str, batch_size: int, seed: int) -> Any:
        if split == "test" and not evaluated:
            return None
        return _detection.batches(
            split, batch_size, seed, folder=folder, crops=is_ssd, count=count, workers=workers
        )

    suite = _library.recipe(
        title=f"torchvision's {name} on {folder or 'made-up images'}",
        lr=lr or (DETECTOR_LR if common["optimizer"] == "sgd" else 0.0),
        batch_size=batch_size or (SSD_BATCH if is_ssd else DETECTOR_BATCH),
        model=model,
        batches=batches,
        loss=lambda model, batch: sum(model(batch["images"], batch["targets"]).values()),
        count=lambda batch: len(batch["images"]),
        evaluate=_detection.evaluate if evaluated else None,
        quality=_detection.QUALITY if evaluated else None,
        **common,
    )
    # Planning cannot tell what fits: the work and the memory depend on the boxes.
    return replace(suite, sized=False, cpu_batch_sizes=(batch_size or 2,))
