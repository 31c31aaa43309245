import pytest
import torch

from bench.data.sampling import augmentation, resize


def test_shrinking_does_not_alias():
    image = torch.zeros(1, 1, 1, 8, dtype=torch.uint8)
    image[..., 2::4] = 200
    # Sampling without a filter would give 0 or 100, never in between.
    assert resize(image, (1, 2)).min() > 20


def test_every_place_is_drawn_about_as_often_and_half_are_mirrored():
    mirrored, top, left = augmentation(90_000, 4, seed=0, epoch=0)
    assert top.max() == left.max() == 8
    counts = torch.bincount(top * 9 + left, minlength=81)
    off = counts - 90_000 / 81
    assert off.abs().max() < 170  # 5 standard deviations
    share = mirrored.double().mean().item()
    assert share == pytest.approx(0.5, abs=0.01)
