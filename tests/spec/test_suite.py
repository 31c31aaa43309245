import pytest

from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.placement import Placement
from bench.spec.suite import Data, Suite

DATA = {"input_shape": (8,), "classes": 2}
GIVEN = {
    Suite: {
        "name": "small",
        "title": "",
        "data": Data(**DATA),
        "model": None,
        "optimizer": None,
        "batch_size": 8,
    },
    Data: DATA,
}


@pytest.mark.parametrize(
    ("kind", "wrong", "field"),
    [
        (Suite, {"name": "not a name"}, "name"),
        (Suite, {"batch_size": 0}, "batch_size"),
        (Suite, {"batch_sizes": (8, -1)}, "batch_sizes"),
        (Suite, {"cpu_batch_sizes": (1.5,)}, "cpu_batch_sizes"),
        (Data, {"input_shape": ()}, "input_shape"),
        (Data, {"input_shape": 8}, "input_shape"),
        (Data, {"classes": None}, "classes"),
        (Data, {"steps_per_epoch": 0}, "steps_per_epoch"),
    ],
)
def test_a_wrong_field_is_named(kind, wrong, field):
    with pytest.raises(UsageError, match=f"{kind.__name__}.{field}"):
        kind(**{**GIVEN[kind], **wrong})


@pytest.mark.parametrize(
    ("word", "path"), [("cifar10", None), ("folder:.", "."), ("text:mine.txt", "mine.txt")]
)
def test_data_sources_are_parsed(tmp_path, monkeypatch, word, path):
    (tmp_path / "mine.txt").touch()
    monkeypatch.chdir(tmp_path)
    source = DataSource.parse(word)
    assert source.kind == word.partition(":")[0]
    assert source.path == (path and str(tmp_path / path))
    assert DataSource.parse("text:/no/such", elsewhere=True).path == "/no/such"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mnist", "must be cifar10"),
        ("text:", "must be cifar10"),
        ("text:/", "no file '/'"),
        ("folder:x", "no folder 'x'"),
    ],
)
def test_a_data_source_that_cannot_be_is_refused(word, message):
    with pytest.raises(UsageError, match=message):
        DataSource.parse(word)


MALFORMED = "gpu0 -1 0+0 0+00 cpu+0 0+ +1 a+b 0+V100 0+1@ 0+1@1 0+1@x @2 0+0@2 0+1@2@2 cpu@-1"


@pytest.mark.parametrize("name", MALFORMED.split())
def test_malformed_placements_are_refused(name):
    with pytest.raises(UsageError, match="--gpus"):
        Placement(name=name)


@pytest.mark.parametrize(
    ("name", "indices", "on_cluster"),
    [
        ("3", [3], False),
        ("1+0", [1, 0], False),
        ("cpu+cpu", [None, None], False),
        ("2+3@2", [2, 3, 2, 3], False),
        ("V100", [None], True),
    ],
)
def test_members_are_the_devices_in_order(name, indices, on_cluster):
    placement = Placement(name=name)
    assert placement.on_cluster == on_cluster
    assert [placement.device_of(rank) for rank in range(len(placement.members))] == indices
