"""A folder of images: what is found, decoded, cached, held out and refused; and its fingerprint."""

import os
import shutil
from collections import Counter, namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.data.loader import open_samples
from PIL import Image

from bench.data import folder as folder_module
from bench.data import prepare
from bench.data.folder import fingerprint, stratified
from bench.data.prepare import load
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.spec.trial import DataSource


@pytest.fixture
def decodings(monkeypatch):
    """How many images each call of ``decode`` was given."""
    calls, decode = [], folder_module.decode

    def counted(paths, *given, **options):
        calls.append(len(paths))
        return decode(paths, *given, **options)

    monkeypatch.setattr(folder_module, "decode", counted)
    return calls


def test_pixels_labels_and_counts_are_those_of_the_files(data, source, folder, stored):
    prepared = prepare(data, source)
    assert (prepared.classes, prepared.train_samples, prepared.fingerprint) == (2, 12, fingerprint(source.path))
    dataset = load(data, source)
    assert dataset.classes == ("cat", "dog")
    for split, name, count in ((dataset.train, "train", 6), (dataset.test, "test", 5)):
        assert torch.equal(split.images, stored(folder / name))
        assert split.labels.dtype == torch.int64
        assert split.labels.tolist() == [0] * count + [1] * count


def test_images_in_subfolders_count_whatever_bytes_their_names_have_and_other_files_do_not(data, source, folder, paint):
    paint(folder / "train" / "cat" / "more" / "a.PNG")
    (folder / "train" / "cat" / "0.png").rename(folder / "train" / "cat" / "z\n.png")
    (folder / "train" / "cat" / "1.png").rename(folder / "train" / "cat" / os.fsdecode(b"\xff\x1b[2J.png"))
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / "cat" / "._0.png").write_text("what a Mac leaves")
    (folder / "train" / ".ipynb_checkpoints").mkdir()
    assert prepare(data, source).train_samples == 13


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 77, (77, 77, 77)),
        ("RGBA", (1, 2, 3, 200), (1, 2, 3)),
        ("1", 1, (255, 255, 255)),
        ("I;16", 0x4DFF, (0x4D, 0x4D, 0x4D)),  # as X-rays are
    ],
)
def test_images_of_other_modes_become_rgb(data, source, folder, *, mode, colour, expected):
    Image.new(mode, (8, 8), colour).save(folder / "train" / "cat" / "0.png")
    image = load(data, source).train.images[0]
    assert torch.equal(image, torch.tensor(expected, dtype=torch.uint8).view(3, 1, 1).expand(3, 8, 8))


def test_images_that_fit_are_decoded_once_and_kept_as_they_are_for_every_input_size(data, source, decodings):
    prepare(data, source)
    larger = load(replace(data, input_shape=(3, 20, 30)), source)
    assert larger.train.images.shape == (12, 3, 8, 8)
    assert sum(decodings) == 22


def test_images_larger_than_the_input_are_squashed_when_decoded(data, source, folder):
    prepare(data, source)
    images = load(replace(data, input_shape=(3, 4, 6)), source).train.images
    assert images.shape == (12, 3, 4, 6)
    with Image.open(folder / "train" / "cat" / "0.png") as image:
        expected = np.array(image.resize((6, 4), Image.Resampling.BILINEAR))
    assert np.array_equal(images[0].permute(1, 2, 0), expected)


@pytest.mark.parametrize("odd", ["train/cat/0.png", "test/dog/4.png"])
def test_images_of_several_sizes_are_squashed_to_the_input(data, source, folder, paint, odd):
    paint(folder / odd, (6, 9))
    dataset = load(replace(data, input_shape=(3, 12, 10)), source)
    assert dataset.train.images.shape == (12, 3, 12, 10)
    assert dataset.test.images.shape == (10, 3, 12, 10)


def test_images_stay_in_order_when_they_are_decoded_in_parallel(tmp_path, paint, stored):
    many = tmp_path / "many"
    for name in ("test/one/0.png", *(f"train/one/{index:03}.png" for index in range(150))):
        paint(many / name, (128, 128))
    source = DataSource(kind="folder", path=str(many), directory=str(tmp_path / "kept"))
    images = load(Data(input_shape=(3, 128, 128), classes=1), source).train.images
    assert torch.equal(images, stored(many / "train"))


