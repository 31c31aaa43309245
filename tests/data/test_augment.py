import torch

from bench.data.sampling import augmentation, resize


def test_shrinking_does_not_alias():
    stripes = torch.tensor([0, 0, 200, 0, 0, 0, 200, 0], dtype=torch.uint8).view(1, 1, 1, 8)
    # Sampling without a filter would give 0 or 100, never in between.
    assert resize(stripes, (1, 2)).min() > 20


def test_every_place_is_drawn_about_as_often_and_half_are_mirrored():
    mirrored, top, left = augmentation(90_000, 4, seed=0, epoch=0)
    for place in (top, left):
        counts = place.bincount(minlength=9)
        assert len(counts) == 9
        assert ((counts - 10_000).abs() < 500).all()  # 5 standard deviations
    together = (top * 9 + left).bincount(minlength=81)
    assert ((together - 90_000 / 81).abs() < 200).all()  # rows and columns are independent
    assert abs(mirrored.float().mean().item() - 0.5) < 0.01
