import torch
from torch.nn import functional

from bench.data.sampling import augmentation, crop, order, resize


def test_crops_at_the_nearest_and_the_farthest_corner_are_what_padding_and_slicing_gives():
    images, corners = torch.arange(210, dtype=torch.uint8).view(2, 3, 5, 7), torch.tensor([0, 4])
    first, last = functional.pad(images, (2, 2, 2, 2))
    assert torch.equal(crop(images, corners, corners, 2), torch.stack([first[:, :5, :7], last[:, 4:, 4:]]))


def test_enlarging_interpolates_between_pixel_centres():
    batch = torch.tensor([[[[0, 100]]]], dtype=torch.uint8)
    got = resize(batch, (1, 4))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, torch.tensor([[[[0.0, 25.0, 75.0, 100.0]]]]))


def test_shrinking_does_not_alias():
    stripes = torch.tensor([0, 0, 200, 0, 0, 0, 200, 0], dtype=torch.uint8).view(1, 1, 1, 8)
    assert resize(stripes, (1, 2)).min() > 20  # sampling without a filter would give 0 or 100, never in between
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
