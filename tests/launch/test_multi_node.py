"""A trial on several nodes, whose parts are told here what to say."""

import threading

import pytest

from bench.launch.launcher import Ending
from bench.launch.multi_node import NodeLostError, Part, failure, run_parts
from bench.results.records import MemoryPeak, Progress, TrialResult

DONE = Ending(kind="done")


def part(*says, name="here"):
    """A part that says all of it at once."""
    return Part(name=name, run=lambda: iter(says), halt=lambda: None)


def waiting(*says, name="there"):
    """A part that waits for the others, and ends when it is told to."""
    halted = threading.Event()

    def listen():
        yield from says
        assert halted.wait(10)
        yield Ending(kind="died", text="killed")

    return Part(name=name, run=listen, halt=halted.set)


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

    def lost():
        yield result(10)
        raise NodeLostError("gone")

    with pytest.raises(NodeLostError, match="gone"):
        run_parts([waiting(result(3)), Part(name="", run=lost, halt=lambda: None)], heard.append)
    assert not heard
    with pytest.raises(NodeLostError, match="mute ended without a word"):
        run_parts([waiting(), part(name="mute")], heard.append)


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


def test_a_part_that_does_not_end_with_the_first_fails_the_trial():
    sources = [part(result(3), DONE), waiting(name="there")]
    ending = run_parts(sources, lambda _: None, end_s=0.05)
    assert (ending.kind, ending.text) == ("died", "there: did not end with the others")
