from dataclasses import replace

import pytest

from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.placement import Placement
from bench.spec.suite import Data, Suite
from tests.arms import arms

DATA = Data(input_shape=(3, 32, 32), classes=10)


GIVEN = {
    Suite: {"name": "small", "title": "", "data": DATA, "model": None, "optimizer": None, "batch_size": 8},
    Data: {"input_shape": (8,), "classes": 2},
}


@pytest.mark.parametrize(
    ("kind", "wrong", "field"),
    [
        (Suite, {"name": "not a name"}, "name"),
        (Suite, {"batch_size": 0}, "batch_size"),
        (Suite, {"epochs": 0}, "epochs"),
        (Suite, {"batch_sizes": (8, -1)}, "batch_sizes"),
        (Suite, {"cpu_batch_sizes": (1.5,)}, "cpu_batch_sizes"),
        (Data, {"input_shape": ()}, "input_shape"),
        (Data, {"classes": None}, "classes"),
        (Data, {"target_shape": (8,)}, "classes"),
        (Data, {"steps_per_epoch": 0}, "steps_per_epoch"),
    ],
)
def test_a_wrong_field_is_named(kind, wrong, field):
    with pytest.raises(UsageError, match=f"{kind.__name__}.{field}"):
        kind(**{**GIVEN[kind], **wrong})


@pytest.mark.parametrize(("word", "path"), [("cifar10", None), ("folder:.", "."), ("text:mine.txt", "mine.txt")])
def test_data_sources_are_parsed(tmp_path, monkeypatch, word, path):
    (tmp_path / "mine.txt").touch()
    monkeypatch.chdir(tmp_path)
    source, kind = DataSource.parse(word), word.partition(":")[0]
    whole = path and str(tmp_path / path)
    assert (source.kind, source.path, str(source)) == (kind, whole, f"{kind}:{whole}" if path else kind)
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
    speed, train = (replace(tiny_trial, phase=phase) for phase in ("speed", "train"))
    both = replace(speed, arms=arms("fp32", "amp-bf16"))
    trials = [tiny_trial, speed, both, replace(both, replicate=1), train, replace(train, seed=1)]
    assert len({trial.id for trial in trials}) == len(trials)


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
