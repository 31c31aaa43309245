from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torchvision.datasets import CIFAR10

from bench.data import open_batches, prepare
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.spec.trial import DataSource

DATA = Data(input_shape=(3, 32, 32), classes=7, source="cifar10")
CPU = torch.device("cpu")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def source(home: Path) -> DataSource:
    return DataSource(kind="cifar10", directory=str(home))


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Put bytes where torchvision looks for the archive, on a server on this machine."""
    place = tmp_path / "server"
    place.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    def put(content: bytes) -> None:
        (place / CIFAR10.filename).write_bytes(content)
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{CIFAR10.filename}")

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(place))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield put
        server.shutdown()
        thread.join()


def assert_is(cifar: Any, source: DataSource) -> None:
    """Check counts, and every test image and label after normalisation."""
    prepared = prepare(DATA, source)
    assert (prepared.train_samples, prepared.data.classes) == (50, 10)
    batches = open_batches(DATA, source, batch_size=4, device=CPU, seed=0)
    images, labels = (torch.cat(parts) for parts in zip(*batches.test(), strict=True))
    pixels = torch.from_numpy(cifar.pixels[50:]).double() / 255
    expected = (pixels - torch.tensor(DATA.mean).view(3, 1, 1)) / torch.tensor(DATA.std).view(3, 1, 1)
    torch.testing.assert_close(images.double(), expected, rtol=0, atol=2e-6)
    assert labels.tolist() == cifar.labels[50:]


def test_an_archive_in_the_directory_is_used(cifar: Any, source: DataSource, home: Path) -> None:
    home.mkdir()
    (home / CIFAR10.filename).write_bytes(cifar.archive)
    assert_is(cifar, source)
    assert sorted(entry.name for entry in home.iterdir()) == ["cache", CIFAR10.filename]


def test_torchvisions_own_folder_is_used(cifar: Any, source: DataSource, home: Path) -> None:
    (home / CIFAR10.base_folder).mkdir(parents=True)
    for name, content in cifar.members.items():
        (home / CIFAR10.base_folder / name).write_bytes(content)
    assert_is(cifar, source)


def test_the_archive_is_downloaded_and_kept(
    cifar: Any, source: DataSource, home: Path, serve: Callable[[bytes], None]
) -> None:
    serve(cifar.archive)
    assert_is(cifar, source)
    assert (home / CIFAR10.filename).read_bytes() == cifar.archive
    assert sorted(entry.name for entry in home.iterdir()) == ["cache", CIFAR10.filename]


def test_once_prepared_only_the_cache_is_needed(cifar: Any, source: DataSource, home: Path) -> None:
    home.mkdir()
    (home / CIFAR10.filename).write_bytes(cifar.archive)
    prepare(DATA, source)
    (home / CIFAR10.filename).unlink()
    assert_is(cifar, source)


def test_without_network_the_message_says_what_to_do_and_nothing_is_made(
    cifar: Any, source: DataSource, home: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        prepare(DATA, source)
    message = str(caught.value)
    assert f"CIFAR-10 is not in '{home}' and could not be downloaded from {CIFAR10.url} (" in message
    assert f"Put cifar-10-python.tar.gz in '{home}', or give --data folder:PATH or --data synthetic." in message
    assert not home.exists()


def test_a_damaged_download_is_refused_and_not_kept(
    cifar: Any, source: DataSource, home: Path, serve: Callable[[bytes], None]
) -> None:
    serve(cifar.archive[:-10])
    with pytest.raises(UsageError, match=r"could not be downloaded .*orrupted"):
        prepare(DATA, source)
    assert not home.exists()


def test_a_damaged_archive_is_named_and_left_alone(cifar: Any, source: DataSource, home: Path) -> None:
    home.mkdir()
    (home / CIFAR10.filename).write_bytes(b"half of it")
    with pytest.raises(UsageError, match=r"has a damaged cifar-10-python\.tar\.gz \(wrong checksum\) in"):
        prepare(DATA, source)
    assert [entry.name for entry in home.iterdir()] == [CIFAR10.filename]


def test_files_whose_checksum_is_wrong_are_never_opened(cifar: Any, source: DataSource, home: Path) -> None:
    (home / CIFAR10.base_folder).mkdir(parents=True)
    for name, content in cifar.members.items():
        (home / CIFAR10.base_folder / name).write_bytes(content)
    (home / CIFAR10.base_folder / "data_batch_3").write_bytes(cifar.members["data_batch_2"])
    with pytest.raises(UsageError, match="could not be downloaded"):
        prepare(DATA, source)


def test_other_checksums_have_another_cache(
    cifar: Any, source: DataSource, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / CIFAR10.filename).write_bytes(cifar.archive)
    assert prepare(DATA, source).train_samples == 50
    monkeypatch.setattr(CIFAR10, "train_list", CIFAR10.train_list[:3])
    assert prepare(DATA, source).train_samples == 30