def test_a_changed_image_is_noticed(data, source, folder, paint, stored):
    prepare(data, source)
    path = folder / "train" / "dog" / "3.png"
    before = path.stat()
    paint(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert torch.equal(load(data, source).train.images, stored(folder / "train"))


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_added_or_removed_image_is_noticed(data, source, folder, paint, stored, *, split):
    added = folder / split / "dog" / "added.png"
    for change in (lambda: None, lambda: paint(added), added.unlink):
        change()
        assert torch.equal(getattr(load(data, source), split).images, stored(folder / split))


def test_the_cache_of_the_folder_before_it_changed_is_removed(data, source, folder, paint, tmp_path):
    def caches(path):
        prepare(data, replace(source, path=str(path)))
        return {*(Path(source.directory) / "cache").iterdir()}

    caches(folder)
    before = caches(shutil.copytree(folder, tmp_path / "other"))
    paint(folder / "train" / "cat" / "new.png")
    assert (len(before), len(caches(folder)), len(before & caches(folder))) == (2, 2, 1)


def refusal(data, source):
    with pytest.raises(UsageError) as raised:
        prepare(data, source)
    assert not Path(source.directory).exists()
    return str(raised.value)


def test_a_folder_that_is_not_laid_out_as_it_must_be_is_refused(data, source, folder, paint):
    for path in (folder / "test" / "cat").iterdir():
        path.rename(path.with_suffix(".txt"))
    assert "test/cat' has no images (.jpg, " in refusal(data, source)
    (folder / "test").rename(folder / "val")
    assert "has no test/. It needs train/<class>/<images> and " in refusal(data, source)
    shutil.rmtree(folder)
    assert "does not exist. It needs train/<class>" in refusal(data, source)
    paint(folder / "train" / "loose.png")
    (folder / "test").mkdir()
    assert "train' has no class folders." in refusal(data, source)
    shutil.rmtree(folder / "test")
    shutil.rmtree(folder / "train")
    assert "has no train/. It needs train/<class>/<images> and " in refusal(data, source)
    assert "needs a path" in refusal(data, replace(source, path=None))


@pytest.mark.parametrize("here", ["train", "test"])
def test_a_class_in_one_split_only_is_refused(data, source, folder, paint, here):
    paint(folder / here / "bird" / "0.png")
    with pytest.raises(UsageError, match=r"the same classes\. Only one of them has: bird\."):
        prepare(data, source)


@pytest.mark.parametrize("size", [(8, 8), (4, 4)])
@pytest.mark.parametrize(("split", "index", "kept_bytes"), [("train", 0, 0), ("train", 9, 60), ("test", 9, 150)])
def test_an_image_that_cannot_be_read_is_left_out_and_named(data, source, folder, *, size, split, index, kept_bytes):
    data, path = replace(data, input_shape=(3, *size)), sorted(folder.glob(f"{split}/*/*.png"))[index]
    before = getattr(load(data, source), split)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    prepared = prepare(data, source)
    assert prepared.left_out == (str(path),)
    assert prepared == prepare(data, source)  # as the cache has it
    after, kept = getattr(load(data, source), split), torch.arange(len(before.labels)) != index
    assert torch.equal(after.images, before.images[kept])
    assert torch.equal(after.labels, before.labels[kept])


@pytest.mark.parametrize("kind", ["a link to nothing", "an image that would fill the memory", "an unreadable folder"])
def test_what_is_like_an_image_and_cannot_be_read_is_left_out_and_named(data, source, folder, monkeypatch, kind):
    path = folder / "train" / "cat" / "00.png"
    before = load(data, source).train.images
    if kind == "a link to nothing":
        path.symlink_to("nowhere.png")
    elif kind == "an image that would fill the memory":
        Image.new("1", (9000, 9000)).save(path)  # a file of 10 kB
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000_000)
    else:
        path = path.with_suffix("")
        path.mkdir()
        scandir = os.scandir

        def refuse(where):
            if isinstance(where, str) and Path(where) == path:
                raise PermissionError(13, "Permission denied", str(where))
            return scandir(where)

        monkeypatch.setattr(os, "scandir", refuse)
    prepared = prepare(data, source)
    assert prepared.left_out == (str(path),)
    assert torch.equal(load(data, source).train.images, before)
    assert len(open_samples(data, source, normalize=False, seed=0)) == len(before)


