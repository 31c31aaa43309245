"""Detectors: a folder in the layout of VOC is read, and the mAP is that of known boxes."""

import pytest
import torch
from PIL import Image

from bench.planning import suite_registry
from bench.spec.errors import UsageError
from suites import _detection
from tests.suites.conftest import suite_of, take_step

for package in _detection.NEEDED:
    pytest.importorskip(package, reason="pip install 'ampmeter[detection]'")

BOXES = [("dog", (10, 20, 50, 60), 0), ("cat", (5, 5, 40, 30), 1)]
"""In each image: the class, the corners, and whether it is difficult."""


OBJECT = """<object><name>{}</name><difficult>{}</difficult><bndbox>
<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"""


def voc(folder, split):
    root = folder / "VOCdevkit" / "VOC2007"
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / part).mkdir(parents=True, exist_ok=True)
    objects = ""
    for name, box, hard in BOXES:
        objects += OBJECT.format(name, hard, *box)
    xml = f"<annotation>{objects}</annotation>"
    names = [f"{split}0", f"{split}1"]
    listing = root / "ImageSets" / "Main" / f"{split}.txt"
    listing.write_text("\n".join(names))
    for name in names:
        image = Image.new("RGB", (64, 80))
        image.save(root / f"JPEGImages/{name}.jpg")
        (root / f"Annotations/{name}.xml").write_text(xml)


def epoch(folder, split):
    batches = _detection.batches(split, 2, 0, folder=str(folder), crops=False, count=1, workers=0)
    return list(batches)


def test_a_folder_gives_images_with_boxes_and_trains_on_none_that_is_difficult(tmp_path):
    for split in ("trainval", "test"):
        voc(tmp_path, split)
    _detection.require_layout(str(tmp_path))
    (test,) = epoch(tmp_path, "test")
    for image in test["images"]:
        assert image.shape == (3, 80, 64)
    first, _second = test["targets"]
    assert first["boxes"].tolist() == [[10, 20, 50, 60], [5, 5, 40, 30]]
    assert first["labels"].tolist() == [12, 8]
    assert first["iscrowd"].tolist() == [0, 1]
    (train,) = epoch(tmp_path, "train")
    for target in train["targets"]:
        assert target["labels"].tolist() == [12]


@pytest.mark.parametrize(("by", "expected"), [(2.0, 100.0), (100.0, 0.0)])
def test_the_map_is_of_boxes_that_overlap_by_half(by, expected):
    """Detections are surely the targets, moved by some pixels."""
    batch, *_ = epoch("", "test")
    detections = []
    for target in batch["targets"]:
        labels = target["labels"]
        boxes = target["boxes"] + by
        detections.append({"boxes": boxes, "labels": labels, "scores": torch.ones(len(labels))})
    figures = _detection.evaluate(lambda images: detections, [batch])
    assert figures == {"VOC 2007 mAP": pytest.approx(expected)}


def test_precision_is_interpolated_at_eleven_recalls():
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    labels = torch.tensor([1])
    target = {"boxes": boxes, "labels": labels, "iscrowd": torch.tensor([0])}
    hit = {"boxes": boxes, "labels": labels, "scores": torch.tensor([0.9])}
    nothing = {name: value[:0] for name, value in hit.items()}
    batch = {"images": [None, None], "targets": [target, target]}
    figures = _detection.evaluate(lambda images: [hit, nothing], [batch])
    # Six of eleven recalls, 0, 0.1 … 0.5, at a precision of 1.
    assert figures["VOC 2007 mAP"] == pytest.approx(100 * 6 / 11)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"folder": "."}, "has no images with boxes"),
        ({"image_size": "100"}, "image_size must be 0 for an SSD"),
        ({"weights": "a.pt"}, "weights must be none, or imagenet"),
    ],
)
def test_what_a_detector_cannot_do_is_refused(settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        suite_registry.refer("torchvision:ssd300_vgg16", settings)


def test_a_detector_without_the_metric_names_what_installs_it_and_what_goes_without(monkeypatch):
    monkeypatch.setattr(_detection, "find_spec", lambda _: None)
    name = "torchvision:fasterrcnn_resnet50_fpn"
    advice = r"pip install 'ampmeter\[detection\]', or give --set evaluated=no"
    with pytest.raises(UsageError, match=advice):
        suite_registry.refer(name)
    assert suite_registry.refer(name, {"evaluated": "no"}).name == name


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
@pytest.mark.parametrize(
    "name", ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"]
)
def test_a_detector_takes_a_step(name, precision):
    suite = suite_of(f"torchvision:{name}")
    assert take_step(suite, precision).isfinite()
