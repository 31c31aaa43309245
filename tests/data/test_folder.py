"""A folder of images: what is found, decoded, cached, held out and refused; and its fingerprint."""

import errno
import os
import shutil
from collections import Counter, namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench.data import folder as folder_module
from bench.data import prepare
from bench.data.folder import fingerprint, stratified
from bench.data.loader import open_samples
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
    assert prepared.classes == 2
    assert (prepared.train_samples, prepared.fingerprint) == (12, fingerprint(source.path))
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


def test_images_of_other_modes_become_rgb(data, source, folder):
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


def test_images_that_fit_are_decoded_once_and_kept_as_they_are_for_every_input_size(data, source, decodings):
    first = prepare(data, source)
    assert prepare(data, source) == first
    larger = load(replace(data, input_shape=(3, 20, 30)), source)
    assert larger.train.images.shape == (12, 3, 8, 8)
    assert sum(decodings) == 22


def test_images_larger_than_the_input_are_squashed_when_decoded(data, source, folder):
    prepare(data, source)
    images = load(replace(data, input_shape=(3, 4, 6)), source).train.images
    assert images.shape == (12, 3, 4, 6)
    expected = Image.open(folder / "train" / "cat" / "0.png").resize((6, 4), Image.Resampling.BILINEAR)
    assert torch.equal(images[0], torch.from_numpy(np.array(expected)).permute(2, 0, 1))


@pytest.mark.parametrize("odd", ["train/cat/0.png", "train/dog/5.png", "test/dog/4.png"])
def test_images_of_several_sizes_are_squashed_to_the_input(data, source, folder, paint, odd):
    paint(folder / odd, (6, 9))
    dataset = load(replace(data, input_shape=(3, 12, 10)), source)
    assert dataset.train.images.shape == (12, 3, 12, 10)
    assert dataset.test.images.shape == (10, 3, 12, 10)


@pytest.mark.parametrize("size", [(8, 8), (128, 128)])
def test_images_stay_in_order_whether_or_not_they_are_decoded_in_parallel(tmp_path, paint, size, stored):
    for split, count in (("train", 150), ("test", 1)):
        for index in range(count):
            paint(tmp_path / "many" / split / "one" / f"{index:03}.png", size)
    source = DataSource(kind="folder", path=str(tmp_path / "many"), directory=str(tmp_path / "kept"))
    images = load(Data(input_shape=(3, *size), classes=1), source).train.images
    assert torch.equal(images, stored(tmp_path / "many" / "train"))


