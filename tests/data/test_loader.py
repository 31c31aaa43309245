"""The loader of worker processes: every image once an epoch, as files or random, with its own label, without end."""

import multiprocessing
from dataclasses import replace
from itertools import islice

import pytest
import torch

from bench.data import prepare
from bench.data.loader import DEPTH, batch_ms, open_loader, open_samples, steps_per_epoch
from bench.spec.suite import Data
from bench.spec.trial import DataSource
from tests.data.test_batches import assert_normalised

DATA = Data(input_shape=(3, 8, 8), classes=2, source="cifar10", steps_per_epoch=7)


@pytest.fixture
def source(folder):
    return DataSource(kind="folder", path=str(folder))


def test_whole_batches_hold_every_sample_once_an_epoch_in_an_order_of_the_seed():
    def order(seed):
        batches = open_loader(range(6), batch_size=4, seed=seed, pinned=False).batch_sampler
        return [index for batch in islice(batches, 3) for index in batch]

    assert sorted(order(1)[:6]) == sorted(order(1)[6:]) == list(range(6))
    assert order(1) == order(1) != order(2)


def test_samples_are_the_files_pixels_with_their_class(source, folder, stored):
    samples = open_samples(DATA, source, normalize=False, seed=0)
    images, labels = zip(*(samples[index] for index in range(len(samples))), strict=True)
    assert torch.equal(torch.stack(images), stored(folder / "train"))
    assert labels == (0,) * 6 + (1,) * 6


def test_normalised_samples_are_what_the_device_makes_of_the_pixels(source):
    pixels, floats = (open_samples(DATA, source, normalize=each, seed=0)[3][0] for each in (False, True))
    assert_normalised(floats, pixels, DATA)


def test_images_are_brought_to_the_suites_size_and_random_ones_have_it(source):
    large = Data(input_shape=(3, 12, 10), classes=2, source="cifar10", crop_padding=2, flip=True)
    for each in (source, DataSource(kind="synthetic")):
        assert open_samples(large, each, normalize=False, seed=0)[0][0].shape == (3, 12, 10)
    table = Data(input_shape=(5,), target_shape=(2,))
    assert [tensor.shape for tensor in open_samples(table, source, normalize=True, seed=0)[0]] == [(5,), (2,)]


def test_an_epoch_has_the_files_whole_batches_or_what_the_suite_says(source):
    assert steps_per_epoch(DATA, source, 5, samples=12) == 2
    assert steps_per_epoch(DATA, DataSource(kind="synthetic"), 5, samples=12) == 7
    assert steps_per_epoch(Data(input_shape=(5,), target_shape=(2,), steps_per_epoch=9), source, 5, samples=12) == 9


@pytest.mark.parametrize("share", [0.0, 0.34])
def test_what_training_sets_apart_is_not_loaded(source, tmp_path, share):
    data = replace(DATA, validation_share=share)
    trained_on = prepare(data, replace(source, directory=str(tmp_path / "kept"))).train_samples
    assert trained_on == (12 if not share else 8)
    assert len(open_samples(data, source, normalize=True, seed=0)) == trained_on


def test_worker_processes_make_batches_and_end(source):
    loader = iter(open_loader(open_samples(DATA, source, normalize=True, seed=0), batch_size=4, seed=0, pinned=False))
    try:
        images, labels = next(loader)
        assert (images.shape, images.dtype, labels.shape) == ((4, 3, 8, 8), torch.float32, (4,))
        assert len(multiprocessing.active_children()) == 2
    finally:
        loader._shutdown_workers()
    assert not multiprocessing.active_children()


def test_the_loader_is_timed_after_what_was_ready_has_been_used_up():
    taken = []
    batch_ms(iter(lambda: taken.append(1) or 0, 1), 3)
    assert len(taken) == DEPTH + 3
