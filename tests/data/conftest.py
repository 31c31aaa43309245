"""Tiny image folders and archives, made by the tests that need them."""

import pickle
import shutil
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10
from torchvision.transforms.functional import normalize

from bench.data import WHOLE, open_batches
from bench.spec.data_source import DataSource
from bench.spec.suite import Data

CPU = torch.device("cpu")
DEFAULT = Data(input_shape=(3, 8, 8), classes=2)
FILES = [
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
]
"""Of CIFAR-10, each of ten images in the fake."""


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
    for name in ("cat", "dog"):
        for index in range(6):
            paint(root / "train" / name / f"{index}.png")
        for index in range(5):
            paint(root / "test" / name / f"{index}.png")
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


def opened(data, source, *, batch_size=8, seed=0, device=CPU, shard=WHOLE):
    return open_batches(
        data,
        source,
        batch_size=batch_size,
        seed=seed,
        device=device,
        shard=shard,
    )


def joined(batches):
    """Return the inputs and the targets of all batches."""
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def assert_normalised(inputs, pixels, atol=2e-6):
    """Check that inputs are pixels normalised by the default mean and deviation."""
    scaled = pixels.double() / 255
    expected = normalize(scaled, DEFAULT.mean, DEFAULT.std)
    torch.testing.assert_close(inputs, expected.float(), rtol=0, atol=atol)


class FakeCifar:
    """The archive of a CIFAR-10 of 50 training and 10 test images."""

    def __init__(self, folder):
        random = np.random.default_rng(3)
        self.pixels = random.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
        self.labels = random.integers(0, 10, 60).tolist()
        meta = {"label_names": list("abcdefghij")}
        self.members = {"batches.meta": pickle.dumps(meta)}
        for number, name in enumerate(FILES):
            part = slice(10 * number, 10 * number + 10)
            pixels = self.pixels[part].reshape(10, -1)
            content = {"data": pixels, "labels": self.labels[part]}
            self.members[name] = pickle.dumps(content)
        packed = folder / CIFAR10.base_folder
        packed.mkdir()
        for name, content in self.members.items():
            (packed / name).write_bytes(content)
        archive = shutil.make_archive(packed, "gztar", folder, CIFAR10.base_folder)
        self.archive = Path(archive).read_bytes()


@pytest.fixture
def cifar(monkeypatch, tmp_path_factory):
    """Let torchvision take the fake's checksums for its own, and find nothing at its address."""
    folder = tmp_path_factory.mktemp("cifar")
    fake = FakeCifar(folder)
    sums = {}
    for name, content in fake.members.items():
        sums[name] = md5(content).hexdigest()
    meta = sums.pop("batches.meta")
    *trained, tested = sums.items()
    monkeypatch.setattr(CIFAR10, "train_list", trained)
    monkeypatch.setattr(CIFAR10, "test_list", [tested])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": meta})
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(fake.archive).hexdigest())
    monkeypatch.setattr(CIFAR10, "url", (folder / "nowhere").as_uri())
    return fake
