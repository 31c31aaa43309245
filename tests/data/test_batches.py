"""Batches of images and of random values: their order, augmentation and shards, wherever images are
stored.
"""

import math
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from bench.data import WHOLE, Shard, cache, open_batches, prepare, random_batches
from bench.data import batches as batches_module
from bench.data.sampling import augmentation, order
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from tests.data.conftest import assert_normalised, joined
from tests.training.conftest import same

CPU = torch.device("cpu")
AUGMENTED = {"crop_padding": 2, "flip": True}
IMAGES = Data(input_shape=(3, 8, 8), classes=10, steps_per_epoch=6)
SYNTHETIC = DataSource(kind="synthetic")
FEATURES = Data(input_shape=(32,), target_shape=(4, 2), steps_per_epoch=6)


def epoch_of(batches, epoch):
    return joined(batches.train(epoch))


@pytest.fixture
def open_(data, source):
    def opened(*, batch_size=5, seed=0, device=CPU, shard=WHOLE, **changes):
        return open_batches(
            replace(data, **changes),
            source,
            batch_size=batch_size,
            device=device,
            seed=seed,
            shard=shard,
        )

    return opened


def test_an_epoch_is_the_permuted_training_set_without_its_last_partial_batch(
    open_, folder, stored
):
    batches = open_(seed=3)
    assert batches.data.classes == 2
    assert batches.has_test
    assert batches.steps_per_epoch == 2
    inputs, labels = epoch_of(batches, 4)
    assert inputs.dtype == torch.float32
    assert labels.dtype == torch.int64
    taken = order(12, seed=3, epoch=4)[:10]
    pixels = stored(folder / "train")[taken]
    assert_normalised(inputs, pixels, batches.data)
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
    assert [len(labels) for _, labels in batches.train(0)] == sizes
    assert batches.steps_per_epoch == len(sizes)


def test_images_are_mirrored_resized_and_cropped_one_by_one(open_, folder, stored):
    shape = (3, 16, 12)
    batches = open_(input_shape=shape, crop_padding=3, flip=True, seed=5)
    inputs, _ = epoch_of(batches, 1)
    taken = order(12, seed=5, epoch=1)
    drawn = augmentation(10, 3, seed=5, epoch=1)
    assert set(drawn[0].tolist()) == {0, 1}
    pixels = stored(folder / "train")[taken]
    images = functional.interpolate(pixels.float(), (16, 12), mode="bilinear")
    images = functional.pad(images, (3, 3, 3, 3))
    for number, (mirrored, top, left) in enumerate(drawn.T.tolist()):
        image = images[number]
        if mirrored:
            image = image.flip(2)
        rows = image[:, top : top + 16]
        expected = rows[..., left : left + 12]
        assert_normalised(inputs[number], expected, batches.data, atol=1e-5)
    tested, _ = next(batches.test())
    assert tested.shape == (5, *shape)


def test_an_epoch_follows_from_seed_and_number_and_leaves_the_global_generator_alone(open_):
    def epoch(seed, number):
        batches = open_(seed=seed, **AUGMENTED)
        return epoch_of(batches, number)

    generator = torch.get_rng_state()
    first = epoch(1, 0)
    assert torch.equal(generator, torch.get_rng_state())
    torch.manual_seed(123)
    assert same(first, epoch(1, 0))
    for seed, number in ((1, 1), (2, 0), (1 + 2**32, 0), (-1, 0)):
        assert not same(first, epoch(seed, number))


