"""Node 0 and a node that follows it: what is refused, agreed on, measured together, and what a failure leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing import AuthenticationError

import pytest

from bench.cli.parser import parse
from bench.launch import follower, nodes, wire
from bench.launch.asked import asked
from bench.launch.local import Ending
from bench.launch.orders import Answer, Call, Cancel, End, Start
from bench.launch.running import Running
from bench.launch.wire import LostError, Wire
from bench.nodes import Rendezvous
from bench.results.records import MemoryPeak, Progress, TrialResult
from bench.spec.errors import UsageError
from bench.spec.trial import DataSource, Placement, SuiteRef

DONE = Ending(kind="done")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def job(rank, port, *more, gpus="cpu,cpu+cpu", wait=10):
    words = ["--suite", "mlp", "--gpus", gpus, "--nnodes", "2", "--node-rank", str(rank)]
    return parse([*words, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", f"join_timeout={wait}", *more])


def peak(size):
    memory = MemoryPeak(peak_resident_bytes=size, all_devices_bytes=2 * size)
    return TrialResult(precision="fp32", status="ok", memory=memory)


class FakeLocal:
    """A machine's own launcher, whose trials end as they are told to, or when they are killed."""

    def __init__(self, machine, on_start):
        self.machine, self.on_start = machine, on_start
        self.workspace, self.ending, self.kill_me, self.shares = None, DONE, False, []

    def survey(self, placements):
        devices = tuple(replace(self.machine.devices[0], placement=name) for name in placements)
        return replace(self.machine, devices=devices)

    def call(self, target, *arguments):
        return f"{target} of {arguments}"

    def run(self, trial, device, on_message):
        on_message(TrialResult(precision="fp32", status="ok", detail="alone"))
        return DONE

    def run_share(self, trial, device, on_message, rendezvous):
        self.shares.append((trial, device, rendezvous))
        on_message(Progress(text="working"))
        if self.kill_me:
            with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
                self.on_start(process.pid)
                return Ending(kind="died", text=f"signal {-process.wait(20)}")
        on_message(peak(10))
        return self.ending


@pytest.fixture
def front(machine, monkeypatch):
    monkeypatch.setattr(nodes, "LocalLauncher", lambda on_start: FakeLocal(machine, on_start))
    port = free_port()
    command = job(0, port, wait=5)
    with closing(nodes.NodesLauncher(command, command.nodes, grace_s=0.2, settle_s=1.0)) as launcher:
        launcher.port = port
        yield launcher


def greet(port, command, **changed):
    """Call node 0 as another node, and return the line and what it said."""
    connection = wire.connect("127.0.0.1", port, command.nodes.id, 5.0)
    hello = {"rank": command.nodes.rank, "count": 2, "host": "there", "asked": asked(command), **changed}
    connection.send_bytes(json.dumps(hello).encode())
    return connection, json.loads(connection.recv_bytes())["problem"]


class FakeNode:
    """Another node, which answers orders as it is told to."""

    def __init__(self, front, machine):
        self.machine, self.orders, self.answers = machine, [], {}
        connection, problem = greet(front.port, job(1, front.port))
        assert problem == ""
        self.line = Wire(connection)
        self.thread = threading.Thread(target=self.live, daemon=True)
        self.thread.start()

    def live(self):
        with suppress(LostError):
            while not isinstance(order := self.line.receive(), End):
                self.orders.append(order)
                answer = self.answers.get(type(order), self.usual)(order)
                if isinstance(answer, Answer):
                    self.line.send(answer)
            self.orders.append(order)
        self.line.close()

    def usual(self, order):
        if isinstance(order, Call) and "survey" in order.target:
            devices = tuple(replace(self.machine.devices[0], placement=name) for name in order.arguments[0])
            return Answer(number=order.number, ending=Ending(kind="done", value=replace(self.machine, devices=devices)))
        if isinstance(order, Call):
            return Answer(number=order.number, ending=Ending(kind="done", value=f"{order.target} of {order.arguments}"))
        if isinstance(order, Cancel):
            return Answer(number=order.number, ending=Ending(kind="died", text="ended when asked to"))
        return Answer(number=order.number, ending=DONE, memory=(peak(30),))


@pytest.fixture
def other(front, machine):
    node = FakeNode(front, replace(machine, host="there"))
    front.survey(("cpu", "cpu+cpu@2"))
    return node


@pytest.fixture
def joined(tiny_trial):
    return replace(tiny_trial, cell=replace(tiny_trial.cell, placement=Placement(name="cpu+cpu@2")))


def test_each_node_looks_at_what_is_joined_and_node_0_at_the_rest_too(front, machine):
    node = FakeNode(front, replace(machine, host="there"))
    found = front.survey(("cpu", "cpu+cpu@2"))
    assert [device.placement for device in found.devices] == ["cpu", "cpu+cpu@2"]
    assert [order.arguments for order in node.orders] == [(("cpu+cpu",),)]
    assert found.host == "here, there"