def test_a_class_of_which_nothing_can_be_read_is_refused(data, source, folder):
    for path in (folder / "test" / "dog").iterdir():
        path.write_bytes(b"")
    assert "No image of the class 'dog' can be read, such as '" in refusal(data, source)


def test_links_neither_multiply_images_nor_give_them_other_labels(data, source, folder):
    for number, target in enumerate((".", "..", "../..", "../dog", "0.png")):
        (folder / "train" / "cat" / f"loop{number}").symlink_to(target)
    assert Counter(load(data, source).train.labels.tolist()) == {0: 6, 1: 6}


def test_images_that_no_disk_could_hold_are_refused_before_decoding(data, source, decodings, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("bench.data.cache.shutil.disk_usage", lambda _: usage(100))
    with pytest.raises(UsageError, match=r"The 22 images of .* take .* GiB, and the disk of .* Use fewer images"):
        prepare(data, source)
    assert decodings == []
    assert not Path(source.directory).exists()


def test_a_share_of_every_class_is_held_out():
    labels = [0] * 50 + [1] * 10 + [2] * 103
    kept, held_out = stratified(labels, 0.2)
    assert Counter(labels[index] for index in held_out) == {0: 10, 1: 2, 2: 21}
    assert sorted(kept + held_out) == list(range(163))
    assert stratified(labels, 0.2) == (kept, held_out)
    assert stratified(labels, 0.0) == (list(range(163)), [])


def test_the_intel_archives_folders_are_found_and_images_of_a_share_are_held_out(data, source, folder, paint, stored):
    for split in ("train", "test"):  # as the archive of Intel Image Classification is laid out
        (folder / f"seg_{split}").mkdir()
        (folder / split).rename(folder / f"seg_{split}" / f"seg_{split}")
    paint(folder / "seg_pred" / "seg_pred" / "10.png")
    train, test = (stored(folder / f"seg_{split}" / f"seg_{split}") for split in ("train", "test"))
    for share in (0.0, 0.5):
        dataset = load(replace(data, validation_share=share), source)
        kept, _ = stratified([0] * 6 + [1] * 6, share)
        assert dataset.classes == ("cat", "dog")
        assert torch.equal(dataset.train.images, train[kept])
        assert torch.equal(dataset.test.images, test)


def test_without_test_images_the_held_out_ones_are_the_test_set(data, source, folder, stored):
    shutil.rmtree(folder / "test")
    dataset, whole = load(replace(data, validation_share=0.34), source), stored(folder / "train")
    for split, rows in zip((dataset.train, dataset.test), stratified([0] * 6 + [1] * 6, 0.34), strict=True):
        assert torch.equal(split.images, whole[rows])
    with pytest.raises(UsageError, match=r"has no test/"):
        prepare(data, source)


@pytest.mark.parametrize("share", [0.99, 0.01])
def test_a_share_that_leaves_a_class_without_images_is_refused(data, source, folder, share):
    if share < 0.5:  # what is set apart is then the test set
        shutil.rmtree(folder / "test")
    with pytest.raises(UsageError, match=f"the class 'cat' has too few images to set a share of {share} apart"):
        prepare(replace(data, validation_share=share), source)


def change_a_byte(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda image: image.unlink(), False),
        (lambda image: image.rename(image.parents[1] / "dog" / "0x.png"), False),
        (change_a_byte, False),
        (lambda image: image.parents[1].rename(image.parents[2] / "seg_train"), True),
        (lambda image: os.utime(image, (1, 1)), True),
    ],
    ids=["one less", "another class", "other pixels", "layout alone", "times alone"],
)
def test_other_images_have_another_fingerprint(folder, change, same):
    before = fingerprint(str(folder))
    change(folder / "train" / "cat" / "0.png")
    assert (fingerprint(str(folder)) == before) is same
