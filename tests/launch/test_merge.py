"""What several nodes amount to: one device, one peak of memory, one reason."""

from dataclasses import replace

import pytest

from bench.launch import merge
from bench.launch.launcher import Ending
from bench.launch.merge import Fate
from bench.results.records import Device, MemoryPeak, TrialResult
from bench.spec.errors import UsageError
from tests.report.builders import GPU


def node(machine, host, placements, **changed):
    return replace(machine, host=host, devices=tuple(replace(GPU, placement=name, **changed) for name in placements))


def test_a_placement_on_several_nodes_is_one_device_of_all_their_devices(machine):
    here = node(machine, "here", ("0", "0+1"), uuid="GPU-1", energy="counter", memory_total_bytes=8)
    here = replace(here, devices=(here.devices[0], replace(here.devices[1], name=f"2 × {GPU.name}")))
    there = replace(node(machine, "there", ("0+1",), memory_total_bytes=4, unsupported={"tf32": "too old"}))
    there = replace(there, devices=(replace(there.devices[0], name=f"2 × {GPU.name}", fp32_gflops=3.0),))
    found = merge.environment(["0", "0+1@2"], {0: here, 1: there})
    alone, joined = found.devices
    assert alone == here.devices[0]
    assert (joined.placement, joined.name) == ("0+1@2", f"4 × {GPU.name}")
    assert (joined.memory_total_bytes, joined.uuid, joined.energy, joined.fp32_gflops) == (12, None, None, 3.0)
    assert set(joined.unsupported) == {"tf32", "fp16-master"}
    assert [(one.accelerator, one.host) for one in found.nodes] == [("0+1@2", "here"), ("0+1@2", "there")]
    assert found.host == "here, there"


def test_one_gpu_on_each_of_two_nodes_is_two_and_others_are_named_apart(machine):
    here, there = node(machine, "here", ("0",)), node(machine, "there", ("0",))
    assert merge.environment(["0@2"], {0: here, 1: there}).devices[0].name == f"2 × {GPU.name}"
    other = node(machine, "there", ("0",), name="NVIDIA Other")
    assert merge.environment(["0@2"], {0: here, 1: other}).devices[0].name == f"{GPU.name} + NVIDIA Other"


def test_other_builds_of_torch_are_refused(machine):
    here, there = node(machine, "here", ("0",)), replace(node(machine, "there", ("0",)), torch="2.6.0")
    with pytest.raises(UsageError, match=r"2\.15 on node 0 \(here\), 2\.6\.0 on node 1 \(there\)"):
        merge.environment(["0@2"], {0: here, 1: there})


def peak(**figures):
    return TrialResult(precision="fp32", status="ok", memory=MemoryPeak(**figures))


def test_memory_is_the_largest_devices_of_all_nodes_and_the_sum_of_all():
    mine = peak(peak_allocated_bytes=10, model_bytes=3, all_devices_bytes=18)
    other = peak(peak_allocated_bytes=14, all_devices_bytes=21)
    (found,) = merge.results([mine], [other])
    memory = found.memory
    assert (memory.peak_allocated_bytes, memory.model_bytes, memory.all_devices_bytes) == (14, 3, 39)
    (found,) = merge.results([mine], [peak(model_bytes=1)])
    assert found.memory.all_devices_bytes is None
    (found,) = merge.results([mine], [peak(all_devices_bytes=0, peak_resident_bytes=0)])
    assert found.memory.all_devices_bytes == 18
    timed = TrialResult(precision="fp32", status="ok")
    assert merge.results([timed], []) == [timed]


def fate(node, kind, text, time_s, *, lost=False):
    return Fate(node=node, ending=Ending(kind=kind, text=text), time_s=time_s, lost=lost)


CLOSED = fate("node 0", "error", "connection closed | trace", 1.0)


@pytest.mark.parametrize(
    ("fates", "kind", "text"),
    [
        ([fate("node 0", "done", "", 1.0)], None, None),
        ([CLOSED, fate("node 1", "oom", "full", 2.0)], "oom", "node 1: full"),
        ([CLOSED, fate("node 1", "died", "gone", 2.0, lost=True)], "died", "node 1 was lost: gone"),
        ([fate("node 1", "oom", "full", 1.0), fate("node 2", "died", "gone", 2.0, lost=True)], "died", "node 2 was"),
        ([fate("node 1", "error", "late", 2.0), CLOSED], "error", "node 0: connection closed | trace; node 1: late"),
        ([fate("node 1", "error", "broke", 0.5), CLOSED], "error", "node 1: broke; node 0: connection closed"),
    ],
)
def test_the_cause_is_told_before_its_consequences(fates, kind, text):
    found = merge.failure(fates)
    assert (found and found.kind) == kind
    assert text is None or found.text.startswith(text)


def test_a_cpus_name_is_not_counted(machine):
    here = replace(machine, devices=(replace(machine.devices[0], placement="cpu+cpu"),))
    (found,) = merge.environment(["cpu+cpu@2"], {0: here, 1: replace(here, host="there")}).devices
    assert isinstance(found, Device)
    assert found.name == "Test CPU"