def test_a_changed_image_is_noticed(data, source, folder, paint):
    prepare(data, source)
    path = folder / "train" / "dog" / "3.png"
    before = path.stat()
    pixels = paint(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    image = load(data, source).train.images[9]
    assert torch.equal(image, torch.from_numpy(pixels).permute(2, 0, 1))


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_added_or_removed_image_is_noticed(data, source, folder, paint, split):
    added = folder / split / "dog" / "added.png"
    for change, count in ((lambda: None, 22), (lambda: paint(added), 23), (added.unlink, 22)):
        change()
        dataset = load(data, source)
        assert len(dataset.train.labels) + len(dataset.test.labels) == count


def test_the_cache_of_the_folder_before_it_changed_is_removed(data, source, folder, paint, tmp_path):
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


def refusal(data, source):
    with pytest.raises(UsageError) as raised:
        prepare(data, source)
    assert not Path(source.directory).exists()
    return str(raised.value)


def test_a_folder_that_is_not_laid_out_as_it_must_be_is_refused(data, source, folder, paint):
    for path in (folder / "test" / "cat").iterdir():
        path.rename(path.with_suffix(".txt"))
    assert f"'{folder}/test/cat' has no images (.jpg, " in refusal(data, source)
    (folder / "test").rename(folder / "val")
    assert "has no test/. It needs train/<class>/<images> and " in refusal(data, source)
    shutil.rmtree(folder)
    assert f"'{folder}' does not exist. It needs train/<class>" in refusal(data, source)
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
@pytest.mark.parametrize(
    ("damaged", "kept_bytes"), [("train/cat/0.png", 0), ("train/dog/3.png", 60), ("test/dog/4.png", 150)]
)
def test_an_image_that_cannot_be_read_is_left_out_and_named(data, source, folder, stored, *, size, damaged, kept_bytes):
    data, path = replace(data, input_shape=(3, *size)), folder / damaged
    whole = load(data, source)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    prepared = prepare(data, source)
    assert prepared.left_out == (str(path),)
    assert prepared == prepare(data, source)  # as the cache has it
    dataset = load(data, source)
    for name in ("train", "test"):
        split, before = getattr(dataset, name), getattr(whole, name)
        kept = [index for index, image in enumerate(sorted(folder.glob(f"{name}/*/*.png"))) if image != path]
        assert torch.equal(split.images, before.images[kept])
        assert torch.equal(split.labels, before.labels[kept])


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
                raise PermissionError(errno.EACCES, "Permission denied", str(where))
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
    assert kept == sorted(kept)
    assert held_out != list(range(min(held_out), min(held_out) + len(held_out)))
    assert stratified(labels, 0.2) == (kept, held_out)
    assert stratified(labels, 0.0) == (list(range(163)), [])


def test_the_intel_archives_folders_are_found_and_images_of_a_share_are_held_out(data, source, folder, paint, stored):
    for split in ("train", "test"):  # as the archive of Intel Image Classification is laid out
        (folder / f"seg_{split}").mkdir()
        (folder / split).rename(folder / f"seg_{split}" / f"seg_{split}")
    paint(folder / "seg_pred" / "seg_pred" / "10.png")
    train, test = (stored(folder / f"seg_{split}" / f"seg_{split}") for split in ("train", "test"))
    for share, count in ((0.0, 6), (0.5, 3)):
        dataset = load(replace(data, validation_share=share), source)
        kept, _ = stratified([0] * 6 + [1] * 6, share)
        assert dataset.classes == ("cat", "dog")
        assert dataset.train.labels.tolist() == [0] * count + [1] * count
        assert torch.equal(dataset.train.images, train[kept])
        assert torch.equal(dataset.test.images, test)


def test_without_test_images_the_held_out_ones_are_the_test_set(data, source, folder, stored):
    shutil.rmtree(folder / "test")
    dataset = load(replace(data, validation_share=0.34), source)
    kept, held_out = stratified([0] * 6 + [1] * 6, 0.34)
    whole = stored(folder / "train")
    assert torch.equal(dataset.train.images, whole[kept])
    assert torch.equal(dataset.test.images, whole[held_out])
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(UsageError, match=r"has no test/"):
        prepare(data, source)


def test_suites_with_other_validation_shares_have_caches_of_their_own(data, source):
    cache = Path(source.directory) / "cache"
    for share in (0.0, 0.5, 0.0):
        prepare(replace(data, validation_share=share), source)
    assert len(list(cache.iterdir())) == 2
    assert prepare(data, source).train_samples == 12


def test_a_share_that_leaves_a_class_without_images_is_refused(data, source, folder):
    with pytest.raises(UsageError, match=r"the class 'cat' has too few images to set a share of 0\.99 apart"):
        prepare(replace(data, validation_share=0.99), source)
    shutil.rmtree(folder / "test")
    with pytest.raises(UsageError, match=r"too few images to set a share of 0\.01 apart"):
        prepare(replace(data, validation_share=0.01), source)


def change_a_byte(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda root: (root / "train" / "cat" / "0.png").unlink(), False),
        (lambda root: (root / "train" / "cat" / "0.png").rename(root / "train" / "cat" / "9.png"), False),
        (lambda root: (root / "train" / "cat" / "0.png").rename(root / "train" / "dog" / "0x.png"), False),
        (lambda root: change_a_byte(root / "train" / "cat" / "0.png"), False),
        (lambda root: (root / "test").rename(root / "seg_test"), True),
        (lambda root: [os.utime(file, (1, 1)) for file in root.rglob("*.png")], True),
    ],
    ids=["one less", "another name", "another class", "other pixels", "layout alone", "times alone"],
)
def test_other_images_have_another_fingerprint(folder, change, same):
    before, copy = fingerprint(str(folder)), shutil.copytree(folder, folder.with_name("copy"))
    assert len(before) == 16
    change(copy)
    assert (fingerprint(str(copy)) == before) is same


def test_the_fingerprint_reads_only_some_of_many_images(folder, monkeypatch):
    read = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self) or read_bytes(self))
    monkeypatch.setattr(folder_module, "READ", 2)
    fingerprint(str(folder))
    assert len(read) == 4
