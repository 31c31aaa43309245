"""A folder of images: what is found, decoded, cached, held out and refused; and its fingerprint."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench.data import folder as folder_module
from bench.data import prepare
from bench.data.folder import fingerprint, held_out
from bench.data.prepare import load
from bench.spec.errors import UsageError

FIRST = "train/cat/0.png"


def test_classes_and_counts_are_those_of_the_files(data, source):
    prepared = prepare(data, source)
    assert prepared.classes == 2
    assert prepared.train_samples == 12
    assert prepared.fingerprint == fingerprint(source.path)
    assert load(data, source).classes == ("cat", "dog")


def test_images_in_subfolders_count_whatever_bytes_their_names_have_and_other_files_do_not(
    data, source, folder, paint
):
    cats = folder / "train" / "cat"
    paint(cats / "more" / "a.PNG")
    paint(cats / "z\n.png")
    paint(cats / os.fsdecode(b"\xff\x1b[2J.png"))
    (cats / "notes.txt").write_text("not an image")
    assert prepare(data, source).train_samples == 12 + 3


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 77, [77, 77, 77]),
        ("RGBA", (1, 2, 3, 200), [1, 2, 3]),
        ("1", 1, [255, 255, 255]),
        ("I;16", 0x4DFF, [0x4D, 0x4D, 0x4D]),  # as X-rays are
    ],
)
def test_images_of_other_modes_become_rgb(data, source, folder, *, mode, colour, expected):
    Image.new(mode, (8, 8), colour).save(folder / FIRST)
    image = load(data, source).train.images[0]
    assert image[:, 0, 0].tolist() == expected
    assert image.flatten(1).unique(dim=1).shape == (3, 1)  # of one colour


def test_runs_that_prepare_the_same_images_at_the_same_time_decode_them_once(
    data, source, monkeypatch
):
    decode = folder_module.decode
    decoded = []

    def counted(*given):
        decoded.append(given)
        return decode(*given)

    monkeypatch.setattr(folder_module, "decode", counted)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(load, data, source) for _ in range(4)]
    for each in running:
        assert each.result().classes == ("cat", "dog")
    assert len(decoded) == 1


@pytest.mark.parametrize(
    ("wanted", "stored"),
    [
        ((20, 30), (8, 8)),
        ((4, 6), (4, 6)),
    ],
)
def test_images_that_fit_are_stored_as_they_are_and_larger_ones_are_squashed(
    data, source, folder, wanted, stored
):
    prepare(data, source)
    data = replace(data, input_shape=(3, *wanted))
    image = load(data, source).train.images[0]
    height, width = stored
    with Image.open(folder / FIRST) as original:
        expected = original.resize((width, height), Image.Resampling.BILINEAR)
    pixels = image.permute(1, 2, 0)
    assert pixels.tolist() == np.array(expected).tolist()


def test_images_of_several_sizes_are_squashed_to_the_input(data, source, folder, paint):
    paint(folder / "test/dog/4.png", (6, 9))
    shape = (3, 12, 10)
    dataset = load(replace(data, input_shape=shape), source)
    assert dataset.train.images.shape == (12, *shape)
    assert dataset.test.images.shape == (10, *shape)


def test_a_changed_added_or_removed_image_is_noticed(data, source, folder, paint, stored):
    dogs = folder / "test" / "dog"
    image = dogs / "3.png"
    added = dogs / "added.png"

    def repaint():
        later_ns = image.stat().st_mtime_ns + 1
        paint(image)
        os.utime(image, ns=(later_ns, later_ns))

    load(data, source)
    for change in (repaint, partial(paint, added), added.unlink):
        change()
        images = load(data, source).test.images
        assert torch.equal(images, stored(folder / "test"))


def rename_images(folder):
    for path in (folder / "test" / "cat").iterdir():
        path.rename(path.with_suffix(".txt"))


def rename_split(folder):
    (folder / "test").rename(folder / "val")


def add_class(folder):
    (folder / "test" / "bird").mkdir()


def empty_images(folder):
    for path in folder.glob("test/*/*"):
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (rename_images, r"the class 'cat' has no image to test on \(.jpg, "),
        (add_class, "the class 'bird' has no image to train on"),
        (rename_split, "has no test/. It needs train/<class>/<images> and "),
        (shutil.rmtree, "has no train/. It needs train/<class>"),
        (empty_images, "No image of the 10 like "),
    ],
)
def test_a_folder_that_is_not_laid_out_as_it_must_be_is_refused(
    data, source, folder, change, sentence
):
    change(folder)
    with pytest.raises(UsageError, match=sentence):
        prepare(data, source)
    assert not any(Path(source.directory).rglob("*.json"))


def break_off(path):
    path.write_bytes(path.read_bytes()[:60])


def empty(path):
    path.write_bytes(b"")


def link_to_nothing(path):
    path.unlink()
    path.symlink_to("nowhere.png")


def fill_memory(path):
    Image.new("1", (9000, 9000)).save(path)  # a file of 10 kB


@pytest.mark.parametrize(("split", "index"), [("train", 0), ("test", 9)])
@pytest.mark.parametrize("damage", [break_off, empty, link_to_nothing, fill_memory])
def test_an_image_that_cannot_be_read_is_left_out_and_named(
    data, source, folder, monkeypatch, *, split, index, damage
):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000_000)
    paths = sorted(folder.glob(f"{split}/*/*.png"))
    path = paths[index]
    before = getattr(load(data, source), split)
    damage(path)
    prepared = prepare(data, source)
    assert prepared.left_out == (str(path),)
    assert prepared == prepare(data, source)  # as the cache has it
    after = getattr(load(data, source), split)
    kept = torch.arange(len(paths)) != index
    assert torch.equal(after.images, before.images[kept])
    assert torch.equal(after.labels, before.labels[kept])


def test_a_share_of_every_class_is_held_out():
    labels = np.repeat([0, 1, 2], [50, 10, 103])
    apart = held_out(labels, 0.2)
    counts = np.bincount(labels[apart])
    assert counts.tolist() == [10, 2, 21]


def as_intel(folder):
    """Lay a folder out as the archive of Intel Image Classification is."""
    for split in ("train", "test"):
        inner = folder / f"seg_{split}" / f"seg_{split}"
        inner.parent.mkdir()
        (folder / split).rename(inner)


def test_a_share_is_held_out_and_tested_on_where_there_are_no_test_images(
    data, source, folder, paint, stored
):
    train = stored(folder / "train")
    test = stored(folder / "test")
    as_intel(folder)
    paint(folder / "seg_pred" / "seg_pred" / "10.png")
    data = replace(data, validation_share=0.34)
    labels = np.repeat([0, 1], 6)
    apart = held_out(labels, 0.34)
    for expected in (test, train[apart]):
        dataset = load(data, source)
        assert torch.equal(dataset.train.images, train[~apart])
        assert torch.equal(dataset.test.images, expected)
        shutil.rmtree(folder / "seg_test", ignore_errors=True)


def remove(folder):
    (folder / FIRST).unlink()


def move(folder):
    (folder / FIRST).rename(folder / "train/dog/0x.png")


def change_time(folder):
    os.utime(folder / FIRST, (1, 1))


def change_a_byte(folder):
    image = folder / FIRST
    content = image.read_bytes()
    image.write_bytes(content[:-1] + b"x")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (remove, False),
        (move, False),
        (change_a_byte, False),
        (as_intel, True),
        (change_time, True),
    ],
)
def test_other_images_have_another_fingerprint(folder, change, same):
    before = fingerprint(str(folder))
    change(folder)
    assert (fingerprint(str(folder)) == before) is same