def test_a_value_is_one_that_all_nodes_agree_on(front, other):
    assert front.call("bench.worker.worker:prepare_data", 1) == "bench.worker.worker:prepare_data of (1,)"
    other.answers[Call] = lambda order: Answer(number=order.number, ending=Ending(kind="done", value="fingerprint 7"))
    with pytest.raises(UsageError, match=r"do not agree about prepare_data: .*node 1 \(there\): fingerprint 7"):
        front.call("bench.worker.worker:prepare_data", 1)
    refusal = Ending(kind="usage", text="The folder does not exist.")
    other.answers[Call] = lambda order: Answer(number=order.number, ending=refusal)
    with pytest.raises(UsageError, match=r"^node 1 \(there\): The folder does not exist\.$"):
        front.call("bench.worker.worker:prepare_data", 1)


def test_every_node_starts_its_share_and_memory_is_of_all(front, other, joined, cpu):
    sent = []
    assert front.run(joined, cpu, sent.append) == DONE
    (order,) = [order for order in other.orders if isinstance(order, Start)]
    (here,) = front._local.shares
    assert (here[2].first, here[2].local, here[2].world) == (0, 2, 4)
    assert (order.rendezvous.first, order.rendezvous.local, order.rendezvous.world) == (2, 2, 4)
    assert here[2].port == order.rendezvous.port
    assert order.trial == joined
    progress, result = sent
    assert progress == Progress(text="working")
    assert (result.memory.peak_resident_bytes, result.memory.all_devices_bytes) == (30, 80)


def test_a_trial_on_one_device_is_node_0s_alone(front, other, tiny_trial, cpu, tmp_path):
    front.workspace = tmp_path
    sent, before = [], len(other.orders)
    assert front.run(tiny_trial, cpu, sent.append) == DONE
    assert (sent[0].detail, front._local.workspace, len(other.orders)) == ("alone", tmp_path, before)


def test_a_failure_there_ends_what_runs_here_and_the_next_trial_goes_on(front, other, joined, cpu):
    full = Ending(kind="oom", text="it does not fit")
    other.answers[Start] = lambda order: Answer(number=order.number, ending=full)
    front._local.kill_me, sent = True, []
    ending = front.run(joined, cpu, sent.append)
    assert (ending.kind, ending.text) == ("oom", "node 1 (there): it does not fit")
    assert not any(isinstance(message, TrialResult) for message in sent)
    other.answers.clear()
    front._local.kill_me = False
    assert front.run(joined, cpu, sent.append) == DONE


def test_a_failure_here_ends_what_runs_there(front, other, joined, cpu):
    other.answers[Start] = lambda _order: None
    front._local.ending = Ending(kind="error", text="it broke")
    ending = front.run(joined, cpu, lambda _message: None)
    assert ending.kind == "error"
    assert ending.text.startswith("node 0 (")
    assert ending.text.endswith("it broke")
    start, cancel = other.orders[-2:]
    assert isinstance(cancel, Cancel)
    assert cancel.number == start.number


def test_a_node_that_does_not_come_to_an_end_fails_the_trial(front, other, joined, cpu):
    other.answers[Start] = lambda _order: None
    ending = front.run(joined, cpu, lambda _message: None)
    assert ending == Ending(kind="died", text="node 1 (there): ended when asked to")


def test_a_node_that_is_lost_is_named_and_what_needs_it_fails_at_once(front, other, joined, tiny_trial, cpu):
    other.answers[Start] = lambda _order: other.line.close()
    front._local.kill_me = True
    started = time.monotonic()
    ending = front.run(joined, cpu, lambda _message: None)
    assert ending.kind == "died"
    assert ending.text.startswith("node 1 (there) was lost: ")
    again = front.run(joined, cpu, lambda _message: None)
    assert again.text.startswith("node 1 (there) was lost: ")
    assert len(front._local.shares) == 1
    assert time.monotonic() - started < 15
    assert front.run(tiny_trial, cpu, lambda _message: None) == DONE


@pytest.mark.parametrize(
    ("words", "changed", "said"),
    [
        (("--epochs", "3"), {}, r"Node 1 \(there\) was started with other --epochs\. Start the same command"),
        ((), {"count": 3}, "started with --nnodes 3, and node 0 with 2"),
        ((), {"rank": 0}, "Two nodes say that they are node 0"),
        ((), {"asked": {"version of ampmeter": "old"}}, "another version of ampmeter"),
    ],
)
def test_a_node_that_does_not_belong_here_is_refused_on_both(front, words, changed, said):
    connection, problem = greet(front.port, job(1, front.port, *words), **changed)
    with closing(connection), pytest.raises(UsageError, match=said):
        raise UsageError(problem)
    with pytest.raises(UsageError, match=said):
        front.survey(("cpu+cpu@2",))


def test_a_node_that_does_not_come_is_missed(machine, monkeypatch, capsys):
    monkeypatch.setattr(nodes, "LocalLauncher", lambda on_start: FakeLocal(machine, on_start))
    command = job(0, free_port(), wait=1)
    with closing(nodes.NodesLauncher(command, command.nodes)) as launcher:
        stranger = job(1, command.nodes.port, "--rdzv-id", "another")
        with pytest.raises(AuthenticationError):
            greet(command.nodes.port, stranger)
        with pytest.raises(UsageError, match=r"Nobody came to 127\.0\.0\.1:\d+ as --node-rank 1 within 1 s"):
            launcher.survey(("cpu+cpu@2",))
    assert "another --rdzv-id" in capsys.readouterr().out


