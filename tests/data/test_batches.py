from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from bench.data import Batches, Shard, open_batches, prepare, storage
from bench.data import batches as batches_module
from bench.data.sampling import Augmentation, order
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.spec.trial import DataSource

CPU = torch.device("cpu")
Stored = Callable[[Path], torch.Tensor]


def epoch_of(batches: Batches, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = (torch.cat(parts) for parts in zip(*batches.train(epoch), strict=True))
    return inputs, labels


def normal(pixels: torch.Tensor, data: Data) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.mean, data.std))
    return ((pixels.double() / 255 - mean) / std).float()


@pytest.fixture
def open_(data: Data, source: DataSource) -> Callable[..., Batches]:
    def opened(*, batch_size: int = 5, seed: int = 0, device: torch.device = CPU, **changes: object) -> Batches:
        changed = replace(data, **changes)
        return open_batches(changed, source, batch_size=batch_size, device=device, seed=seed)

    return opened


def test_batches_have_the_shapes_types_and_number_promised(open_: Callable[..., Batches]) -> None:
    batches = open_()
    assert batches.data.classes == 2
    assert batches.has_test
    assert batches.steps_per_epoch == 2
    epoch = list(batches.train(0))
    assert len(epoch) == 2
    for inputs, labels in epoch:
        assert (inputs.shape, inputs.dtype, inputs.device) == ((5, 3, 8, 8), torch.float32, CPU)
        assert (labels.shape, labels.dtype, labels.device) == ((5,), torch.int64, CPU)


def test_an_epoch_is_the_permuted_training_set_without_its_last_partial_batch(
    open_: Callable[..., Batches], folder: Path, stored: Stored
) -> None:
    batches = open_(batch_size=5, seed=3)
    inputs, labels = epoch_of(batches, 4)
    taken = order(12, seed=3, epoch=4)[:10]
    torch.testing.assert_close(inputs, normal(stored(folder / "train")[taken], batches.data), rtol=0, atol=2e-6)
    assert labels.tolist() == [int(index >= 6) for index in taken.tolist()]


def test_an_epoch_of_one_batch_holds_every_image(open_: Callable[..., Batches]) -> None:
    _, labels = epoch_of(open_(batch_size=12), 0)
    assert sorted(labels.tolist()) == [0] * 6 + [1] * 6


def test_augmented_images_are_those_of_a_loop_over_images(
    open_: Callable[..., Batches], folder: Path, stored: Stored
) -> None:
    batches = open_(crop_padding=2, flip=True, seed=5)
    inputs, _ = epoch_of(batches, 1)
    chance = Augmentation.draw(10, 2, seed=5, epoch=1)
    assert 0 < chance.mirrored.sum() < 10
    pixels = stored(folder / "train")
    expected = []
    for place, index in enumerate(order(12, seed=5, epoch=1)[:10].tolist()):
        image = pixels[index].flip(2) if chance.mirrored[place] else pixels[index]
        top, left = int(chance.top[place]), int(chance.left[place])
        expected.append(functional.pad(image, (2, 2, 2, 2))[:, top : top + 8, left : left + 8])
    torch.testing.assert_close(inputs, normal(torch.stack(expected), batches.data), rtol=0, atol=2e-6)


def test_padding_is_black_before_normalisation(open_: Callable[..., Batches]) -> None:
    inputs, _ = epoch_of(open_(crop_padding=8, batch_size=12, mean=(0.5, 0.6, 0.7), std=(0.5, 0.2, 0.1)), 0)
    for channel, black in enumerate((-1.0, -3.0, -7.0)):
        torch.testing.assert_close(inputs[:, channel].min().item(), black)


def test_a_seed_repeats_itself_and_epochs_and_seeds_differ(open_: Callable[..., Batches]) -> None:
    augmented = {"crop_padding": 2, "flip": True}
    inputs, labels = epoch_of(open_(seed=1, **augmented), 0)
    again, same_labels = epoch_of(open_(seed=1, **augmented), 0)
    assert torch.equal(inputs, again)
    assert torch.equal(labels, same_labels)
    assert not torch.equal(inputs, epoch_of(open_(seed=1, **augmented), 1)[0])
    assert not torch.equal(inputs, epoch_of(open_(seed=2, **augmented), 0)[0])


