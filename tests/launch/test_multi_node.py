"""Several nodes as one: the merged environment and results, and a trial whose parts send what the test scripts."""

import threading
from dataclasses import replace

import pytest

from bench.launch.launcher import Ending
from bench.launch.multi_node import (
    NodeLostError,
    Part,
    agreed,
    failure,
    merge_nodes,
    merge_placements,
    merge_results,
    run_parts,
)
from bench.results.records import Device, MemoryPeak, Progress, TrialResult
from bench.run.prepare import warn_of_builds
from bench.spec.errors import UsageError
from tests.report.builders import GPU

DONE = Ending(kind="done")


def part(*says, name="here"):
    """A part that says all of it at once."""

    def run(on_message):
        *messages, ending = says
        for message in messages:
            on_message(message)
        if isinstance(ending, Exception):
            raise ending
        return ending

    return Part(name=name, run=run, halt=lambda: None)


def waiting(*says, name="there"):
    """A part that waits for the others, and ends when it is told to."""
    halted = threading.Event()

    def run(on_message):
        for message in says:
            on_message(message)
        assert halted.wait(10)
        return Ending(kind="died", text="killed")

    return Part(name=name, run=run, halt=halted.set)


def result(peak, model=1):
    memory = MemoryPeak(peak_resident_bytes=peak, model_bytes=model, all_devices_bytes=peak)
    return TrialResult(precision="fp32", status="ok", memory=memory)


def test_records_are_the_first_parts_with_the_memory_of_all():
    heard = []
    sources = [part(Progress(text="a"), result(10, 3), DONE), part(Progress(text="b"), result(14, 2), DONE)]
    assert run_parts(sources, heard.append) == DONE
    progress, found = heard
    assert progress.text == "a"
    assert (found.memory.peak_resident_bytes, found.memory.model_bytes) == (14, 3)
    assert found.memory.all_devices_bytes == 24


def test_a_part_that_fails_ends_those_that_wait_for_it_and_is_the_reason():
    sources = [waiting(Progress(text="a")), part(Ending(kind="oom", text="too big"), name="other")]
    ending = run_parts(sources, lambda _: None)
    assert (ending.kind, ending.text) == ("oom", "other: too big")


def test_what_only_follows_from_anothers_end_is_not_the_reason():
    sources = [part(Ending(kind="error", text="connection closed")), part(Ending(kind="oom", text="too big"))]
    assert run_parts(sources, lambda _: None).kind == "oom"
    ending = run_parts([sources[0], waiting()], lambda _: None, grace_s=0.01)
    assert (ending.kind, ending.text) == ("error", "here: connection closed")


def test_a_lost_node_ends_the_others_and_their_results_are_none():
    heard = []
    with pytest.raises(NodeLostError, match="gone"):
        run_parts([waiting(result(3)), part(result(10), NodeLostError("gone"))], heard.append)
    assert not heard


CLOSED = "here", Ending(kind="error", text="connection closed | trace")


@pytest.mark.parametrize(
    ("endings", "kind", "text"),
    [
        ([("here", DONE)], None, None),
        ([CLOSED, ("there", Ending(kind="oom", text="full"))], "oom", "there: full"),
        (
            [CLOSED, ("there", Ending(kind="died", text="late"))],
            "error",
            "here: connection closed | trace; there: late",
        ),
        ([("there", Ending(kind="died", text="broke")), CLOSED], "died", "there: broke; here: connection closed"),
    ],
)
def test_the_cause_comes_before_secondary_failures(endings, kind, text):
    failed = failure(endings)
    assert (failed and (failed.kind, failed.text)) == (kind and (kind, text))


def test_devices_of_several_nodes_are_one(machine):
    gpus = [
        replace(GPU, memory_total_bytes=8, fp32_gflops=5.0),
        replace(GPU, memory_total_bytes=4, fp32_gflops=3.0, unsupported={"tf32": "too old"}),
    ]
    joint = Device.joint(gpus)
    assert (joint.name, joint.memory_total_bytes, joint.uuid, joint.energy) == (f"2 × {GPU.name}", 12, None, None)
    assert joint.fp32_gflops == 3.0  # the estimate is of the slowest
    assert set(joint.unsupported) == {"tf32", "fp16-master", "bf16-sr", "te-bf16", "te-fp8", "te-mxfp8"}
    assert Device.joint([GPU, replace(GPU, name="NVIDIA Other")]).name == f"{GPU.name} + NVIDIA Other"
    assert Device.joint([machine.devices[0]] * 2).name == "Test CPU"  # which is not counted
    assert Device.joint([GPU, replace(GPU, memory_total_bytes=None)]).memory_total_bytes is None
    assert Device.joint([GPU, replace(GPU, lacking=("tf32",))]).lacking == ("tf32",)


def test_nodes_whose_devices_train_together_are_listed(machine):
    assert [node.host for node in merge_nodes([machine, machine]).nodes] == ["here", "here"]


def test_nodes_must_agree():
    assert agreed("m:f", {"a": 1, "b": 1}) == 1
    with pytest.raises(UsageError, match="do not agree about f: a: 1; b: 2"):
        agreed("m:f", {"a": 1, "b": 2})


def peak(**figures):
    return TrialResult(precision="fp32", status="ok", memory=MemoryPeak(**figures))


def test_memory_is_the_largest_devices_of_all_nodes_and_the_sum_of_all():
    mine = peak(peak_allocated_bytes=10, model_bytes=3, all_devices_bytes=18)
    other = peak(peak_allocated_bytes=14, all_devices_bytes=21)
    (found,) = merge_results([mine], [other])
    memory = found.memory
    assert (memory.peak_allocated_bytes, memory.model_bytes, memory.all_devices_bytes) == (14, 3, 39)
    (found,) = merge_results([mine], [peak(model_bytes=1)])
    assert found.memory.all_devices_bytes is None
    (found,) = merge_results([mine], [peak(all_devices_bytes=0, peak_resident_bytes=0)])
    assert found.memory.all_devices_bytes == 18
    timed = TrialResult(precision="fp32", status="ok")
    assert merge_results([timed], []) == [timed]


@pytest.fixture
def two(machine):
    device = replace(machine.devices[0], name="Other CPU")
    other = replace(machine, host="there", driver="570.1", cudnn="92600", devices=(device,))
    return {"A100": machine, "V100": other}


def test_the_machines_of_several_nodes_make_one_with_a_device_for_each_type(two):
    found = merge_placements(two)
    assert [(device.placement, device.name) for device in found.devices] == [
        ("A100", "Test CPU"),
        ("V100", "Other CPU"),
    ]
    assert [(node.accelerator, node.host, node.driver, node.cudnn) for node in found.nodes] == [
        ("A100", "here", None, None),
        ("V100", "there", "570.1", "92600"),
    ]
    assert (found.host, found.driver, found.torch) == ("here, there", "570.1", "2.15")
    assert warn_of_builds(found) == []


def test_nodes_with_other_builds_of_torch_are_warned_of(two):
    two["V100"] = replace(two["V100"], torch="2.6.0+cu126")
    (warning,) = warn_of_builds(merge_placements(two))
    assert "2.15 on here (A100), 2.6.0+cu126 on there (V100)" in warning
