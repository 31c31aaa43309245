from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from bench.data import batches as batches_module
from bench.data import open_batches, prepare, random_batches
from bench.spec.suite import Data
from bench.spec.trial import DataSource

CPU = torch.device("cpu")
IMAGES = Data(input_shape=(3, 8, 8), classes=10, steps_per_epoch=6)
FEATURES = Data(input_shape=(32,), target_shape=(4, 2), steps_per_epoch=6)


def batches_of(data: Data, kind: str = "synthetic", directory: str = "data", **given: int):
    source = DataSource(kind=kind, directory=directory)
    return open_batches(data, source, **({"batch_size": 16, "seed": 0} | given), device=CPU)


def test_inputs_are_normal_and_classes_uniform() -> None:
    ((inputs, labels),) = random_batches(IMAGES, batch_size=2000, count=1, device=CPU, seed=0)
    assert (inputs.shape, inputs.dtype) == ((2000, 3, 8, 8), torch.float32)
    assert abs(inputs.mean().item()) < 0.01
    assert abs(inputs.std().item() - 1) < 0.01
    assert (labels.shape, labels.dtype) == ((2000,), torch.int64)
    counts = labels.bincount(minlength=10)
    assert len(counts) == 10
    assert ((counts - 200).abs() < 75).all()  # 5.6 standard deviations


def test_targets_of_a_regression_are_normal_and_of_their_shape() -> None:
    ((_, targets),) = random_batches(FEATURES, batch_size=2000, count=1, device=CPU, seed=0)
    assert (targets.shape, targets.dtype) == ((2000, 4, 2), torch.float32)
    assert abs(targets.mean().item()) < 0.05
    assert abs(targets.std().item() - 1) < 0.05


def test_a_seed_repeats_itself_and_batches_and_seeds_differ() -> None:
    first = random_batches(IMAGES, batch_size=4, count=2, device=CPU, seed=1)
    again = random_batches(IMAGES, batch_size=4, count=2, device=CPU, seed=1)
    for batch, same in zip(first, again, strict=True):
        assert torch.equal(batch[0], same[0])
        assert torch.equal(batch[1], same[1])
    assert not torch.equal(first[0][0], first[1][0])
    other = random_batches(IMAGES, batch_size=4, count=2, device=CPU, seed=2)
    assert not torch.equal(first[0][0], other[0][0])


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    random_batches(IMAGES, batch_size=4, count=2, device=CPU, seed=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("data", [IMAGES, FEATURES])
def test_an_epoch_has_the_steps_asked_for_and_there_is_no_test_set(data: Data) -> None:
    batches = batches_of(data)
    assert batches.data == data
    assert batches.steps_per_epoch == 6
    assert not batches.has_test
    assert list(batches.test()) == []
    epoch = [inputs for inputs, _ in batches.train(0)]
    assert len(epoch) == 6
    assert len({inputs.data_ptr() for inputs in epoch}) == 6


@pytest.mark.parametrize(("fitting", "steps", "distinct"), [(4, 6, 4), (9, 6, 6), (0, 6, 2), (1, 6, 2), (0, 1, 1)])
@pytest.mark.parametrize("data", [IMAGES, FEATURES])
def test_the_pool_holds_what_fits_but_at_least_two_and_at_most_an_epoch(
    data: Data, monkeypatch: pytest.MonkeyPatch, fitting: int, steps: int, distinct: int
) -> None:
    ((inputs, targets),) = random_batches(data, batch_size=16, count=1, device=CPU, seed=0)
    batch_bytes = inputs.nbytes + targets.nbytes
    monkeypatch.setattr(batches_module, "POOL_BYTES", fitting * batch_bytes + batch_bytes // 2)
    batches = batches_of(replace(data, steps_per_epoch=steps))
    drawn = [inputs.data_ptr() for epoch in range(2) for inputs, _ in batches.train(epoch)]
    assert len(drawn) == 2 * steps
    assert len(set(drawn)) == distinct
    assert drawn == 2 * list(islice(drawn[:distinct] * 6, steps))  # round and round, anew in each epoch


@pytest.mark.parametrize("kind", ["cifar10", "folder", "synthetic"])
def test_features_are_synthetic_whatever_the_source(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    prepared = prepare(FEATURES, DataSource(kind=kind, directory=str(directory)))
    assert (prepared.data, prepared.train_samples) == (FEATURES, None)
    assert not batches_of(FEATURES, kind, str(directory)).has_test
    assert not directory.exists()


def test_synthetic_images_keep_their_classes_and_need_no_files(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    prepared = prepare(IMAGES, DataSource(kind="synthetic", directory=str(directory)))
    assert (prepared.data, prepared.train_samples) == (IMAGES, None)
    assert not directory.exists()
