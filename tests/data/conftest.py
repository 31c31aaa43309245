"""Tiny image folders and archives, made by the tests that need them."""

import io
import pickle
import tarfile
from hashlib import md5

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10
from torchvision.transforms.functional import normalize

from bench.spec.data_source import DataSource
from bench.spec.suite import Data


@pytest.fixture
def paint():
    """Write an image of random pixels, and return them as (height, width, 3)."""
    random = np.random.default_rng(7)

    def write(path, size=(8, 8)):
        pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return pixels

    return write


@pytest.fixture
def folder(tmp_path, paint):
    """Two classes of six training and five test images each, 8 × 8, lossless."""
    root = tmp_path / "pets"
    for split, count in (("train", 6), ("test", 5)):
        for name in ("cat", "dog"):
            for index in range(count):
                paint(root / split / name / f"{index}.png")
    return root


@pytest.fixture
def source(folder, tmp_path):
    return DataSource(kind="folder", path=str(folder), directory=str(tmp_path / "kept"))


@pytest.fixture
def data():
    """Images of 8 × 8, neither cropped nor mirrored; the number of classes is wrong on purpose."""
    return Data(input_shape=(3, 8, 8), classes=99)


@pytest.fixture
def stored():
    """Read the images of a split in the order they are to be labelled, (N, 3, H, W) uint8."""

    def read(split):
        paths = sorted(split.glob("*/*.png"))
        images = [np.array(Image.open(path)) for path in paths]
        stacked = torch.from_numpy(np.stack(images))
        return stacked.permute(0, 3, 1, 2)

    return read


def joined(batches):
    """Return the inputs and the targets of all batches."""
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def assert_normalised(inputs, pixels, data, atol=2e-6):
    scaled = pixels.double() / 255
    expected = normalize(scaled, data.mean, data.std)
    torch.testing.assert_close(inputs, expected.float(), rtol=0, atol=atol)


class FakeCifar:
    """The archive of a CIFAR-10 of 50 training and 10 test images."""

    def __init__(self):
        random = np.random.default_rng(3)
        self.pixels = random.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
        self.labels = random.integers(0, 10, 60).tolist()
        classes = [f"class {label}" for label in range(10)]
        self.members = {"batches.meta": pickle.dumps({"label_names": classes})}
        for number in range(6):
            part = slice(10 * number, 10 * number + 10)
            pixels = self.pixels[part].reshape(10, -1)
            content = {"data": pixels, "labels": self.labels[part]}
            name = f"data_batch_{number + 1}" if number < 5 else "test_batch"
            self.members[name] = pickle.dumps(content)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in self.members.items():
                entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        self.archive = buffer.getvalue()


@pytest.fixture
def cifar(monkeypatch, tmp_path):
    """Let torchvision take the fake's checksums for its own, and find nothing at its address."""
    fake = FakeCifar()
    sums = []
    for name, content in fake.members.items():
        sums.append([name, md5(content).hexdigest()])
    (_, meta), *trained, tested = sums
    monkeypatch.setattr(CIFAR10, "train_list", trained)
    monkeypatch.setattr(CIFAR10, "test_list", [tested])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": meta})
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(fake.archive).hexdigest())
    nowhere = tmp_path / "nowhere" / CIFAR10.filename
    monkeypatch.setattr(CIFAR10, "url", nowhere.as_uri())
    return fake
