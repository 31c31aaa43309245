import pytest
import torch
from torch.nn import functional

from bench.data.sampling import Augmentation, Normalizer, crop, mirror, order, resize


def images(dtype=torch.uint8):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (16, 3, 5, 7), generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("padding", [1, 2, 4])
def test_every_crop_is_what_padding_and_slicing_that_image_gives(dtype, padding):
    batch = images(dtype)
    top, left = torch.randint(2 * padding + 1, (2, 16), generator=torch.Generator().manual_seed(2))
    top[:2], left[:2] = torch.tensor([0, 2 * padding]), torch.tensor([2 * padding, 0])
    top[-1], left[-1] = 2 * padding, 2 * padding
    expected = [
        functional.pad(image, (padding,) * 4)[:, y : y + 5, x : x + 7]
        for image, y, x in zip(batch, top.tolist(), left.tolist(), strict=True)
    ]
    assert torch.equal(crop(batch, top, left, padding), torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_only_chosen_images_are_mirrored(dtype):
    batch = images(dtype)
    chosen = torch.arange(16) % 3 == 0
    expected = [image.flip(2) if flag else image for image, flag in zip(batch, chosen.tolist(), strict=True)]
    assert torch.equal(mirror(batch, chosen), torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_pixels_are_normalised_per_channel(dtype):
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)
    batch = images(dtype)
    got = Normalizer(mean, std, torch.device("cpu"))(batch)
    expected = (batch.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-6)


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


def test_augmentation_is_drawn_from_seed_and_epoch():
    first, again = (Augmentation.draw(1000, 4, seed=1, epoch=2) for _ in range(2))
    assert all(map(torch.equal, first, again))
    for seed, epoch in ((1, 3), (2, 2), (2, 1), (1 + 2**32, 2)):
        assert not any(map(torch.equal, first, Augmentation.draw(1000, 4, seed=seed, epoch=epoch)))


def test_every_place_is_drawn_about_as_often_and_half_are_mirrored():
    drawn = Augmentation.draw(90_000, 4, seed=0, epoch=0)
    for place in (drawn.top, drawn.left):
        counts = place.bincount(minlength=9)
        assert len(counts) == 9
        assert ((counts - 10_000).abs() < 500).all()  # 5 standard deviations
    together = (drawn.top * 9 + drawn.left).bincount(minlength=81)
    assert ((together - 90_000 / 81).abs() < 200).all()  # rows and columns are independent
    assert abs(drawn.mirrored.float().mean().item() - 0.5) < 0.01
