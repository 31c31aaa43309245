"""Placements: the devices that a trial runs on, by name."""

import pytest

from bench.spec.errors import UsageError
from bench.spec.trial import Placement


@pytest.mark.parametrize(
    "name",
    ["0+0", "0+00", "cpu+0", "0+", "+1", "a+b", "0+V100", "0+1@", "0+1@1", "0+1@x", "@2", "0+0@2", "0+1@2@2", "cpu@-1"],
)
def test_malformed_placements_are_refused(name):
    with pytest.raises(UsageError, match="--gpus"):
        Placement(name=name)


def test_members_are_the_devices_in_order():
    assert Placement(name="1+0").members == ("1", "0")
    assert [Placement(name="1+0").device_of(rank) for rank in (0, 1)] == [1, 0]
    assert Placement(name="cpu+cpu").index is None
    assert Placement(name="3").device_of(1) == 3


def test_members_on_two_nodes_follow_node_by_node():
    place = Placement(name="2+3@2")
    assert (place.local, place.nodes, place.index) == ("2+3", 2, 2)
    assert [place.device_of(rank) for rank in range(4)] == [2, 3, 2, 3]
    assert Placement(name="cpu@2").members == ("cpu", "cpu")
