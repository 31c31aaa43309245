from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.data import Shard, open_batches, prepare
from bench.data.folder import stratified
from bench.data.prepare import load
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.spec.trial import DataSource
from tests.data.conftest import FakeCifar

Paint = Callable[..., np.ndarray]
CPU = torch.device("cpu")


def as_intel(folder: Path) -> None:
    """Lay the folder out as the archive of Intel Image Classification is."""
    for split in ("train", "test"):
        (folder / f"seg_{split}").mkdir()
        (folder / split).rename(folder / f"seg_{split}" / f"seg_{split}")


def test_a_fifth_of_every_class_is_set_apart() -> None:
    labels = [0] * 50 + [1] * 10 + [2] * 103
    stay, apart = stratified(labels, 0.2)
    assert Counter(labels[index] for index in apart) == {0: 10, 1: 2, 2: 21}
    assert sorted(stay + apart) == list(range(163))
    assert stay == sorted(stay)
    assert apart != list(range(min(apart), min(apart) + len(apart)))
    assert stratified(labels, 0.2) == (stay, apart)
    assert stratified(labels, 0.0) == (list(range(163)), [])


def test_intels_folders_are_found_as_they_come_from_the_archive(
    data: Data, source: DataSource, folder: Path, paint: Paint
) -> None:
    plain = load(data, source)
    as_intel(folder)
    paint(folder / "seg_pred" / "seg_pred" / "10.png")
    intel = load(data, source)
    assert intel.classes == plain.classes
    assert torch.equal(intel.train.images, plain.train.images)
    assert torch.equal(intel.test.images, plain.test.images)


def test_what_is_set_apart_is_not_trained_on_and_the_test_images_stay(
    data: Data, source: DataSource, folder: Path, stored: Callable[[Path], torch.Tensor]
) -> None:
    as_intel(folder)
    dataset = load(replace(data, validation_share=0.5), source)
    assert dataset.train.labels.tolist() == [0] * 3 + [1] * 3
    whole = stored(folder / "seg_train" / "seg_train")
    stay, _ = stratified([0] * 6 + [1] * 6, 0.5)
    assert torch.equal(dataset.train.images, whole[stay])
    assert torch.equal(dataset.test.images, stored(folder / "seg_test" / "seg_test"))


def test_without_test_images_those_set_apart_are_the_test_set(
    data: Data, source: DataSource, folder: Path, stored: Callable[[Path], torch.Tensor]
) -> None:
    shutil.rmtree(folder / "test")
    dataset = load(replace(data, validation_share=0.34), source)
    stay, apart = stratified([0] * 6 + [1] * 6, 0.34)
    whole = stored(folder / "train")
    assert torch.equal(dataset.train.images, whole[stay])
    assert torch.equal(dataset.test.images, whole[apart])
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(UsageError, match=r"has no test/"):
        prepare(data, source)


def test_suites_that_split_differently_keep_their_images_side_by_side(data: Data, source: DataSource) -> None:
    cache = Path(source.directory) / "cache"
    for share in (0.0, 0.5, 0.0):
        prepare(replace(data, validation_share=share), source)
    assert len(list(cache.iterdir())) == 2
    assert prepare(data, source).train_samples == 12


def test_a_share_that_leaves_a_class_without_images_is_refused(data: Data, source: DataSource, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"the class 'cat' has too few images to set a share of 0\.99 apart"):
        prepare(replace(data, validation_share=0.99), source)
    shutil.rmtree(folder / "test")
    with pytest.raises(UsageError, match=r"too few images to set a share of 0\.01 apart"):
        prepare(replace(data, validation_share=0.01), source)


def test_cifar_10_is_split_too(cifar: FakeCifar, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-10-python.tar.gz").write_bytes(cifar.archive)
    source = DataSource(kind="cifar10", directory=str(tmp_path / "data"))
    data = Data(input_shape=(3, 32, 32), classes=10, validation_share=0.2)
    stay, _ = stratified(cifar.labels[:50], 0.2)
    dataset = load(data, source)
    assert dataset.train.labels.tolist() == [cifar.labels[index] for index in stay]
    assert torch.equal(dataset.train.images[0].flatten(), torch.from_numpy(cifar.pixels[stay[0]]).flatten())
    assert len(dataset.test.labels) == 10


@pytest.mark.parametrize("kind", ["folder", "synthetic"])
def test_processes_that_share_a_batch_see_together_what_one_sees(
    data: Data, source: DataSource, kind: str, tmp_path: Path
) -> None:
    data = replace(data, flip=True, crop_padding=1, classes=2, steps_per_epoch=2)
    source = replace(source, kind=kind)

    def epoch(share: Shard) -> list[tuple[torch.Tensor, torch.Tensor]]:
        batches = open_batches(data, source, batch_size=6, device=CPU, seed=3, shard=share)
        return list(batches.train(2))

    parts = [epoch(Shard(rank=rank, ranks=2)) for rank in range(2)]
    for (inputs, targets), *halves in zip(epoch(Shard()), *parts, strict=True):
        assert all(len(half[0]) == 3 for half in halves)
        assert torch.equal(inputs, torch.cat([half[0] for half in halves]))
        assert torch.equal(targets, torch.cat([half[1] for half in halves]))
    with pytest.raises(UsageError, match="A batch of 6 cannot be divided among 4 devices"):
        epoch(Shard(ranks=4))
