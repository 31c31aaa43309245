from dataclasses import replace

import pytest

from bench.spec.errors import UsageError
from bench.spec.suite import Data, Suite
from bench.spec.trial import DataSource, Placement
from tests.arms import arms

DATA = Data(input_shape=(3, 32, 32), classes=10)


def suite(**changes):
    given = {
        "name": "small",
        "title": "",
        "data": DATA,
        "model": lambda data: None,
        "optimizer": lambda parameters: None,
        "batch_size": 8,
    }
    return Suite(**{**given, **changes})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: suite(name="not a name"), "Suite.name"),
        (lambda: suite(batch_size=0), "Suite.batch_size"),
        (lambda: suite(epochs=0), "Suite.epochs"),
        (lambda: suite(batch_sizes=(8, -1)), "Suite.batch_sizes"),
        (lambda: suite(cpu_batch_sizes=(1.5,)), "Suite.cpu_batch_sizes"),
        (lambda: Data(input_shape=(), classes=2), "Data.input_shape"),
        (lambda: Data(input_shape=(8,)), "Data.classes"),
        (lambda: Data(input_shape=(8,), classes=2, target_shape=(8,)), "Data.classes"),
        (lambda: Data(input_shape=(8,), classes=2, steps_per_epoch=0), "Data.steps_per_epoch"),
        (lambda: Data(input_shape=(8,), classes=2, crop_padding=-1), "Data.crop_padding"),
        (lambda: Data(input_shape=(3, 8, 8), classes=256, tokens=True), "Data.tokens"),
        (lambda: Data(input_shape=(8,), target_shape=(8,), tokens=True), "Data.tokens"),
        (lambda: Data(input_shape=(8,), classes=256, source="markov"), "Data.source"),
    ],
)
def test_a_wrong_field_is_named(make, field):
    with pytest.raises(UsageError, match=field):
        make()


def test_data_sources_are_parsed(tmp_path, monkeypatch):
    assert DataSource.parse("cifar10").kind == "cifar10"
    folder = DataSource.parse(f"folder:{tmp_path}")
    assert (folder.kind, folder.path, str(folder)) == ("folder", str(tmp_path), f"folder:{tmp_path}")
    (tmp_path / "mine.txt").touch()
    monkeypatch.chdir(tmp_path)
    text = DataSource.parse("text:mine.txt")
    assert (text.kind, text.path, str(text)) == ("text", str(tmp_path / "mine.txt"), f"text:{tmp_path / 'mine.txt'}")
    assert DataSource.parse("text:/no/such", elsewhere=True).path == "/no/such"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mnist", "must be cifar10, digits, markov, synthetic, folder:PATH or text:FILE, not 'mnist'"),
        ("text:", "must be cifar10"),
        ("text:/", "There is no file '/'"),
        (f"folder:{__file__}", "There is no folder"),
    ],
)
def test_a_data_source_that_cannot_be_is_refused(word, message):
    with pytest.raises(UsageError, match=message):
        DataSource.parse(word)


def test_features_are_no_image():
    assert DATA.is_image
    assert not Data(input_shape=(8,), classes=2).is_image
    assert not Data(input_shape=(3, 8, 8), target_shape=(8,)).is_image


def test_ids_tell_trials_apart(tiny_trial):
    speed = replace(tiny_trial, phase="speed", arms=arms("fp32", "amp-bf16"))
    ids = {
        tiny_trial.id,
        speed.id,
        replace(speed, replicate=1).id,
        replace(speed, arms=arms("fp32")).id,
        replace(tiny_trial, phase="train").id,
        replace(tiny_trial, phase="train", seed=1).id,
    }
    assert len(ids) == 6
    assert tiny_trial.id == "tiny-cpu-b4-memory-fp32"


def test_a_checkpoints_path_stays_within_the_runs_folder(tiny_trial):
    suite = replace(tiny_trial.cell.suite, parameters=(("marker", "/a/../b"),))
    trial = replace(tiny_trial, cell=replace(tiny_trial.cell, suite=suite))
    assert ("/" in trial.id, len(trial.checkpoint.parts), ".." in trial.checkpoint.parts) == (True, 2, False)


MALFORMED = "gpu0 -1 0+0 0+00 cpu+0 0+ +1 a+b 0+V100 0+1@ 0+1@1 0+1@x @2 0+0@2 0+1@2@2 cpu@-1"


@pytest.mark.parametrize("name", MALFORMED.split())
def test_malformed_placements_are_refused(name):
    with pytest.raises(UsageError, match="--gpus"):
        Placement(name=name)


def test_members_are_the_devices_in_order():
    assert Placement(name="1+0").members == ("1", "0")
    assert [Placement(name="1+0").device_of(rank) for rank in (0, 1)] == [1, 0]
    assert Placement(name="cpu+cpu").device_of() is Placement(name="V100").device_of() is None
    assert [Placement(name=name).on_cluster for name in ("V100", "cpu")] == [True, False]
    assert Placement(name="3").device_of(1) == 3
    nodes = Placement(name="2+3@2")
    assert (nodes.local, nodes.nodes, nodes.device_of()) == ("2+3", 2, 2)
    assert [nodes.device_of(rank) for rank in range(4)] == [2, 3, 2, 3]
