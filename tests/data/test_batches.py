"""Batches of images and of random values: their order, augmentation and shards, wherever images are
stored.
"""

import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from torchvision.transforms.functional import crop

from bench.data import WHOLE, Shard, cache, prepare
from bench.data import batches as batches_module
from bench.data.sampling import augmentation, order
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from tests.data.conftest import CPU, assert_normalised, joined, opened
from tests.training.conftest import same

AUGMENTED = {"crop_padding": 2, "flip": True}
IMAGES = Data(input_shape=(3, 8, 8), classes=10, steps_per_epoch=6)
SYNTHETIC = DataSource(kind="synthetic")
FEATURES = Data(input_shape=(32,), target_shape=(4, 2), steps_per_epoch=6)


def epoch_of(batches, epoch=0):
    return joined(batches.train(epoch))


@pytest.fixture
def open_(data, source):
    def open_with(*, batch_size=5, seed=0, device=CPU, shard=WHOLE, **fields):
        changed = replace(data, **fields)
        return opened(changed, source, batch_size=batch_size, seed=seed, device=device, shard=shard)

    return open_with


def test_an_epoch_is_the_permuted_training_set_without_its_last_partial_batch(open_):
    batches = open_(seed=3)
    assert batches.data.classes == 2
    assert batches.steps_per_epoch == 2
    _, labels = epoch_of(batches, 4)
    taken = order(12, seed=3, epoch=4)[:10]
    assert torch.equal(labels, taken // 6)


@pytest.mark.parametrize(
    ("batch_size", "ranks", "sizes"),
    [
        (5, 1, [5, 5, 2]),
        (10, 2, [5, 1]),
        (5, 5, [1, 1]),  # two samples are too few for five ranks
    ],
)
def test_an_epoch_may_end_with_the_samples_that_are_left_if_each_rank_has_some(
    open_, batch_size, ranks, sizes
):
    shard = Shard(ranks=ranks)
    batches = open_(batch_size=batch_size, shard=shard, keep_last=True)
    epoch = batches.train(0)
    assert [len(labels) for _, labels in epoch] == sizes
    assert batches.steps_per_epoch == len(sizes)


def test_images_are_mirrored_resized_and_cropped_one_by_one(open_, folder, stored):
    shape = (3, 16, 12)
    batches = open_(input_shape=shape, crop_padding=3, flip=True, seed=5)
    inputs, _ = epoch_of(batches, 1)
    taken = order(12, seed=5, epoch=1)[:10]
    pixels = stored(folder / "train")[taken].float()
    resized = functional.interpolate(pixels, (16, 12), mode="bilinear")
    images = functional.pad(resized, (3, 3, 3, 3))
    drawn = augmentation(10, 3, seed=5, epoch=1)
    expected = []
    for image, (mirrored, top, left) in zip(images, drawn.T.tolist(), strict=True):
        turned = image.flip(2) if mirrored else image
        cropped = crop(turned, top, left, 16, 12)
        expected.append(cropped)
    assert_normalised(inputs, torch.stack(expected), atol=1e-5)
    tested, _ = next(batches.test())
    assert tested.shape == (5, *shape)


def test_an_epoch_follows_from_seed_and_number_and_leaves_the_global_generator_alone(open_):
    generator = torch.get_rng_state()
    batches = open_(seed=1, **AUGMENTED)
    first = epoch_of(batches)
    assert same(first, epoch_of(batches))
    assert torch.equal(generator, torch.get_rng_state())
    assert not same(first, epoch_of(batches, 1))
    for seed in (2, 1 + 2**32, -1):
        others = open_(seed=seed, **AUGMENTED)
        assert not same(first, epoch_of(others))


def test_the_test_set_is_whole_in_order_and_not_augmented(open_, folder, stored):
    batches = open_(batch_size=3, **AUGMENTED)
    pixels = stored(folder / "test")
    for _ in range(2):
        inputs, labels = joined(batches.test())
        assert_normalised(inputs, pixels)
        assert labels.tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_shards_of_the_test_set_are_all_of_it_once(open_, ranks):
    # The last of three batches has two images, fewer than there may be ranks.
    whole, _ = joined(open_(batch_size=4).test())
    most = math.ceil(4 / ranks)
    sharded = []
    for rank in range(ranks):
        shard = Shard(rank=rank, ranks=ranks)
        batches = open_(batch_size=4, shard=shard)
        for inputs, _ in batches.test():
            assert 0 < len(inputs) <= most
            sharded += inputs.tolist()
    assert sorted(sharded) == sorted(whole.tolist())


@pytest.mark.parametrize("kind", ["folder", "synthetic", "markov"])
def test_the_ranks_shards_of_a_training_batch_are_the_batch(data, source, kind):
    if kind == "markov":
        data = Data(input_shape=(4,), classes=256, tokens=True, source=kind)
    data = replace(data, steps_per_epoch=2, **AUGMENTED)
    source = replace(source, kind=kind)

    def epoch(shard):
        return opened(data, source, batch_size=6, seed=3, shard=shard).train(2)

    wholes = epoch(WHOLE)
    firsts = epoch(Shard(rank=0, ranks=2))
    seconds = epoch(Shard(rank=1, ranks=2))
    for whole, *halves in zip(wholes, firsts, seconds, strict=True):
        inputs, _ = halves[0]
        assert len(inputs) == 3
        assert same(whole, joined(halves))


@pytest.mark.parametrize(
    ("storage", "times", "ranks"),
    [
        ("device", 4.0, 1),
        ("file", 3.9, 1),
        ("file", 7.9, 2),
    ],
)
def test_images_give_the_same_batches_wherever_they_are(open_, monkeypatch, storage, times, ranks):
    shard = Shard(ranks=ranks)
    usual = open_(shard=shard, **AUGMENTED)
    available_bytes = times * 22 * 3 * 8 * 8
    monkeypatch.setattr(cache, "available_bytes", lambda: available_bytes)
    batches = open_(shard=shard, **AUGMENTED)
    assert batches.storage == storage
    assert same(list(batches.train(0)), list(usual.train(0)))
    assert same(list(batches.test()), list(usual.test()))


def test_images_in_a_file_are_gathered_by_a_thread_that_ends_with_the_epoch(open_, monkeypatch):
    threads = []
    take = np.take

    def watched(*given, **options):
        threads.append(threading.current_thread())
        return take(*given, **options)

    monkeypatch.setattr(np, "take", watched)
    monkeypatch.setattr(batches_module, "fits", lambda *_: False)
    epoch = open_(batch_size=4).train(0)
    next(epoch)
    epoch.close()  # early
    (thread,) = set(threads)
    assert thread is not threading.main_thread()
    assert not thread.is_alive()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("on_device", [False, True])
def test_a_gpu_gets_the_same_batches(open_, monkeypatch, on_device):
    expected = epoch_of(open_(**AUGMENTED))
    monkeypatch.setattr(batches_module, "fits", lambda *_: on_device)
    batches = open_(device=torch.device("cuda", 0), **AUGMENTED)
    inputs, labels = epoch_of(batches)
    assert inputs.is_cuda
    on_cpu = (inputs.cpu(), labels.cpu())
    torch.testing.assert_close(on_cpu, expected, rtol=0, atol=2e-6)


def test_a_model_that_does_not_take_rgb_is_refused(data, source):
    grey = replace(data, input_shape=(1, 8, 8))
    with pytest.raises(UsageError, match=r"takes images of 1 channel and .* of 3 \(RGB\)"):
        prepare(grey, source)
    assert not Path(source.directory).exists()


def test_random_inputs_and_targets_are_normal_and_classes_uniform():
    images = opened(IMAGES, SYNTHETIC, batch_size=2000)
    features = opened(FEATURES, SYNTHETIC, batch_size=2000)
    inputs, classes = next(images.train(0))
    _, targets = next(features.train(0))
    counts = classes.bincount(minlength=10)
    assert counts.min() > 125  # of 200: 5.6 standard deviations
    assert counts.max() < 275
    assert inputs.shape == (2000, 3, 8, 8)
    assert targets.shape == (2000, 4, 2)
    for values in (inputs, targets):
        mean = values.mean()
        deviation = values.std()
        assert mean == pytest.approx(0, abs=0.05)
        assert deviation == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("fitting", "steps", "distinct"),
    [
        (4, 6, 4),
        (9, 6, 6),
        (0, 6, 2),
        (0, 1, 1),
    ],
)
def test_the_pool_holds_what_fits_but_at_least_two_and_at_most_an_epoch(
    monkeypatch, fitting, steps, distinct
):
    sample_bytes = 4 * 3 * 8 * 8 + 8  # with its label
    pool_bytes = fitting * 16 * sample_bytes + 1
    monkeypatch.setattr(batches_module, "POOL_BYTES", pool_bytes)
    data = replace(IMAGES, steps_per_epoch=steps)
    batches = opened(data, SYNTHETIC, batch_size=16)

    def epoch(number):
        train = batches.train(number)
        return [inputs.data_ptr() for inputs, _ in train]

    first = epoch(0)
    assert len(first) == steps
    assert len(set(first)) == distinct
    assert first[distinct:] == first[: steps - distinct]  # round and round
    assert epoch(1) == first


@pytest.mark.parametrize(("data", "kind"), [(FEATURES, "folder"), (IMAGES, "synthetic")])
def test_features_are_synthetic_whatever_the_source_and_synthetic_data_need_no_files(
    data, kind, tmp_path
):
    source = DataSource(kind=kind, directory=str(tmp_path / "kept"))
    assert prepare(data, source).train_samples is None
    batches = opened(data, source)
    assert batches.steps_per_epoch == data.steps_per_epoch
    assert not batches.has_test
    assert not list(batches.test())
    assert list(tmp_path.iterdir()) == []
