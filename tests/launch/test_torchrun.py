"""Ranks of torchrun or srun: what they are told, agree on, run together, and what a failure of one leaves."""

import dataclasses
import json
import threading
import time
import types
import typing
from contextlib import closing
from dataclasses import dataclass, replace

import pytest
from torch.distributed import HashStore

from bench.launch import torchrun
from bench.launch.launcher import Ending, open_launcher
from bench.launch.local import LocalLauncher
from bench.launch.torchrun import Channel, Job, Order, TorchrunLauncher, _translated, decode, encode, follow, read_job
from bench.results import records
from bench.results.records import Block, MemoryPeak, Progress, TrialResult
from bench.spec import trial as spec
from bench.spec.errors import UsageError
from bench.spec.trial import DataSource, Placement, SuiteRef

DONE = Ending(kind="done")

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
}


def test_torchruns_variables_name_the_rank_and_are_not_left_to_trials():
    environment = {**TORCHRUN, "HOME": "/home"}
    job = Job(rank=3, world=4, node=1, local_rank=1, address="node0", port=29400, name="job/2", agent_store=True)
    assert read_job(environment) == job
    assert environment == {"HOME": "/home"}


def test_srun_is_the_same_without_a_store_of_an_agent():
    assert read_job(dict(SRUN)) == Job(
        rank=3, world=4, node=1, local_rank=1, address="node0", port=29400, name="7.0/0", agent_store=False
    )


def test_a_process_that_was_started_alone_has_no_ranks_beside_it():
    assert read_job({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "MASTER_ADDR": "node0"}) is None
    alone = {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}
    assert read_job(alone) is None
    assert not alone


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT"])
def test_without_an_address_a_sentence_says_what_to_set(name):
    with pytest.raises(UsageError, match=r"4 ranks were started without .*export MASTER_PORT=29400 MASTER_ADDR="):
        read_job({key: value for key, value in SRUN.items() if key != name})


def sample(hint):
    """Return a value of a type."""
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind is typing.Literal:
        return arguments[0]
    if kind in (typing.Union, types.UnionType):
        return sample(arguments[0])
    if kind is tuple:
        return tuple(sample(one) for one in arguments if one is not Ellipsis)
    if kind is dict:
        return {sample(arguments[0]): sample(arguments[1])}
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: "memory" if name == "phase" else sample(one) for name, one in hints.items()})
    return {int: 3, float: 0.5, str: "cpu", bool: True}.get(hint)


