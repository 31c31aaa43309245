"""What several nodes amount to: one device, one peak of memory, one reason."""

from dataclasses import replace

import pytest

from bench.launch import merge
from bench.results.records import MemoryPeak, TrialResult
from bench.spec.errors import UsageError
from tests.report.builders import GPU


def test_devices_of_several_nodes_are_one(machine):
    gpus = [
        replace(GPU, memory_total_bytes=8, fp32_gflops=5.0),
        replace(GPU, memory_total_bytes=4, fp32_gflops=3.0, unsupported={"tf32": "too old"}),
    ]
    joint = merge.merge_devices(gpus)
    assert (joint.name, joint.memory_total_bytes, joint.uuid, joint.energy) == (f"2 × {GPU.name}", 12, None, None)
    assert joint.fp32_gflops == 3.0  # the estimate is of the slowest
    assert set(joint.unsupported) == {"tf32", "fp16-master"}
    assert merge.merge_devices([GPU, replace(GPU, name="NVIDIA Other")]).name == f"{GPU.name} + NVIDIA Other"
    assert merge.merge_devices([machine.devices[0]] * 2).name == "Test CPU"  # which is not counted
    assert merge.merge_devices([GPU, replace(GPU, memory_total_bytes=None)]).memory_total_bytes is None


def test_nodes_must_agree():
    assert merge.agreed("m:f", {"a": 1, "b": 1}) == 1
    with pytest.raises(UsageError, match="do not agree about f: a: 1; b: 2"):
        merge.agreed("m:f", {"a": 1, "b": 2})


def peak(**figures):
    return TrialResult(precision="fp32", status="ok", memory=MemoryPeak(**figures))


def test_memory_is_the_largest_devices_of_all_nodes_and_the_sum_of_all():
    mine = peak(peak_allocated_bytes=10, model_bytes=3, all_devices_bytes=18)
    other = peak(peak_allocated_bytes=14, all_devices_bytes=21)
    (found,) = merge.merge_results([mine], [other])
    memory = found.memory
    assert (memory.peak_allocated_bytes, memory.model_bytes, memory.all_devices_bytes) == (14, 3, 39)
    (found,) = merge.merge_results([mine], [peak(model_bytes=1)])
    assert found.memory.all_devices_bytes is None
    (found,) = merge.merge_results([mine], [peak(all_devices_bytes=0, peak_resident_bytes=0)])
    assert found.memory.all_devices_bytes == 18
    timed = TrialResult(precision="fp32", status="ok")
    assert merge.merge_results([timed], []) == [timed]
