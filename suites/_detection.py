"""Images with boxes, from a folder in VOC's format or made up, and the mAP of VOC 2007."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.spec import Quality, UsageError

if TYPE_CHECKING:
    from torch import Tensor

# The background is one of them.
VOC_CLASSES = 21
# Height and width of made-up images, and the batches of them that are tested on.
MADE_UP_SIZE, MADE_UP_TESTED = (240, 320), 4
QUALITY = Quality(name="VOC 2007 mAP", unit="%", better="more", margin=1.0)
NEEDED = ("torchmetrics", "pycocotools")


def require_metric() -> None:
    """Refuse where what computes the mAP is not installed."""
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        raise UsageError(
            f"The mAP of a detector needs {' and '.join(missing)}: pip install "
            "'ampmeter[detection]', or give --set evaluated=no."
        )


def require_layout(folder: str) -> None:
    """Refuse a folder that has another layout."""
    if not (Path(folder) / "VOCdevkit" / "VOC2007").is_dir():
        raise UsageError(f"'{folder}' has no images with boxes. It needs VOCdevkit/VOC2007.")


def batches(
    split: str, batch_size: int, seed: int, *, folder: str, crops: bool, count: int, workers: int
) -> Iterable[dict[str, Any]]:
    """Return an epoch's batches of ``images``, each (3, H, W) from 0 to 1, and ``targets``.

    A target has ``boxes``, (N, 4), ``labels``, (N,), and in the test split ``iscrowd``: 1 where a
    detection neither counts nor is wrong, as the difficult ones of VOC.

    Args:
        split: train or test.
        batch_size: images in a batch.
        seed: of the made-up images.
        folder: in the layout of VOC; empty is made-up images.
        crops: whether to add SSD's augmentation to the mirroring.
        count: batches of made-up images in an epoch of training.
        workers: processes that read the folder.
    """
    from torch.utils.data import DataLoader

    if not folder:
        return _made_up(batch_size, seed, count if split == "train" else MADE_UP_TESTED)
    is_train = split == "train"
    images: Any = Images(_listed(folder, is_train), is_train=is_train, crops=crops)
    return DataLoader(
        images,
        batch_size,
        shuffle=is_train,
        collate_fn=_batch,
        num_workers=workers,
        drop_last=is_train,
    )


def _batch(samples: list[tuple[Tensor, dict[str, Tensor]]]) -> dict[str, Any]:
    images, targets = zip(*samples, strict=True)
    return {"images": list(images), "targets": list(targets)}


def _made_up(batch_size: int, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield noise with two rectangles in each image, in the colour of their class."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    colours = torch.rand((VOC_CLASSES, 3, 1, 1), generator=torch.Generator().manual_seed(0))
    height, width = MADE_UP_SIZE
    for _ in range(count):
        samples = []
        for _ in range(batch_size):
            image = torch.rand((3, height, width), generator=rng)
            labels = torch.randint(1, VOC_CLASSES, (2,), generator=rng)
            # Upper left corners in the first quarter of the image, sides of 40 to 119 pixels.
            low = (torch.rand((2, 2), generator=rng) * torch.tensor([width / 2, height / 2])).int()
            high = low + 40 + (torch.rand((2, 2), generator=rng) * 80).int()
            boxes = torch.cat([low, high], dim=1)
            for (left, top, right, bottom), label in zip(boxes.tolist(), labels, strict=True):
                image[:, top:bottom, left:right] = colours[label]
            crowd = torch.zeros(2, dtype=torch.int64)
            samples.append((image, {"boxes": boxes.float(), "labels": labels, "iscrowd": crowd}))
        yield _batch(samples)


class Images:
    """Images of a folder with their targets, as a DataLoader reads them."""

    def __init__(self, listed: Any, *, is_train: bool, crops: bool) -> None:
        import torch
        from torchvision import transforms

        # It is not marked as exported.
        v2: Any = transforms.v2  # type: ignore[attr-defined]
        steps = []
        if is_train and crops:
            steps += [v2.RandomPhotometricDistort(), v2.RandomZoomOut(), v2.RandomIoUCrop()]
        if is_train:
            steps.append(v2.RandomHorizontalFlip())
        steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        if is_train:
            steps.append(v2.SanitizeBoundingBoxes())  # a crop may have left no area of some
        self.transform = v2.Compose(steps)
        self.listed, self.is_train = listed, is_train

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        import torch
        from torchvision import tv_tensors

        # It is not marked as exported.
        boxed: Any = tv_tensors.BoundingBoxes  # type: ignore[attr-defined]
        image, target = self.listed[index]
        crowd = torch.tensor([int(each["difficult"]) for each in target["annotation"]["object"]])
        boxes, labels = target["boxes"], target["labels"]
        kept = crowd == 0 if self.is_train else crowd >= 0
        shape: dict[str, Any] = {"format": "XYXY", "canvas_size": (image.height, image.width)}
        wrapped = {"boxes": boxed(boxes[kept].float(), **shape), "labels": labels[kept]}
        image, wrapped = self.transform(image, wrapped)
        tensors = {name: value.as_subclass(torch.Tensor) for name, value in wrapped.items()}
        if not self.is_train:
            tensors["iscrowd"] = crowd
        return image.as_subclass(torch.Tensor), tensors


@functools.cache
def _listed(folder: str, is_train: bool) -> Any:
    """List the images of a split: VOC 2007's trainval, with 2012's where it is, or its test."""
    from torch.utils.data import ConcatDataset
    from torchvision import datasets

    years = [year for year in ("2007", "2012") if (Path(folder) / f"VOCdevkit/VOC{year}").is_dir()]
    parts = [(year, "trainval") for year in years] if is_train else [("2007", "test")]
    voc = (datasets.VOCDetection(folder, year, split) for year, split in parts)
    wrapped = datasets.wrap_dataset_for_transforms_v2
    return ConcatDataset([wrapped(images, {"boxes", "labels", "annotation"}) for images in voc])


def evaluate(model: Any, batches: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the mAP at an IoU of 0.5 in per cent, as VOC 2007 defines it.

    The precision is interpolated at 11 recalls. Detections are matched as COCO's tools do it, 100
    of an image at most.
    """
    from torchmetrics.detection import MeanAveragePrecision

    recalls = [tenth / 10 for tenth in range(11)]
    metric = MeanAveragePrecision(iou_thresholds=[0.5], rec_thresholds=recalls)
    metric.warn_on_many_detections = False
    for batch in batches:
        detections = []
        for detected in model(batch["images"]):
            # The metric takes no 16-bit scores.
            tensors = {name: value.float().cpu() for name, value in detected.items()}
            detections.append(tensors | {"labels": detected["labels"].cpu()})
        targets = []
        for target in batch["targets"]:
            targets.append({name: value.cpu() for name, value in target.items()})
        metric.update(detections, targets)
    return {QUALITY.name: 100 * max(0.0, float(metric.compute()["map"]))}
