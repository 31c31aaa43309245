import pytest
import torch

from bench.data.sampling import augmentation, resize


def test_shrinking_does_not_alias():
    image = torch.zeros(1, 1, 1, 8, dtype=torch.uint8)
    image[..., 2::4] = 200
    shrunk = resize(image, (1, 2))
    assert shrunk.min() > 20  # sampling without a filter would give 0 or 100, never in between


def test_every_place_is_drawn_about_as_often_and_half_are_mirrored():
    mirrored, top, left = augmentation(90_000, 4, seed=0, epoch=0)
    assert left.max() == 8
    place = top * 9 + left
    counts = torch.bincount(place)
    assert len(counts) == 81
    # Each is expected 1111 times, with a standard deviation of 33.
    assert counts.min() > 941
    assert counts.max() < 1281
    share = mirrored.double().mean()
    assert share == pytest.approx(0.5, abs=0.01)
