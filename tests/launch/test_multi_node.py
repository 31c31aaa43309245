"""A trial on several nodes, whose parts are told here what to say."""

import threading

import pytest

from bench.launch.launcher import Ending
from bench.launch.ray.trial import NodeLostError, Source, spread
from bench.results.records import MemoryPeak, Progress, TrialResult

DONE = Ending(kind="done")


def part(*says, name="here"):
    """A part that says all of it at once."""
    return Source(name=name, listen=lambda: iter(says), halt=lambda: None)


def waiting(*says, name="there"):
    """A part that waits for the others, and ends when it is told to."""
    halted = threading.Event()

    def listen():
        yield from says
        assert halted.wait(10)
        yield Ending(kind="died", text="killed")

    return Source(name=name, listen=listen, halt=halted.set)


def result(peak, model=1):
    memory = MemoryPeak(peak_resident_bytes=peak, model_bytes=model, all_devices_bytes=peak)
    return TrialResult(precision="fp32", status="ok", memory=memory)


def test_records_are_the_first_parts_with_the_memory_of_all():
    heard = []
    sources = [part(Progress(text="a"), result(10, 3), DONE), part(Progress(text="b"), result(14, 2), DONE)]
    assert spread(sources, heard.append) == DONE
    progress, found = heard
    assert progress.text == "a"
    assert (found.memory.peak_resident_bytes, found.memory.model_bytes) == (14, 3)
    assert found.memory.all_devices_bytes == 24


def test_a_part_that_fails_ends_those_that_wait_for_it_and_is_the_reason():
    sources = [waiting(Progress(text="a")), part(Ending(kind="oom", text="too big"), name="other")]
    ending = spread(sources, lambda _: None)
    assert (ending.kind, ending.text) == ("oom", "other: too big")


def test_what_only_follows_from_anothers_end_is_not_the_reason():
    sources = [part(Ending(kind="error", text="connection closed")), part(Ending(kind="oom", text="too big"))]
    assert spread(sources, lambda _: None).kind == "oom"
    ending = spread([sources[0], waiting()], lambda _: None, grace_s=0.01)
    assert (ending.kind, ending.text) == ("error", "here: connection closed")


def test_a_lost_node_ends_the_others_and_their_results_are_none():
    heard = []

    def lost():
        yield result(10)
        raise NodeLostError("gone")

    with pytest.raises(NodeLostError, match="gone"):
        spread([waiting(result(3)), Source(name="", listen=lost, halt=lambda: None)], heard.append)
    assert not heard
    with pytest.raises(NodeLostError, match="mute ended without a word"):
        spread([waiting(), part(name="mute")], heard.append)
