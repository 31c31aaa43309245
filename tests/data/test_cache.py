"""The file of packed images: whole or not there, packed by one process, and kept with its facts."""

import json
from pathlib import Path

import pytest
import torch

from bench.data import prepare
from bench.data.cache import packed

IMAGES = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).view(4, 3, 2, 2)


def pack(pixels):
    pixels.write(IMAGES.numpy().tobytes())
    return {"size": (2, 2), "names": ["a", "b\udcff"]}


def test_what_could_not_be_packed_leaves_nothing_and_is_packed_the_next_time(tmp_path):
    def full(pixels):
        pixels.write(b"half")
        raise OSError(28, "No space left on device")

    file = tmp_path / "x.pixels"
    with pytest.raises(OSError, match="No space left"):
        packed(file, full)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".lock"}
    images, _facts = packed(file, pack)
    assert torch.equal(images, IMAGES)


def test_pixels_without_facts_are_not_whole_and_packed_again(data, source):
    first = prepare(data, source)
    (facts,) = (Path(source.directory) / "cache").glob("*.json")
    assert json.loads(facts.read_text())["size"] == [8, 8]
    facts.unlink()
    facts.with_suffix(".pixels").write_bytes(b"half")
    assert prepare(data, source) == first
