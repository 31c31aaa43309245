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


class FakeCifar:
    """The archive of a CIFAR-10 of 50 training and 10 test images."""

    def __init__(self):
        random = np.random.default_rng(3)
        self.pixels = random.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
        self.labels = random.integers(0, 10, 60).tolist()
        names = {"label_names": [f"class {label}" for label in range(10)]}
        self.members = {"batches.meta": pickle.dumps(names)}
        files = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
        for index, name in enumerate(files):
            part = slice(10 * index, 10 * index + 10)
            content = {"data": self.pixels[part].reshape(10, -1), "labels": self.labels[part]}
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
    sums = {name: md5(content).hexdigest() for name, content in fake.members.items()}
    trained = [[name, sums[name]] for name in sums if name.startswith("data_")]
    monkeypatch.setattr(CIFAR10, "train_list", trained)
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(fake.archive).hexdigest())
    monkeypatch.setattr(CIFAR10, "url", (tmp_path / "nowhere" / CIFAR10.filename).as_uri())
    return fake
