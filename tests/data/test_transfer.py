"""Batches one ahead: the same ones in the same order, errors where they belong, nothing left
running.
"""

import threading
import time
from contextlib import closing, contextmanager

import pytest
import torch

from bench.data.batch import to_device
from bench.data.transfer import prefetched
from tests import fake_graph

CPU = torch.device("cpu")
NAME = "ampmeter-prefetcher_0"


def batch(number):
    return torch.full((2, 3), number), torch.tensor([number])


class Source:
    """Five batches, or an error in the place of one; keeps how many were asked for, by which
    threads, and whether it was closed.
    """

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.asked = 0
        self.closed = False
        self.threads = set()

    def __iter__(self):
        try:
            for number in range(5):
                self.asked += 1
                self.threads.add(threading.current_thread().name)
                if number == self.fails_at:
                    raise OSError(f"batch {number} is broken")
                yield batch(number)
        finally:
            self.closed = True


@pytest.fixture(params=["thread", "stream"])
def device(request, monkeypatch):
    """The CPU, once as it is and once as if it were a GPU."""
    if request.param == "thread":
        return CPU
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    fake_graph.install(monkeypatch)
    return fake_graph.CUDA


def running():
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


def wait_for(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_batches_come_in_order_and_prepared(device):
    source = Source()

    def doubled(batch):
        inputs, targets = batch
        return inputs * 2, targets

    with closing(prefetched(source, device, doubled)) as ahead:
        for number, (inputs, targets) in enumerate(ahead):
            assert targets[0] == number
            assert inputs[0, 0] == 2 * number
        assert next(ahead, None) is None
    assert number == 4
    assert source.closed
    (thread,) = source.threads
    assert (thread == NAME) == (device is CPU)
    assert not running()


def test_a_batch_is_made_while_the_one_before_is_used(device):
    source = Source()
    with closing(prefetched(source, device)) as ahead:
        for asked in (2, 3):  # one in use, one ahead
            next(ahead)
            assert wait_for(lambda asked=asked: source.asked >= asked)
            time.sleep(0.05)
            assert source.asked == asked


def test_an_error_is_raised_and_is_the_end(device):
    source = Source(fails_at=2)
    with closing(prefetched(source, device)) as ahead:
        next(ahead)
        with pytest.raises(OSError, match="batch 2 is broken"):
            list(ahead)
        assert next(ahead, None) is None
    assert source.closed


def test_closing_in_the_middle_ends_the_source_and_the_thread(device):
    source = Source()
    with closing(prefetched(source, device)) as ahead:
        next(ahead)
    assert source.closed
    assert source.asked < 5
    assert not running()
    assert next(ahead, None) is None


def test_streams_wait_for_each_other_and_memory_is_kept_for_the_step(monkeypatch):
    streams = fake_graph.install(monkeypatch)
    recorded = []
    inside = []

    @contextmanager
    def entered(stream):
        inside.append(stream)
        yield
        inside.pop()

    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append(stream))
    prepared_on = []

    def prepare(batch):
        prepared_on.append(inside[-1])
        return batch

    for _ in range(2):
        with closing(prefetched(Source(), fake_graph.CUDA, prepare)) as ahead:
            next(ahead)
    current, side = streams
    assert side.waited[0] is current
    assert current.waited == [side] * 2
    assert recorded == [current] * 4
    assert set(prepared_on) == {side}
    assert len(streams) == 2  # the next epoch's batches are prepared on the same stream


def test_only_pageable_memory_that_nobody_waits_for_is_pinned(monkeypatch):
    moves = []

    def pin(tensor):
        moves.append("pin")
        return tensor

    def move(tensor, _device, non_blocking):
        moves.append(non_blocking)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", move)
    inputs = torch.zeros(1)
    to_device(inputs, fake_graph.CUDA, non_blocking=True)
    to_device(inputs, fake_graph.CUDA)
    to_device(inputs, CPU, non_blocking=True)
    assert moves == ["pin", True, False, True]
