from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bench.data import folder as folder_module
from bench.data import prepare
from bench.data.prepare import load
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.spec.trial import DataSource

Paint = Callable[..., np.ndarray]


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect how many images each call of decode was given."""
    calls: list[int] = []
    decode = folder_module.decode

    def counted(paths: tuple[str, ...], size: tuple[int, int], **options: Any) -> torch.Tensor:
        calls.append(len(paths))
        return decode(paths, size, **options)

    monkeypatch.setattr(folder_module, "decode", counted)
    return calls


def test_the_folder_says_how_many_classes_and_images_there_are(data: Data, source: DataSource) -> None:
    prepared = prepare(data, source)
    assert prepared.data == replace(data, classes=2)
    assert (prepared.train_samples, len(load(data, source).test.labels)) == (12, 10)


def test_pixels_and_labels_are_those_of_the_files(
    data: Data, source: DataSource, folder: Path, stored: Callable[[Path], torch.Tensor]
) -> None:
    dataset = load(data, source)
    assert dataset.classes == ("cat", "dog")
    for split, name, count in ((dataset.train, "train", 6), (dataset.test, "test", 5)):
        assert torch.equal(split.images, stored(folder / name))
        assert split.labels.dtype == torch.int64
        assert split.labels.tolist() == [0] * count + [1] * count


def test_images_in_subfolders_count_and_other_files_do_not(
    data: Data, source: DataSource, folder: Path, paint: Paint
) -> None:
    paint(folder / "train" / "cat" / "more" / "a.PNG")
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / "cat" / "._0.png").write_text("what a Mac leaves")
    (folder / "train" / ".ipynb_checkpoints").mkdir()
    assert prepare(data, source).train_samples == 13


def test_images_of_other_kinds_become_rgb(data: Data, source: DataSource, folder: Path) -> None:
    for index, (mode, colour, expected) in enumerate(
        [
            ("L", 77, (77, 77, 77)),
            ("RGBA", (1, 2, 3, 200), (1, 2, 3)),
            ("P", 0, (0, 0, 0)),
            ("1", 1, (255, 255, 255)),
            ("I;16", 0x4DFF, (0x4D, 0x4D, 0x4D)),  # as X-rays are
        ]
    ):
        path = folder / "train" / "cat" / f"{index}.png"
        Image.new(mode, (8, 8), colour).save(path)
        image = load(data, source).train.images[index]
        assert torch.equal(image, torch.tensor(expected, dtype=torch.uint8).view(3, 1, 1).expand(3, 8, 8))


def test_a_second_preparation_decodes_nothing(data: Data, source: DataSource, decodings: list[int]) -> None:
    first = prepare(data, source)
    assert sum(decodings) == 22
    assert prepare(data, source) == first
    assert sum(decodings) == 22


def test_images_that_fit_are_kept_as_they_are_for_every_input_size(
    data: Data, source: DataSource, decodings: list[int]
) -> None:
    prepare(data, source)
    larger = load(replace(data, input_shape=(3, 20, 30)), source)
    assert larger.train.images.shape == (12, 3, 8, 8)
    assert sum(decodings) == 22


def test_images_larger_than_the_input_are_squashed_when_decoded(data: Data, source: DataSource, folder: Path) -> None:
    prepare(data, source)
    images = load(replace(data, input_shape=(3, 4, 6)), source).train.images
    assert images.shape == (12, 3, 4, 6)
    expected = Image.open(folder / "train" / "cat" / "0.png").resize((6, 4), Image.Resampling.BILINEAR)
    assert torch.equal(images[0], torch.from_numpy(np.array(expected)).permute(2, 0, 1))


@pytest.mark.parametrize("odd", ["train/cat/0.png", "train/dog/5.png", "test/dog/4.png"])
def test_images_of_several_sizes_are_squashed_to_the_input(
    data: Data, source: DataSource, folder: Path, paint: Paint, odd: str
) -> None:
    paint(folder / odd, (6, 9))
    dataset = load(replace(data, input_shape=(3, 12, 10)), source)
    assert dataset.train.images.shape == (12, 3, 12, 10)
    assert dataset.test.images.shape == (10, 3, 12, 10)


@pytest.mark.parametrize("size", [(8, 8), (128, 128)])
def test_images_stay_in_order_whether_or_not_they_are_decoded_in_parallel(
    tmp_path: Path, paint: Paint, size: tuple[int, int], stored: Callable[[Path], torch.Tensor]
) -> None:
    for split, count in (("train", 150), ("test", 1)):
        for index in range(count):
            paint(tmp_path / "many" / split / "one" / f"{index:03}.png", size)
    source = DataSource(kind="folder", path=str(tmp_path / "many"), directory=str(tmp_path / "kept"))
    images = load(Data(input_shape=(3, *size), classes=1), source).train.images
    assert torch.equal(images, stored(tmp_path / "many" / "train"))


def test_a_changed_image_is_noticed(data: Data, source: DataSource, folder: Path, paint: Paint) -> None:
    prepare(data, source)
    path = folder / "train" / "dog" / "3.png"
    before = path.stat()
    pixels = paint(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    image = load(data, source).train.images[9]
    assert torch.equal(image, torch.from_numpy(pixels).permute(2, 0, 1))


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_added_or_removed_image_is_noticed(
    data: Data, source: DataSource, folder: Path, paint: Paint, split: str
) -> None:
    counts = []
    added = folder / split / "dog" / "added.png"
    for change in (lambda: None, lambda: paint(added), added.unlink):
        change()
        found = load(data, source)
        counts.append(len(found.train.labels) + len(found.test.labels))
    assert counts == [22, 23, 22]


def test_what_was_kept_of_the_folder_before_it_changed_is_removed(
    data: Data, source: DataSource, folder: Path, paint: Paint, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    prepare(data, source)
    prepare(data, replace(source, path=str(other)))
    cache = Path(source.directory) / "cache"
    before = set(cache.iterdir())
    paint(folder / "train" / "cat" / "new.png")
    prepare(data, source)
    after = set(cache.iterdir())
    assert len(before) == len(after) == 2
    assert len(before & after) == 1


def test_a_folder_that_is_not_there_is_refused(data: Data, source: DataSource, folder: Path) -> None:
    shutil.rmtree(folder)
    with pytest.raises(UsageError, match=r"pets' does not exist\. It needs train/<class>"):
        prepare(data, source)


def test_a_folder_without_splits_is_refused(data: Data, source: DataSource, folder: Path) -> None:
    (folder / "test").rename(folder / "val")
    with pytest.raises(UsageError, match=r"has no test/\. It needs .*; it has: train/, val/\."):
        prepare(data, source)
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(UsageError, match=r"has no train/ and no test/\. .*; it has: nothing\."):
        prepare(data, source)
    assert not Path(source.directory).exists()


def test_a_split_without_classes_is_refused(data: Data, source: DataSource, folder: Path, paint: Paint) -> None:
    shutil.rmtree(folder / "train")
    paint(folder / "train" / "loose.png")
    with pytest.raises(UsageError, match=r"train' has no class folders\."):
        prepare(data, source)


def test_a_class_without_images_is_refused(data: Data, source: DataSource, folder: Path) -> None:
    for path in (folder / "test" / "cat").iterdir():
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(UsageError, match=r"test/cat' has no images \(\.jpg, "):
        prepare(data, source)
    assert not Path(source.directory).exists()


@pytest.mark.parametrize(("here", "there"), [("train", "test"), ("test", "train")])
def test_a_class_in_one_split_only_is_refused(
    data: Data, source: DataSource, folder: Path, paint: Paint, *, here: str, there: str
) -> None:
    paint(folder / here / "bird" / "0.png")
    with pytest.raises(UsageError, match=rf"{here}/ has classes that {there}/ lacks: bird\."):
        prepare(data, source)


@pytest.mark.parametrize("size", [(8, 8), (4, 4)])
@pytest.mark.parametrize("damaged", ["train/cat/0.png", "test/dog/4.png"])
@pytest.mark.parametrize("kept_bytes", [0, 60, 150])
def test_an_image_that_cannot_be_read_is_named_and_nothing_is_kept(
    data: Data, source: DataSource, folder: Path, *, size: tuple[int, int], damaged: str, kept_bytes: int
) -> None:
    path = folder / damaged
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(UsageError, match=rf"The image '.*{damaged}' cannot be read \("):
        prepare(replace(data, input_shape=(3, *size)), source)
    assert not Path(source.directory).exists()


def test_a_folder_source_without_a_path_is_refused(data: Data, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a path"):
        prepare(data, DataSource(kind="folder", directory=str(tmp_path / "kept")))


def test_images_that_no_disk_could_hold_are_refused_before_decoding(
    data: Data, source: DataSource, decodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("bench.data.cache.shutil.disk_usage", lambda _: usage(100))
    with pytest.raises(UsageError, match=r"The 22 images of .* take .* GiB, and the disk of .* Use fewer images"):
        prepare(data, source)
    assert decodings == []
    assert not Path(source.directory).exists()
