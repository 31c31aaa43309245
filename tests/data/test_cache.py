import os
from pathlib import Path

import pytest
import torch

from bench.data import cache, prepare
from bench.data.cache import Dataset, Split
from bench.spec.errors import UsageError


def dataset():
    images = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).view(4, 3, 2, 2)
    split = Split(images=images, labels=torch.tensor([0, 1, 1, 0]))
    return Dataset(train=split, test=Split(images=images[:1], labels=torch.tensor([1])), classes=("a", "b"))


def test_a_cache_that_cannot_be_read_is_as_good_as_missing_and_made_anew(data, source):
    first = prepare(data, source)
    (file,) = (Path(source.directory) / "cache").iterdir()
    whole = file.read_bytes()
    for damaged in (b"", b"not a file of tensors", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        assert prepare(data, source) == first
    torch.save({"something": "else"}, file)
    assert prepare(data, source) == first
    assert list(file.parent.iterdir()) == [file]


def test_a_failed_write_leaves_nothing_and_says_where(tmp_path, monkeypatch):
    def full(_, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    home = tmp_path / "made" / "cache"
    with pytest.raises(UsageError, match=r"cannot be kept in '.*cache' \(.*No space left.*--data-dir"):
        cache.write(home / "x.pt", dataset())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match=r"cannot be written\. Choose another with --data-dir"):
        cache.require_room(tmp_path / "kept", 1, "Images")


@pytest.mark.parametrize("place", ["kept", "kept/cache"])
def test_a_file_in_place_of_the_directory_is_refused(tmp_path, place):
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(UsageError, match=f"{place}' cannot be written"):
        cache.require_room(tmp_path / place, 1, "Images")