RECORDS = [
    value
    for module in (records, spec, torchrun)
    for value in vars(module).values()
    if dataclasses.is_dataclass(value) and isinstance(value, type)
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_comes_back_from_json_as_it_was(record):
    value = sample(record)
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_json_names_no_classes_but_records_of_this_project():
    for name in ("subprocess:Popen", "bench.launch.local:LocalLauncher", "bench.launch.local:os"):
        with pytest.raises(ValueError, match="is no dataclass of ampmeter"):
            decode({"type": name})


@dataclass(frozen=True, kw_only=True)
class Options:
    suites: tuple[str, ...] = ("mlp",)
    gpus: tuple[str, ...] | None = None
    epochs: int | None = None
    on: str | None = None
    data: str | None = None
    data_dir: str = "data"
    dry_run: bool = False


def block(start_s):
    known = {"trial": "t", "precision": "fp32", "round": 0, "position": 0, "steps": 1, "time_ms": 1.0}
    return Block(**known, start_s=start_s, skipped_steps=0)


def peak(size):
    return TrialResult(precision="fp32", status="ok", memory=MemoryPeak(peak_resident_bytes=size))


class FakeLocal:
    """A rank's own launcher, whose trials end as they are told to, or when they are cancelled."""

    def __init__(self, machine, rank):
        self.machine, self.rank = machine, rank
        self.ending, self.hangs, self.raises, self.workspace = DONE, False, None, None
        self.calls, self.trials, self.cancelled = [], [], threading.Event()

    def survey(self, placements):
        self.calls.append(placements)
        devices = tuple(replace(self.machine.devices[0], placement=name) for name in placements or ("cpu",))
        return replace(self.machine, devices=devices)

    def call(self, target, *arguments):
        self.calls.append((target, *arguments))
        if self.raises:
            raise UsageError(self.raises)
        return self.machine.host if target == "m:host" else {"mlp": 3.0}

    def run(self, trial, device, on_message, rendezvous=None):
        self.trials.append((trial, device, rendezvous))
        on_message(Progress(text="working"))
        end_s = time.monotonic() + 20
        while self.hangs:
            if self.cancelled.wait(0.01):
                return Ending(kind="died", text="killed")
            assert time.monotonic() < end_s
            on_message(Progress(text=""))
        on_message(block(self.rank))
        on_message(peak(10 * (self.rank + 1)))
        return self.ending

    def cancel(self):
        self.cancelled.set()


class Ranks:
    """Two nodes of two ranks each, in threads, that share a store."""

    def __init__(self, machine, monkeypatch):
        self.store, self.monkeypatch = HashStore(), monkeypatch
        self.jobs = [
            Job(rank=rank, world=4, node=rank // 2, local_rank=rank % 2, address="127.0.0.1", port=9)
            for rank in range(4)
        ]
        self.locals = [FakeLocal(replace(machine, host=("here", "there")[rank // 2]), rank) for rank in range(4)]
        self.ended, self.threads = {}, []

    def start(self, options=None, jobs=None):
        """Start all ranks; return rank 0's launcher."""
        options = {rank: Options() for rank in range(4)} | (options or {})
        self.monkeypatch.setattr(torchrun, "LocalLauncher", self._local)
        self.monkeypatch.setattr(torchrun, "POLL_S", 0.01)
        for job in (jobs or self.jobs)[1:]:
            arguments = (job, options[job.rank])
            self.threads.append(threading.Thread(target=self._follow, args=arguments, name=str(job.rank), daemon=True))
            self.threads[-1].start()
        return TorchrunLauncher(self.jobs[0], options[0], self.store)

    def join(self):
        """Wait for the other ranks; return how they ended."""
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        return self.ended

    def _local(self):
        name = threading.current_thread().name
        return self.locals[int(name) if name.isdigit() else 0]

    def _follow(self, job, options):
        try:
            self.ended[job.rank] = follow(job, options, self.store)
        except Exception as error:
            self.ended[job.rank] = error


@pytest.fixture
def ranks(machine, monkeypatch):
    started = Ranks(machine, monkeypatch)
    yield started
    started.join()


@pytest.fixture
def launcher(ranks):
    with closing(ranks.start()) as front:
        yield front


@pytest.fixture
def joint(tiny_trial):
    changed = {
        "suite": SuiteRef(name="mlp"),
        "data": DataSource.parse("synthetic"),
        "placement": Placement(name="cpu+cpu@2"),
    }
    return replace(tiny_trial, cell=replace(tiny_trial.cell, **changed))


def test_unless_placements_are_named_they_are_one_device_and_all_ranks_together(ranks, launcher):
    environment = launcher.survey(None)
    assert [device.placement for device in environment.devices] == ["cpu", "cpu+cpu@2"]
    assert environment.host == "here, there"
    assert [(node.accelerator, node.host) for node in environment.nodes] == [
        ("cpu+cpu@2", one) for one in ("here", "there")
    ]
    assert [local.calls for local in ranks.locals[1:]] == [[], [("cpu",)], []]  # a node's first rank looks at it


def test_several_devices_are_on_all_nodes_whatever_they_are_called(launcher):
    environment = launcher.survey(("cpu+cpu", "cpu@2"))
    assert [device.placement for device in environment.devices] == ["cpu+cpu@2", "cpu@2"]


@pytest.mark.parametrize(
    ("name", "text"), [("0+1@3", "other than the 2 nodes"), ("0+2", "--nproc-per-node=3"), ("2", "--nproc-per-node=3")]
)
def test_placements_without_ranks_are_refused(launcher, name, text):
    with pytest.raises(UsageError, match=text):
        launcher.survey((name,))


def test_a_value_is_one_that_all_nodes_agree_on(ranks, launcher):
    assert launcher.call("m:f", SuiteRef(name="mlp")) == {"mlp": 3.0}
    assert ranks.locals[2].calls == [("m:f", SuiteRef(name="mlp"))]
    with pytest.raises(UsageError, match=r"do not agree about host: rank 0 \(.*\): here; rank 2 \(.*\): there"):
        launcher.call("m:host")
    ranks.locals[2].raises = "The folder does not exist."
    with pytest.raises(UsageError, match=r"^rank 2 \(.*\): The folder does not exist\.$"):
        launcher.call("m:f")


def test_every_rank_starts_its_process_and_memory_is_of_all(ranks, launcher, joint, cpu):
    messages = []
    assert launcher.run(joint, cpu, messages.append) == DONE
    parts = [local.trials[0][2] for local in ranks.locals]
    assert [(part.first, part.local, part.world) for part in parts] == [(rank, 1, 4) for rank in range(4)]
    assert len({(part.address, part.port) for part in parts}) == 1
    assert {local.trials[0][0] for local in ranks.locals} == {joint}
    progress, block, result = messages
    assert (progress.text, block.start_s) == ("working", 0)
    assert (result.memory.peak_resident_bytes, result.memory.all_devices_bytes) == (40, 100)
    assert launcher.run(joint, cpu, messages.append) == DONE
    assert ranks.locals[1].trials[1][2].port != parts[0].port


def test_a_trial_on_fewer_devices_is_run_by_their_ranks_alone(ranks, launcher, joint, tiny_trial, cpu):
    launcher.workspace = tiny_trial.checkpoint
    assert launcher.run(tiny_trial, cpu, lambda _message: None) == DONE
    assert ranks.locals[0].workspace == tiny_trial.checkpoint
    one_each = replace(joint, cell=replace(joint.cell, placement=Placement(name="cpu@2")))
    assert launcher.run(one_each, cpu, lambda _message: None) == DONE
    assert [len(local.trials) for local in ranks.locals] == [2, 0, 1, 0]
    other = replace(joint, cell=replace(joint.cell, placement=Placement(name="1")))
    messages = []
    assert launcher.run(other, cpu, messages.append) == DONE
    assert ranks.locals[1].trials == [(other, cpu, None)]
    assert [type(message) for message in messages] == [Block, TrialResult]
    assert messages[0].start_s == 1


def test_a_failure_there_ends_the_others_and_the_next_trial_runs(ranks, launcher, joint, cpu):
    ranks.locals[3].ending = Ending(kind="oom", text="it does not fit")
    for rank in (0, 1):
        ranks.locals[rank].hangs = True
    messages = []
    ending = launcher.run(joint, cpu, messages.append)
    assert ending.kind == "oom"
    assert ending.text.startswith("rank 3 (")
    assert ending.text.endswith("it does not fit")
    assert not any(isinstance(message, TrialResult) for message in messages)
    ranks.locals[3].ending = DONE
    for rank in (0, 1):
        ranks.locals[rank].hangs = False
    assert launcher.run(joint, cpu, messages.append) == DONE


def test_a_failure_here_ends_the_others(ranks, launcher, joint, cpu):
    ranks.locals[0].ending = Ending(kind="unsupported", text="it cannot")
    ranks.locals[2].hangs = True
    ending = launcher.run(joint, cpu, lambda _message: None)
    assert (ending.kind, ending.text.partition(": ")[2]) == ("unsupported", "it cannot")
    assert ranks.locals[2].cancelled.is_set()


def test_a_rank_that_is_lost_is_named_and_what_needs_it_fails_at_once(ranks, launcher, joint, tiny_trial, cpu):
    def stop(*_):
        raise KeyboardInterrupt

    ranks.monkeypatch.setattr(threading, "excepthook", lambda _: None)
    ranks.monkeypatch.setattr(ranks.locals[3], "run", stop)
    ranks.locals[0].hangs = True
    ending = launcher.run(joint, cpu, lambda _message: None)
    assert ending.kind == "died"
    assert ending.text.startswith("rank 3 (")
    assert ending.text.endswith("was lost: it was stopped")
    again = launcher.run(joint, cpu, lambda _message: None)
    assert again == ending
    assert len(ranks.locals[0].trials) == 1
    ranks.locals[0].hangs = False
    assert launcher.run(tiny_trial, cpu, lambda _message: None) == DONE


def test_silence_is_a_loss_and_a_last_word_is_heard(monkeypatch):
    monkeypatch.setattr(torchrun, "BEAT_S", 0.02)
    monkeypatch.setattr(torchrun, "SILENCE_S", 0.3)
    store = HashStore()
    other, own = Channel(store, 1), Channel(store, 0)
    for _ in range(30):
        assert own.lost(1) == ""
        time.sleep(0.02)
    other._closed.set()
    end = time.monotonic() + 10
    while not own.lost(1):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert own.lost(1).startswith("no sign of life for")
    other.post("answer", "late")
    other.close("why")
    assert own.lost(1) == "why"
    assert own.wait("answer", 1) == "late"
    own.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(epochs=3), r"Rank 2 \(.*\) was started with other epochs\. Start the same command"),
        (Options(suites=("cnn",), gpus=("cpu",)), "with other gpus, suites"),
    ],
)
def test_a_rank_that_was_started_otherwise_is_refused_on_both_sides(ranks, options, text):
    with pytest.raises(UsageError, match=text):
        ranks.start({2: options})
    assert {type(error) for error in ranks.join().values()} == {UsageError}


@pytest.mark.parametrize("changed", ["build of torch", "version of ampmeter"])
def test_a_rank_with_other_software_is_refused(ranks, monkeypatch, changed):
    hello = torchrun.hello

    def other(job, options):
        own = hello(job, options)
        return own if job.rank != 3 else replace(own, options={**own.options, changed: "old"})

    monkeypatch.setattr(torchrun, "hello", other)
    with pytest.raises(UsageError, match=rf"Rank 3 \(.*\) was started with other {changed}"):
        ranks.start()


def test_nodes_of_different_sizes_are_refused(ranks):
    jobs = [replace(job, node=int(job.rank == 3)) for job in ranks.jobs]
    ranks.jobs[0] = jobs[0]
    with pytest.raises(UsageError, match="the same --nproc-per-node"):
        ranks.start(jobs=jobs)


def test_a_rank_that_does_not_come_is_missed(ranks, monkeypatch):
    monkeypatch.setattr(torchrun, "JOIN_S", 0.1)
    with pytest.raises(UsageError, match=r"Rank 3 did not come .*Start the same command on all nodes"):
        ranks.start(jobs=ranks.jobs[:3])


def test_suite_files_are_compared_by_content_and_paths_may_differ(tmp_path):
    for home in ("a", "b"):
        (tmp_path / home).mkdir()
        (tmp_path / home / "mine.py").write_text("same")
    job = Job(rank=0, world=2, node=0, local_rank=0, address="", port=0)
    own, other = (Options(suites=(str(tmp_path / home / "mine.py"),), data_dir=home) for home in ("a", "b"))
    assert torchrun.hello(job, own) == torchrun.hello(job, other)
    (tmp_path / "b" / "mine.py").write_text("other")
    assert torchrun.hello(job, own).options["suites"] != torchrun.hello(job, other).options["suites"]


def test_a_rank_has_its_own_files_and_images(joint, cpu, tmp_path):
    images, file = tmp_path / "images", tmp_path / "mine.py"
    images.mkdir()
    file.write_text("")
    options = Options(suites=(str(file),), data=f"folder:{images}", data_dir=str(tmp_path / "kept"))
    suite = SuiteRef(name="mine", file="/elsewhere/mine.py", digest="d")
    data = DataSource(kind="folder", path="/elsewhere/images", directory="/elsewhere")
    trial = replace(joint, cell=replace(joint.cell, suite=suite, data=data))
    own, suites, number = _translated(Order(method="run", arguments=(trial, (suite,), 3)), options).arguments
    assert own.cell.suite == replace(suite, file=str(file))
    assert (own.cell.data.path, own.cell.data.directory) == (str(images), str(tmp_path / "kept"))
    assert (suites, number) == ((replace(suite, file=str(file)),), 3)


@pytest.mark.parametrize(("begun", "status"), [(True, 0), (False, 2)])
def test_ranks_leave_when_the_run_has_ended(ranks, tiny_trial, cpu, begun, status):
    launcher = ranks.start()
    if begun:
        launcher.run(tiny_trial, cpu, lambda _message: None)
    launcher.close()
    assert ranks.join() == dict.fromkeys((1, 2, 3), status)


def test_a_rank_ends_its_process_when_rank_0_is_gone(ranks, joint, cpu):
    launcher = ranks.start()
    ranks.locals[2].hangs = True
    launcher._post(2, Order(method="run", arguments=(joint, cpu, None)))
    launcher._channel.close("it was stopped")
    assert {str(error) for error in ranks.join().values()} == {
        f"Rank {rank} ends: rank 0 was lost (it was stopped)." for rank in (1, 2, 3)
    }


def test_a_run_of_one_machine_refuses_placements_on_several():
    with pytest.raises(UsageError, match=r"--gpus 0\+1@2 is on 2 machines: .* torchrun --nnodes=2"):
        LocalLauncher().survey(("0", "0+1@2"))


def test_a_cluster_is_not_started_from_ranks(ranks):
    with pytest.raises(UsageError, match="leave out torchrun"):
        open_launcher(Options(on="ray"), ranks.jobs[0])
