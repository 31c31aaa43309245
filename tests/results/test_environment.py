"""The nodes of a cluster as one environment."""

from dataclasses import replace

import pytest

from bench.results.environment import merge
from bench.results.records import Device
from tests.report.builders import GPU


def test_devices_that_train_together_are_one_with_the_rates_of_the_slowest(machine):
    fast = replace(GPU, memory_total_bytes=8, fp32_gflops=5.0)
    slow = replace(fast, name="NVIDIA Other", fp32_gflops=3.0, unsupported={"tf32": "too old"})
    joint = Device.joint([fast, slow])
    assert joint.name == f"{GPU.name} + NVIDIA Other"
    assert (joint.memory_total_bytes, joint.uuid, joint.fp32_gflops) == (16, None, 3.0)
    assert set(joint.unsupported) == {"tf32", "fp16-master"}
    assert Device.joint([fast, replace(GPU, memory_total_bytes=None)]).memory_total_bytes is None
    assert Device.joint([GPU] * 2).name == f"2 × {GPU.name}"
    assert Device.joint([machine.devices[0]] * 2).name == "Test CPU"  # which is not counted


@pytest.mark.parametrize(
    ("second", "hosts", "energy"), [("b", ["here", "here"], None), ("a", ["here"], "counter")]
)
def test_devices_that_train_together_are_listed_by_node(machine, second, hosts, energy):
    surveys = []
    for node, uuid in (("a", "GPU-x"), (second, "GPU-y")):
        gpu = replace(GPU, uuid=uuid, energy="counter")
        surveys.append((node, replace(machine, devices=(gpu,))))
    merged = merge({"V100+V100": surveys})
    assert [node.host for node in merged.machines] == hosts
    (device,) = merged.devices
    assert (device.placement, device.energy) == ("V100+V100", energy)
    assert device.uuids == ("GPU-x", "GPU-y")


def test_the_machines_of_several_nodes_make_one_with_a_device_for_each_type(machine):
    device = replace(machine.devices[0], name="Other CPU")
    other = replace(machine, host="there", driver="570.1", cudnn="92600", devices=(device,))
    merged = merge({"A100": [("a", machine)], "V100": [("v", other)]})
    assert [device.placement for device in merged.devices] == ["A100", "V100"]
    assert [device.name for device in merged.devices] == ["Test CPU", "Other CPU"]
    assert [node.host for node in merged.machines] == ["here", "there"]
    assert [node.devices[0].placement for node in merged.machines] == ["A100", "V100"]
    assert (merged.host, merged.driver, merged.torch) == ("here, there", "570.1", "2.15")
