"""A folder's fingerprint: the same for the same images anywhere, another for others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from bench.data import folder
from bench.data.folder import fingerprint
from bench.spec.errors import UsageError
from bench.spec.trial import DataSource


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            place = tmp_path / "here" / split / label
            place.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (8, 8), (number, 10 * len(split), 0)).save(place / f"{number}.bmp")
    return tmp_path / "here"


def test_a_copy_elsewhere_with_other_times_has_the_same(images, tmp_path):
    shutil.copytree(images, tmp_path / "there")
    for file in (tmp_path / "there").rglob("*.bmp"):
        os.utime(file, (1, 1))
    assert fingerprint(str(images)) == fingerprint(str(tmp_path / "there"))
    assert len(fingerprint(str(images))) == 16


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train" / "cat" / "0.bmp").unlink(),
        lambda root: (root / "train" / "cat" / "0.bmp").rename(root / "train" / "cat" / "9.bmp"),
        lambda root: (root / "train" / "cat" / "0.bmp").rename(root / "train" / "dog" / "0x.bmp"),
        lambda root: Image.new("RGB", (8, 8), (200, 0, 0)).save(root / "train" / "cat" / "0.bmp"),
        lambda root: (root / "test").rename(root / "seg_test"),
    ],
    ids=["one less", "another name", "another class", "other pixels", "layout alone"],
)
def test_other_images_have_another(images, change, request):
    before = fingerprint(str(images))
    change(images)
    assert (fingerprint(str(images)) == before) is ("layout alone" in request.node.name)


def test_of_many_images_only_some_are_read(images, monkeypatch):
    read = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self) or original(self))
    monkeypatch.setattr(folder, "READ", 2)
    fingerprint(str(images))
    assert len(read) == 4


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no train/"):
        fingerprint(str(tmp_path))


def test_preparing_a_folder_tells_it_and_synthetic_data_have_none(images, tmp_path):
    from bench.data.prepare import prepare
    from bench.spec.suite import Data

    data = Data(input_shape=(3, 8, 8), classes=2)
    source = DataSource(kind="folder", path=str(images), directory=str(tmp_path / "data"))
    assert prepare(data, source).fingerprint == fingerprint(str(images))
    assert prepare(data, DataSource(kind="synthetic")).fingerprint is None