def test_an_epoch_does_not_depend_on_which_were_run_before_nor_on_the_global_seed(
    open_: Callable[..., Batches],
) -> None:
    batches = open_(crop_padding=2, flip=True)
    first, _ = epoch_of(batches, 0)
    epoch_of(batches, 1)
    torch.manual_seed(123)
    assert torch.equal(first, epoch_of(batches, 0)[0])


def test_opening_and_drawing_leave_the_global_generator_alone(open_: Callable[..., Batches]) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    epoch_of(open_(crop_padding=2, flip=True), 0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("batch_size", [1, 3, 10, 12])
def test_the_test_set_is_whole_in_order_and_not_augmented(
    open_: Callable[..., Batches], folder: Path, stored: Stored, batch_size: int
) -> None:
    batches = open_(batch_size=batch_size, crop_padding=2, flip=True)
    for _ in range(2):
        inputs, labels = (torch.cat(parts) for parts in zip(*batches.test(), strict=True))
        torch.testing.assert_close(inputs, normal(stored(folder / "test"), batches.data), rtol=0, atol=2e-6)
        assert labels.tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 6, 7, 8, 9, 10], [0, 3, 6, 9]])
def test_a_sample_of_the_training_images_is_spread_over_them_and_not_augmented(
    open_: Callable[..., Batches], folder: Path, stored: Stored, monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    monkeypatch.setattr(batches_module, "TRAIN_SAMPLE", len(rows) if len(rows) < 10 else batches_module.TRAIN_SAMPLE)
    batches = open_(batch_size=3, crop_padding=2, flip=True)
    inputs, labels = (torch.cat(parts) for parts in zip(*batches.train_sample(), strict=True))
    torch.testing.assert_close(inputs, normal(stored(folder / "train")[rows], batches.data), rtol=0, atol=2e-6)
    assert labels.tolist() == [row // 6 for row in rows]


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_shares_of_the_test_set_are_all_of_it_once(open_: Callable[..., Batches], ranks: int) -> None:
    batches = open_(batch_size=4)  # the last of three batches has two images, fewer than there may be shares
    whole = torch.cat([inputs for inputs, _ in batches.test()])
    shares = [[inputs for inputs, _ in batches.test(Shard(rank=rank, ranks=ranks))] for rank in range(ranks)]
    found = torch.cat([inputs for parts in shares for inputs in parts])
    assert found.shape == whole.shape
    assert sorted(found.flatten(1).tolist()) == sorted(whole.flatten(1).tolist())
    assert max(len(inputs) for parts in shares for inputs in parts) == -(-4 // ranks)
    assert all(len(inputs) for parts in shares for inputs in parts)


def test_small_images_are_resized_to_the_input_and_cropped_there(
    open_: Callable[..., Batches], folder: Path, stored: Stored
) -> None:
    batches = open_(input_shape=(3, 16, 12), crop_padding=3, flip=True, seed=2)
    inputs, _ = epoch_of(batches, 0)
    chance = Augmentation.draw(10, 3, seed=2, epoch=0)
    pixels = stored(folder / "train")[order(12, seed=2, epoch=0)[:10]].float()
    resized = functional.interpolate(pixels, (16, 12), mode="bilinear")
    expected = []
    for place, image in enumerate(resized):
        turned = image.flip(2) if chance.mirrored[place] else image
        top, left = int(chance.top[place]), int(chance.left[place])
        expected.append(functional.pad(turned, (3, 3, 3, 3))[:, top : top + 16, left : left + 12])
    torch.testing.assert_close(inputs, normal(torch.stack(expected), batches.data), rtol=0, atol=1e-5)
    assert next(batches.test())[0].shape == (5, 3, 16, 12)


@pytest.mark.parametrize(
    ("place", "device_times", "host_times"),
    [("device", 4.0, 4.0), ("host", 3.9, 2.0), ("file", 3.9, 1.9)],
)
def test_images_give_the_same_batches_wherever_they_are(
    open_: Callable[..., Batches],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    device_times: float,
    host_times: float,
) -> None:
    expected, labels = epoch_of(open_(crop_padding=2, flip=True), 0)
    tested = [part.tolist() for part in next(iter(open_().test()))]
    size = 22 * 3 * 8 * 8
    monkeypatch.setattr(batches_module, "free_bytes", lambda *_: (int(device_times * size), int(host_times * size)))
    batches = open_(crop_padding=2, flip=True)
    assert batches.storage == place
    for _ in range(2):
        inputs, classes = epoch_of(batches, 0)
        assert torch.equal(inputs, expected)
        assert torch.equal(classes, labels)
    assert [part.tolist() for part in next(iter(batches.test()))] == tested


def test_images_in_their_file_are_not_copied_and_those_in_host_memory_are(
    open_: Callable[..., Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    real = batches_module.open_images

    def watched(split, place, device):
        opened = real(split, place, device)
        seen[place] = opened._images.data_ptr() == split.images.data_ptr()
        return opened

    monkeypatch.setattr(batches_module, "open_images", watched)
    for free in ((2**40, 2**40), (0, 2**40), (0, 0)):
        monkeypatch.setattr(batches_module, "free_bytes", lambda *_, free=free: free)
        open_()
    assert seen == {"device": False, "host": False, "file": True}


def test_the_next_batch_is_gathered_by_another_thread_while_one_is_used(
    open_: Callable[..., Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = threading.Semaphore(0)
    by = []
    gather = storage._gather

    def watched(*given):
        by.append(threading.current_thread())
        gathered.release()
        return gather(*given)

    monkeypatch.setattr(storage, "_gather", watched)
    monkeypatch.setattr(batches_module, "free_bytes", lambda *_: (0, 0))
    epoch = open_(batch_size=4).train(0)
    next(epoch)
    assert gathered.acquire(timeout=10)
    assert gathered.acquire(timeout=10)  # the second, though it was not asked for yet
    assert threading.main_thread() not in by
    epoch.close()  # an epoch that is left early leaves no thread behind
    by[0].join(timeout=10)
    assert not by[0].is_alive()
    assert len(by) == 2


def test_an_error_while_gathering_reaches_the_training(
    open_: Callable[..., Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(storage, "_gather", broken)
    monkeypatch.setattr(batches_module, "free_bytes", lambda *_: (0, 0))
    with pytest.raises(OSError, match="the disk is gone"):
        next(open_().train(0))


def test_several_processes_share_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "available_bytes", lambda: 1000)
    assert storage.free_bytes(CPU) == (1000, 1000)
    assert storage.free_bytes(CPU, 4) == (250, 250)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("free", [(0, 0), (0, 2**40), (2**40, 2**40)])
def test_a_gpu_gets_the_same_batches(
    open_: Callable[..., Batches], monkeypatch: pytest.MonkeyPatch, free: tuple[int, int]
) -> None:
    changes = {"crop_padding": 2, "flip": True}
    expected, labels = epoch_of(open_(**changes), 0)
    monkeypatch.setattr(batches_module, "free_bytes", lambda *_: free)
    inputs, there = epoch_of(open_(device=torch.device("cuda", 0), **changes), 0)
    assert inputs.is_cuda
    assert there.is_cuda
    torch.testing.assert_close(inputs.cpu(), expected, rtol=0, atol=2e-6)
    assert torch.equal(there.cpu(), labels)


def test_a_batch_larger_than_the_training_set_is_refused(open_: Callable[..., Batches]) -> None:
    with pytest.raises(UsageError, match=r"batch of 13 is larger than the training set, which has 12 images"):
        open_(batch_size=13)


@pytest.mark.parametrize("kind", ["folder", "cifar10"])
@pytest.mark.parametrize("channels", [1, 4])
def test_a_model_that_does_not_take_rgb_is_refused(data: Data, source: DataSource, kind: str, channels: int) -> None:
    other = replace(data, input_shape=(channels, 8, 8))
    message = rf"takes images of {channels} channels? and .* has images of 3 \(RGB\)"
    for call in (prepare, lambda *given: open_batches(*given, batch_size=1, device=CPU, seed=0)):
        with pytest.raises(UsageError, match=message):
            call(other, replace(source, kind=kind))
    assert not Path(source.directory).exists()


@pytest.mark.parametrize("changes", [{"mean": (0.5,)}, {"std": (0.5, 0.5)}, {"std": (0.5, 0.0, 0.5)}])
def test_a_mean_or_deviation_that_is_not_one_a_channel_is_refused(
    data: Data, source: DataSource, changes: dict[str, tuple[float, ...]]
) -> None:
    with pytest.raises(UsageError, match=rf"Data\.{next(iter(changes))} must be 3 numbers.*, one a channel"):
        prepare(replace(data, **changes), source)
