"""The nodes of a cluster as one environment."""

from dataclasses import replace

import pytest

from bench.results.environment import merge
from bench.results.records import Device
from bench.run.prepare import warn_of_environment
from tests.report.builders import GPU


def test_devices_that_train_together_are_one_with_the_rates_of_the_slowest(machine):
    slow = replace(
        GPU,
        name="NVIDIA Other",
        memory_total_bytes=4,
        fp32_gflops=3.0,
        unsupported={"tf32": "too old"},
    )
    joint = Device.joint([replace(GPU, memory_total_bytes=8, fp32_gflops=5.0), slow])
    assert (joint.name, joint.memory_total_bytes, joint.uuid) == (
        f"{GPU.name} + NVIDIA Other",
        12,
        None,
    )
    assert (joint.fp32_gflops, set(joint.unsupported)) == (3.0, {"tf32", "fp16-master"})
    assert Device.joint([GPU, replace(GPU, memory_total_bytes=None)]).memory_total_bytes is None
    assert Device.joint([GPU] * 2).name == f"2 × {GPU.name}"
    assert Device.joint([machine.devices[0]] * 2).name == "Test CPU"  # which is not counted


@pytest.mark.parametrize(
    ("second", "hosts", "energy"), [("b", ["here", "here"], None), ("a", ["here"], "counter")]
)
def test_devices_that_train_together_are_listed_by_node(machine, second, hosts, energy):
    gpus = [replace(GPU, uuid=uuid, energy="counter") for uuid in ("GPU-x", "GPU-y")]
    surveys = [
        (node, replace(machine, devices=(gpu,)))
        for node, gpu in zip(("a", second), gpus, strict=True)
    ]
    merged = merge({"V100+V100": surveys})
    assert [node.host for node in merged.machines] == hosts
    (device,) = merged.devices
    assert (device.placement, device.uuids, device.energy) == (
        "V100+V100",
        ("GPU-x", "GPU-y"),
        energy,
    )


@pytest.fixture
def two(machine):
    device = replace(machine.devices[0], name="Other CPU")
    other = replace(machine, host="there", driver="570.1", cudnn="92600", devices=(device,))
    return {"A100": [("a", machine)], "V100": [("v", other)]}


def test_the_machines_of_several_nodes_make_one_with_a_device_for_each_type(two):
    merged = merge(two)
    assert [(device.placement, device.name) for device in merged.devices] == [
        ("A100", "Test CPU"),
        ("V100", "Other CPU"),
    ]
    assert [(node.host, node.devices[0].placement) for node in merged.machines] == [
        ("here", "A100"),
        ("there", "V100"),
    ]
    assert (merged.host, merged.driver, merged.torch) == ("here, there", "570.1", "2.15")
    assert not [*warn_of_environment(merged)]
