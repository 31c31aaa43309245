"""The nodes of a cluster as one environment."""

from dataclasses import replace

import pytest

from bench.results.environment import merge
from bench.results.records import Device
from tests.report.builders import GPU


def test_devices_that_train_together_are_one_with_the_rates_of_the_slowest():
    fast = replace(GPU, memory_total_bytes=8, fp32_gflops=5.0)
    slow = replace(
        fast,
        name="NVIDIA Other",
        fp32_gflops=3.0,
        unsupported={"tf32": "too old"},
    )
    joint = Device.joint([fast, slow])
    assert joint.name == f"{GPU.name} + NVIDIA Other"
    assert joint.memory_total_bytes == 16
    assert joint.uuid is None
    assert joint.fp32_gflops == 3.0
    assert set(joint.unsupported) == {"tf32", "fp16-master"}


def test_the_memory_of_devices_is_unknown_where_that_of_one_is():
    known = replace(GPU, memory_total_bytes=8)
    joint = Device.joint([known, replace(GPU, memory_total_bytes=None)])
    assert joint.memory_total_bytes is None


def test_equal_gpus_are_counted_and_the_processes_of_one_cpu_are_not(cpu):
    assert Device.joint([GPU, GPU]).name == f"2 × {GPU.name}"
    assert Device.joint([cpu, cpu]).name == "Test CPU"


@pytest.mark.parametrize(
    ("second", "hosts", "energy"),
    [
        ("b", ["here", "here"], None),
        ("a", ["here"], "counter"),
    ],
)
def test_devices_that_train_together_are_listed_by_node(machine, second, hosts, energy):
    first_gpu = replace(GPU, uuid="GPU-x", energy="counter")
    first_node = replace(machine, devices=(first_gpu,))
    second_gpu = replace(first_gpu, uuid="GPU-y")
    second_node = replace(machine, devices=(second_gpu,))
    merged = merge({"V100+V100": [("a", first_node), (second, second_node)]})
    assert [node.host for node in merged.machines] == hosts
    (device,) = merged.devices
    assert device.placement == "V100+V100"
    assert device.energy == energy
    assert device.uuids == ("GPU-x", "GPU-y")


def test_the_machines_of_several_nodes_make_one_with_a_device_for_each_type(machine, cpu):
    device = replace(cpu, name="Other CPU")
    other = replace(machine, host="there", driver="570.1", devices=(device,))
    merged = merge({"A100": [("a", machine)], "V100": [("v", other)]})
    first_device, second_device = merged.devices
    assert first_device.placement == "A100"
    assert first_device.name == "Test CPU"
    assert second_device.placement == "V100"
    assert second_device.name == "Other CPU"
    first_node, second_node = merged.machines
    assert first_node.host == "here"
    assert first_node.devices == (first_device,)
    assert second_node.host == "there"
    assert second_node.devices == (second_device,)
    assert merged.host == "here, there"
    assert merged.driver == "570.1"
    assert merged.torch == "2.15"
