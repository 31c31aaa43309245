"""The loader of worker processes: every image once an epoch, as files or random, with its own label, without end."""

import multiprocessing
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from bench.data import prepare
from bench.data.loader import DEPTH, batch_ms, open_loader, open_samples, steps_per_epoch
from bench.spec.suite import Data
from bench.spec.trial import DataSource

DATA = Data(input_shape=(3, 8, 8), classes=2, source="cifar10", steps_per_epoch=7)


@pytest.fixture
def source(folder):
    return DataSource(kind="folder", path=str(folder))


def test_whole_batches_hold_every_sample_once_an_epoch_in_an_order_of_the_seed():
    def batches(seed):
        return list(islice(open_loader(range(6), batch_size=4, seed=seed, pinned=False).batch_sampler, 3))

    order = [index for batch in batches(1) for index in batch]
    assert list(map(len, batches(1))) == [4, 4, 4]
    assert sorted(order[:6]) == sorted(order[6:]) == list(range(6))
    assert batches(1) == batches(1) != batches(2)


def test_samples_are_the_files_pixels_with_their_class(source, folder):
    samples = open_samples(DATA, source, normalize=False, seed=0)
    paths = sorted((folder / "train").glob("*/*"))
    assert len(samples) == len(paths)
    for index, path in enumerate(paths):
        image, label = samples[index]
        assert image.dtype == torch.uint8
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(Image.open(path)))
        assert label == sorted(entry.name for entry in (folder / "train").iterdir()).index(path.parent.name)


def test_normalised_samples_are_what_the_device_makes_of_the_pixels(source):
    pixels, _ = open_samples(DATA, source, normalize=False, seed=0)[3]
    floats, _ = open_samples(DATA, source, normalize=True, seed=0)[3]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (DATA.mean, DATA.std))
    assert torch.allclose(floats, (pixels / 255 - mean) / std, atol=1e-6)


def test_images_are_brought_to_the_suites_size_and_random_ones_have_it(source):
    large = Data(input_shape=(3, 12, 10), classes=2, source="cifar10", crop_padding=2, flip=True)
    synthetic = DataSource(kind="synthetic")
    assert open_samples(large, source, normalize=False, seed=0)[0][0].shape == (3, 12, 10)
    assert open_samples(large, synthetic, normalize=False, seed=0)[0][0].shape == (3, 12, 10)
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
