import torch
from torch.nn import functional

from bench.data.sampling import augmentation, order, resize


def test_shrinking_does_not_alias():
    stripes = torch.tensor([0, 0, 200, 0, 0, 0, 200, 0], dtype=torch.uint8).view(1, 1, 1, 8)
    assert (
        resize(stripes, (1, 2)).min() > 20
    )  # sampling without a filter would give 0 or 100, never in between
    plain = functional.interpolate(stripes.float(), (1, 2), mode="bilinear")
    assert not torch.allclose(resize(stripes, (1, 2)), plain)


def test_order_is_a_permutation_of_seed_and_epoch():
    first = order(1000, seed=1, epoch=2)
    assert torch.equal(first.sort().values, torch.arange(1000))
    assert torch.equal(first, order(1000, seed=1, epoch=2))
    for seed, epoch in ((1, 3), (2, 2), (2, 1), (1 + 2**32, 2), (-1, 2)):
        assert not torch.equal(first, order(1000, seed=seed, epoch=epoch))


def test_every_place_is_drawn_about_as_often_and_half_are_mirrored():
    mirrored, top, left = augmentation(90_000, 4, seed=0, epoch=0)
    for place in (top, left):
        counts = place.bincount(minlength=9)
        assert len(counts) == 9
        assert ((counts - 10_000).abs() < 500).all()  # 5 standard deviations
    together = (top * 9 + left).bincount(minlength=81)
    assert ((together - 90_000 / 81).abs() < 200).all()  # rows and columns are independent
    assert abs(mirrored.float().mean().item() - 0.5) < 0.01