def test_an_endpoint_that_is_not_node_0s_own_is_told():
    command = job(0, 29400)
    with pytest.raises(UsageError, match=r"cannot listen at 192\.0\.2\.1:5"):
        nodes.NodesLauncher(command, replace(command.nodes, host="192.0.2.1", port=5))


class FakeFront:
    """Node 0, which gives a follower the orders it is told to."""

    def __init__(self, command):
        self.server = wire.listen("127.0.0.1", command.nodes.port)
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.meet, args=(command.nodes.id,), daemon=True)
        self.thread.start()

    def meet(self, word):
        with suppress(AuthenticationError):
            connection = wire.admit(self.server.accept()[0], word)
            connection.recv_bytes()
            connection.send_bytes(json.dumps({"problem": ""}).encode())
            self.line = Wire(connection)
            self.ready.set()


@pytest.fixture
def following(machine, monkeypatch, tmp_path):
    """A node that follows a front that we are, with its machine's own launcher."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.py").write_text("")
    command = job(1, free_port(), "--data", f"folder:{own}", "--data-dir", str(own / "kept"))
    command = replace(command, suites=(str(own / "mine.py"),))
    monkeypatch.setattr(follower, "LocalLauncher", lambda on_start: FakeLocal(machine, on_start))
    front = FakeFront(command)
    node = follower.Follower(command, command.nodes)
    ended = []

    def follow():
        try:
            ended.append(node.follow())
        except UsageError as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    assert front.ready.wait(10)
    front.node, front.own, front.ended, front.following = node, own, ended, thread
    yield front
    front.line.close()
    thread.join(10)
    front.server.close()


def test_a_follower_has_its_own_files_and_images(following, joined, cpu):
    mine = SuiteRef(name="mine", file="/elsewhere/mine.py", digest="d")
    data = DataSource(kind="folder", path="/elsewhere/images", directory="/elsewhere")
    trial = replace(joined, cell=replace(joined.cell, suite=mine, data=data))
    share = Rendezvous(first=2, local=2, world=4, address="127.0.0.1", port=1)
    following.line.send(Start(number=3, trial=trial, device=cpu, rendezvous=share))
    answer = following.line.receive()
    assert (answer.number, answer.ending, answer.memory) == (3, DONE, (peak(10),))
    ((found, device, where),) = following.node._local.shares
    assert found.cell.suite == replace(mine, file=str(following.own / "mine.py"))
    assert (found.cell.data.path, found.cell.data.directory) == (str(following.own), str(following.own / "kept"))
    assert (device, where) == (cpu, share)
    following.line.send(Call(number=4, target="bench.training.flops:count_all", arguments=((mine,),)))
    assert str(following.own) in following.line.receive().ending.value


def test_a_follower_ends_its_processes_when_it_is_asked_to(following, joined, cpu):
    following.node._local.kill_me = True
    share = Rendezvous(first=2, local=2, world=4, address="127.0.0.1", port=1)
    trial = replace(joined, cell=replace(joined.cell, suite=SuiteRef(name="mlp")))
    following.line.send(Start(number=5, trial=trial, device=cpu, rendezvous=share))
    following.line.send(Cancel(number=5))
    answer = following.line.receive()
    assert (answer.number, answer.ending.text) == (5, f"signal {signal.SIGKILL.value}")


@pytest.mark.parametrize("begun", [True, False])
def test_a_follower_leaves_when_the_run_has_ended(following, begun):
    following.line.send(End(begun=begun))
    following.following.join(10)
    assert following.ended == [begun]


def test_a_follower_says_that_node_0_is_gone(following):
    following.line.close()
    following.following.join(10)
    (error,) = following.ended
    assert "was lost: the connection has ended" in str(error)


@pytest.mark.parametrize("word", ["none", "another"])
def test_a_follower_without_a_node_0_of_its_job_says_what_to_do(word, machine, monkeypatch):
    monkeypatch.setattr(follower, "LocalLauncher", lambda on_start: FakeLocal(machine, on_start))
    port = free_port()
    command = job(1, port, "--rdzv-id", word, wait=1)
    if word == "none":
        with pytest.raises(UsageError, match=r"did not answer at 127\.0\.0\.1:\d+ within 1 s .*--node-rank 0"):
            follower.follow(command, command.nodes)
        return
    front = FakeFront(job(0, port))
    with closing(front.server), pytest.raises(UsageError, match="the same --rdzv-id"):
        follower.follow(command, command.nodes)


def test_a_process_that_is_to_end_before_it_has_begun_is_ended_when_it_does():
    running = Running()
    running.begin(1)
    running.stop(1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        running.own(process.pid)
        assert process.wait(20) == -signal.SIGKILL
    running.end()
    running.begin(2)
    running.own(os.getpid())
    running.stop(1)  # long gone
    assert not running.was_stopped(2)