def test_the_test_set_is_whole_in_order_and_not_augmented(open_, folder, stored):
    batches = open_(batch_size=3, **AUGMENTED)
    for _ in range(2):
        inputs, labels = joined(batches.test())
        assert_normalised(inputs, stored(folder / "test"), batches.data)
        assert torch.equal(labels, torch.arange(10) // 5)


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_shards_of_the_test_set_are_all_of_it_once(open_, ranks):
    # The last of three batches has two images, fewer than there may be ranks.
    whole, _ = joined(open_(batch_size=4).test())
    shards = []
    for rank in range(ranks):
        shard = Shard(rank=rank, ranks=ranks)
        batches = open_(batch_size=4, shard=shard)
        for inputs, _ in batches.test():
            assert 0 < len(inputs) <= math.ceil(4 / ranks)
            shards.append(inputs)
    taken = torch.cat(shards)
    assert torch.equal(taken.unique(dim=0), whole.unique(dim=0))
    assert len(taken) == len(whole)


@pytest.mark.parametrize("kind", ["folder", "synthetic", "markov"])
def test_the_ranks_shards_of_a_training_batch_are_the_batch(data, source, kind):
    data = replace(data, classes=2, steps_per_epoch=2, **AUGMENTED)
    if kind == "markov":
        data = Data(input_shape=(4,), classes=256, tokens=True, source=kind, steps_per_epoch=2)
    source = replace(source, kind=kind)

    def epoch(shard):
        batches = open_batches(data, source, batch_size=6, device=CPU, seed=3, shard=shard)
        return batches.train(2)

    wholes = epoch(WHOLE)
    firsts = epoch(Shard(rank=0, ranks=2))
    seconds = epoch(Shard(rank=1, ranks=2))
    for whole, *parts in zip(wholes, firsts, seconds, strict=True):
        for inputs, _ in parts:
            assert len(inputs) == 3
        assert same(whole, joined(parts))


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
    images_bytes = 22 * 3 * 8 * 8
    available = int(times * images_bytes)
    monkeypatch.setattr(cache, "available_bytes", lambda: available)
    batches = open_(shard=shard, **AUGMENTED)
    assert batches.storage == storage
    assert same(epoch_of(batches, 0), epoch_of(usual, 0))
    for expected, batch in zip(usual.test(), batches.test(), strict=True):
        assert same(expected, batch)


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
    assert threads
    for thread in threads:
        assert thread is not threading.main_thread()
        assert not thread.is_alive()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("on_device", [False, True])
def test_a_gpu_gets_the_same_batches(open_, monkeypatch, on_device):
    usual = open_(**AUGMENTED)
    monkeypatch.setattr(batches_module, "fits", lambda *_: on_device)
    batches = open_(device=torch.device("cuda", 0), **AUGMENTED)
    inputs, labels = epoch_of(batches, 0)
    assert inputs.is_cuda
    given = inputs.cpu(), labels.cpu()
    torch.testing.assert_close(given, epoch_of(usual, 0), rtol=0, atol=2e-6)


def test_a_model_that_does_not_take_rgb_is_refused(data, source):
    grey = replace(data, input_shape=(1, 8, 8))
    with pytest.raises(UsageError, match=r"takes images of 1 channel and .* of 3 \(RGB\)"):
        prepare(grey, source)
    assert not Path(source.directory).exists()


def test_random_inputs_and_targets_are_normal_and_classes_uniform():
    draw = partial(random_batches, batch_size=2000, count=1, device=CPU, seed=0)
    ((inputs, labels),) = draw(IMAGES)
    ((_, targets),) = draw(FEATURES)
    counts = labels.bincount(minlength=10)
    assert counts.min() > 125  # of 200: 5.6 standard deviations
    assert counts.max() < 275
    assert inputs.shape == (2000, 3, 8, 8)
    assert targets.shape == (2000, 4, 2)
    for values in (inputs, targets):
        assert abs(values.mean()) < 0.05
        assert abs(values.std() - 1) < 0.05


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
    monkeypatch.setattr(batches_module, "POOL_BYTES", fitting * 16 * sample_bytes + 1)
    data = replace(IMAGES, steps_per_epoch=steps)
    batches = open_batches(data, SYNTHETIC, batch_size=16, device=CPU, seed=0)

    def epoch(number):
        return [inputs.data_ptr() for inputs, _ in batches.train(number)]

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
    batches = open_batches(data, source, batch_size=16, device=CPU, seed=0)
    assert batches.steps_per_epoch == data.steps_per_epoch
    assert not batches.has_test
    assert not list(batches.test())
    assert not any(tmp_path.iterdir())
