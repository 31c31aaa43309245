import pytest
import torch

from bench.data.sampling import augmentation, resize


def test_shrinking_does_not_alias():
    stripes = torch.tensor([0, 0, 200, 0, 0, 0, 200, 0], dtype=torch.uint8)
    image = stripes.view(1, 1, 1, 8)
    # Sampling without a filter would give 0 or 100, never in between.
    assert resize(image, (1, 2)).min() > 20


def test_every_place_is_drawn_about_as_often_and_half_are_mirrored():
    mirrored, top, left = augmentation(90_000, 4, seed=0, epoch=0)
    for place in (top, left):
        counts = place.bincount(minlength=9)
        assert len(counts) == 9
        off = counts - 10_000
        assert off.abs().max() < 500  # 5 standard deviations
    pairs = top * 9 + left
    off = pairs.bincount(minlength=81) - 90_000 / 81
    assert off.abs().max() < 200  # rows and columns are independent
    share = mirrored.float().mean().item()
    assert share == pytest.approx(0.5, abs=0.01)
