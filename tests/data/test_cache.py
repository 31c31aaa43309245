"""The file of packed images: whole or not there."""

import pytest
import torch

from bench.data.cache import packed

IMAGES = torch.arange(48, dtype=torch.uint8).view(4, 3, 2, 2)
FACTS = {"size": [2, 2], "names": ["a", "b\udcff"]}


def pack(pixels):
    pixels.write(IMAGES.numpy().tobytes())
    return FACTS


def full(pixels):
    pixels.write(b"half")
    raise OSError(28, "No space left on device")


def test_what_could_not_be_packed_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="No space left"):
        packed(tmp_path / "x.pixels", full)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".lock"}


def test_pixels_without_facts_are_not_whole_and_packed_again_and_those_with_facts_are_not(tmp_path):
    file = tmp_path / "x.pixels"
    file.write_bytes(b"half")
    for make in (pack, full):
        images, facts = packed(file, make)
        assert torch.equal(images, IMAGES)
        assert facts == FACTS
