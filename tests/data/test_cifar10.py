"""CIFAR-10 from the cache, a folder, an archive or the network, never with a wrong checksum; and
the digits.
"""

import io
import shutil
import urllib.request

import pytest
import torch
from torchvision.datasets import CIFAR10

from bench.data import prepare
from bench.data.prepare import load_digits
from bench.planning.suite_registry import load as load_suite
from bench.planning.suite_registry import refer
from bench.run.prepare import TRAIN_SAMPLES
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from tests.data.conftest import assert_normalised, joined, opened

DATA = Data(input_shape=(3, 32, 32), classes=7, source="cifar10")


@pytest.fixture
def home(tmp_path):
    return tmp_path / "kept"


@pytest.fixture
def source(home):
    return DataSource(kind="cifar10", directory=str(home))


@pytest.fixture
def serve(monkeypatch):
    """Return a function that lets every download return these bytes."""

    class Response(io.BytesIO):
        url, length = None, 1

    def served(content):
        monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Response(content))

    return served


def assert_is(cifar, source):
    """Check counts, and every test image and label after normalisation."""
    prepared = prepare(DATA, source)
    assert prepared.train_samples == 50
    assert prepared.classes == 10
    images, labels = joined(opened(DATA, source).test())
    pixels = torch.from_numpy(cifar.pixels)[50:]
    assert_normalised(images, pixels)
    assert labels.tolist() == cifar.labels[50:]


def test_an_archive_in_the_directory_is_used_and_then_the_cache(cifar, source, home):
    home.mkdir()
    archive = home / CIFAR10.filename
    archive.write_bytes(cifar.archive)
    assert_is(cifar, source)
    archive.unlink()
    shutil.rmtree(home / CIFAR10.base_folder)
    assert_is(cifar, source)


def test_without_network_the_message_says_what_to_do(cifar, source, home):
    with pytest.raises(
        UsageError, match=f"is not in '{home}',? .* Put cifar-10-python.tar.gz .* --data synthetic"
    ):
        prepare(DATA, source)


def test_a_damaged_download_is_refused_and_downloaded_again_the_next_time(
    cifar, source, home, serve
):
    serve(cifar.archive[:-10])
    with pytest.raises(UsageError, match=r"could not be downloaded .*orrupted"):
        prepare(DATA, source)
    serve(cifar.archive)
    assert_is(cifar, source)
    assert (home / CIFAR10.filename).read_bytes() == cifar.archive  # it is kept


def test_files_whose_checksum_is_wrong_are_never_opened(cifar, source, home):
    folder = home / CIFAR10.base_folder
    folder.mkdir(parents=True)
    cifar.members["data_batch_3"] = cifar.members["data_batch_2"]
    for name, content in cifar.members.items():
        (folder / name).write_bytes(content)
    with pytest.raises(UsageError, match="could not be downloaded"):
        prepare(DATA, source)


def test_the_digits_are_all_there_with_their_mean_and_deviation_and_a_plan_knows_how_many():
    digits = load_digits()
    data = load_suite(refer("digits")).data
    pixels = digits.train.images[:, 0] / 255
    assert pixels.mean() == pytest.approx(data.mean[0], abs=5e-3)
    assert pixels.std() == pytest.approx(data.std[0], abs=5e-3)
    prepared = prepare(data, DataSource(kind="digits"))
    assert prepared.train_samples == TRAIN_SAMPLES["digits"] == len(pixels)
    labels = torch.cat([digits.train.labels, digits.test.labels])
    counts = labels.bincount()
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's
    assert digits.test.images.shape == (597, 3, 8, 8)
