"""The line between nodes: who is taken, signs of life, and how its end is heard of."""

import socket
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError, Pipe

import pytest

from bench.launch import wire
from bench.launch.wire import LostError, Wire


def called(server, word, found):
    with suppress(AuthenticationError, EOFError, OSError):
        found.append(wire.admit(server.accept()[0], word))


@pytest.mark.parametrize(("word", "taken"), [("job7", True), ("job8", False)])
def test_whoever_knows_the_jobs_word_is_taken(word, taken):
    found = []
    with wire.listen("127.0.0.1", 0) as server:
        thread = threading.Thread(target=called, args=(server, "job7", found))
        thread.start()
        if taken:
            wire.connect("127.0.0.1", server.getsockname()[1], word, 5.0).send("hello")
        else:
            with pytest.raises(AuthenticationError):
                wire.connect("127.0.0.1", server.getsockname()[1], word, 5.0)
        thread.join()
    assert [connection.recv() for connection in found] == ["hello"] * taken


def hang_up(server):
    server.accept()[0].close()


def test_another_server_is_not_taken_for_node_0():
    with wire.listen("127.0.0.1", 0) as server:
        thread = threading.Thread(target=hang_up, args=(server,))
        thread.start()
        with pytest.raises(AuthenticationError):
            wire.connect("127.0.0.1", server.getsockname()[1], "job7", 5.0)
        thread.join()


def test_a_node_waits_until_node_0_listens_but_not_for_ever():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with pytest.raises(OSError, match=r"refused"):
        wire.connect("127.0.0.1", port, "job7", 0.1)
    taken = []

    def late():
        with wire.listen("127.0.0.1", port) as server:
            called(server, "job7", taken)

    timer = threading.Timer(0.3, late)
    timer.start()
    wire.connect("127.0.0.1", port, "job7", 20.0)
    timer.join()
    assert len(taken) == 1


def test_signs_of_life_are_no_messages_and_their_absence_is_a_loss():
    ours, theirs = Pipe()
    alive = Wire(theirs, beat_s=0.02)
    line = Wire(ours, silence_s=0.5)
    threading.Timer(0.8, alive.send, args=("message",)).start()
    assert line.receive() == "message"  # it was silent but for its beats
    ours, theirs = Pipe()
    with pytest.raises(LostError, match="no sign of life"):
        Wire(ours, silence_s=0.05).receive()
    theirs.close()


def test_the_other_end_hears_that_a_line_has_ended_and_so_does_who_waits_at_this_one():
    with wire.listen("127.0.0.1", 0) as server:
        found = []
        thread = threading.Thread(target=called, args=(server, "w", found))
        thread.start()
        mine = Wire(wire.connect("127.0.0.1", server.getsockname()[1], "w", 5.0))
        thread.join()
    other, heard = Wire(found[0]), []

    def wait():
        with pytest.raises(LostError):
            mine.receive()
        heard.append("mine")

    waiting = threading.Thread(target=wait)
    waiting.start()
    mine.close()
    waiting.join(10)
    assert heard == ["mine"]
    with pytest.raises(LostError):
        other.receive()
