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

OBJECT = """<object><name>{}</name><difficult>{}</difficult><bndbox>
<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"""
DOG = OBJECT.format("dog", 0, 10, 20, 50, 60)
CAT = OBJECT.format("cat", 1, 5, 5, 40, 30)
"""The cat is difficult."""


def voc(folder):
    """Write an image with a dog and a cat, to train on and to test on, in the layout of VOC."""
    root = folder / "VOCdevkit" / "VOC2007"
    contents = {
        "ImageSets/Main/trainval.txt": "pets",
        "ImageSets/Main/test.txt": "pets",
        "Annotations/pets.xml": f"<annotation>{DOG}{CAT}</annotation>",
    }
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    images = root / "JPEGImages"
    images.mkdir()
    image = Image.new("RGB", (64, 80))
    image.save(images / "pets.jpg")


def first_batch(folder, split):
    """Return the first batch of one image."""
    options = {"crops": False, "count": 1, "workers": 0}
    batches = _detection.batches(split, 1, 0, folder=str(folder), **options)
    return next(iter(batches))


def test_a_folder_gives_images_with_boxes_and_trains_on_none_that_is_difficult(tmp_path):
    voc(tmp_path)
    _detection.require_layout(str(tmp_path))
    test = first_batch(tmp_path, "test")
    (image,) = test["images"]
    assert image.shape == (3, 80, 64)
    (target,) = test["targets"]
    assert target["boxes"].tolist() == [[10, 20, 50, 60], [5, 5, 40, 30]]
    assert target["labels"].tolist() == [12, 8]
    assert target["iscrowd"].tolist() == [0, 1]
    train = first_batch(tmp_path, "train")
    (target,) = train["targets"]
    assert target["labels"].tolist() == [12]


def detect(boxes, labels):
    """Return detections that are sure."""
    return {"boxes": boxes, "labels": labels, "scores": torch.ones(len(labels))}


@pytest.mark.parametrize(("by", "expected"), [(2.0, 100.0), (100.0, 0.0)])
def test_the_map_is_of_boxes_that_overlap_by_half(by, expected):
    """Detections are the targets, moved by some pixels."""
    batch = first_batch("", "test")
    (target,) = batch["targets"]
    boxes = target["boxes"] + by
    detection = detect(boxes, target["labels"])
    figures = _detection.evaluate(lambda images: [detection], [batch])
    assert figures == {"VOC 2007 mAP": pytest.approx(expected)}


def test_precision_is_interpolated_at_eleven_recalls():
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    labels = torch.tensor([1])
    hit = detect(boxes, labels)
    miss = detect(boxes[:0], labels[:0])
    target = {**hit, "iscrowd": torch.tensor([0])}
    batch = {"images": [None, None], "targets": [target, target]}
    figures = _detection.evaluate(lambda images: [hit, miss], [batch])
    expected = 100 * 6 / 11  # six of eleven recalls, 0, 0.1 … 0.5, at a precision of 1
    assert figures["VOC 2007 mAP"] == pytest.approx(expected)


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
