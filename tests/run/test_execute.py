"""The orchestration, with a launcher that answers from a script instead of starting processes."""

import math
import re
from dataclasses import replace
from multiprocessing import forkserver
from typing import NamedTuple

import pytest

from bench.cli.display import Display
from bench.measure.sampler import Sampler
from bench.phases.fit import Fit
from bench.phases.ladder.plan import build_ablation
from bench.planning.batch_sizes import Largest, at_any_size
from bench.planning.plan import Plan
from bench.results.endings import Ending
from bench.results.records import Progress, TrialResult
from bench.results.store import Store, arm_name
from bench.run.execute import largest_batches, sampled_gpus
from bench.run.queue import run_plan
from bench.run.session import Session
from bench.spec.errors import UsageError
from bench.spec.protocol import Protocol
from tests.arms import arms
from tests.conftest import call
from tests.derived import with_details
from tests.report.builders import block, timed
from tests.rows import Row, rows, trial_rows

ARMS = ("fp32", "amp-bf16")
TOO_BIG = Ending(kind="oom", text="too big")
DIED = Ending(kind="died", text="why")
LOST = Ending(kind="lost", text="killed")
DISTURBED = 1.13
"""The speedup of a process next to which another program ran."""


class ScriptedLauncher:
    """Answers a trial by the first rule whose text is in its id; otherwise every arm is ok.

    A rule that loses a process is for one process. Its clock stands still but for what trials take.
    """

    overlapping = False

    def __init__(self, rules, *, speedups=(), against_itself=(), largest=math.inf, durations=None):
        self.rules = {**rules}
        self.speedups = speedups
        """Of the second arm, in each process; none sends no speeds."""
        self.against_itself = against_itself
        """The speedups of fp32 over itself, in each process of the floor phase."""
        self.largest = largest
        """The largest batch that fits."""
        self.durations = durations or {}
        """The seconds of a trial, by its phase."""
        self.now_s = 0.0
        self.ran = []
        self.sizes = []

    def monotonic(self):
        return self.now_s

    def run(self, trial, device, on_message):
        self.ran.append(short(trial.id))
        self.sizes.append(trial.cell.batch_size)
        for _half in (1, 2):
            self.now_s += self.durations.get(trial.phase, 0.0) / 2
            on_message(Progress(text="half"))
        if trial.phase == "speed" and not self.speedups:
            on_message(block(trial.id))
        if trial.cell.batch_size > self.largest:
            return TOO_BIG
        for text, answer in self.rules.items():
            if text in trial.id:
                if answer is KeyboardInterrupt:
                    raise KeyboardInterrupt
                return self.rules.pop(text) if answer is LOST else answer
        return self.measure(trial, on_message)

    def measure(self, trial, on_message):
        results = []
        for name in trial.arm_names:
            row = self.row(trial.phase, name, trial.replicate)
            results.append(TrialResult(arm=name, status="ok", row=row))
        sent, blocks = with_details(trial, results)
        for message in (*blocks, *sent):
            on_message(message)
        return Ending(kind="done")

    def row(self, phase, name, replicate):
        if phase == "fit":
            return Fit(fit_peak_bytes=1)
        if phase == "floor":
            return self.speed(self.against_itself[replicate])
        if phase == "speed" and self.speedups:
            ratio = self.speedups[replicate]
            load_pct = 80.0 if ratio == DISTURBED else 0.0
            return self.speed(ratio if name == "amp-bf16" else None, foreign_load_pct=load_pct)
        return None

    def speed(self, ratio, **more):
        return timed(2.0 / (ratio or 1.0), 4, speedup=ratio, within=0.01, **more)


class Outcome(NamedTuple):
    """What became of a plan."""

    ran: list[str]
    """The trials that were started, without their cell."""
    sizes: list[int]
    """The batch sizes of these."""
    rows: list[Row]
    """All rows of the folder."""
    fine: bool
    undecided: list[str]
    largest: Largest

    def arms(self, phase, status="ok"):
        """Return the arms that ended so in a phase."""
        names = []
        for row in self.rows:
            if row["phase"] == phase and row["status"] == status:
                names.append(arm_name(row))
        return names

    def lost(self):
        """Return the status and the detail of each trial that was not ok."""
        reasons = {}
        for row in self.rows:
            if row["status"] != "ok":
                reasons[short(row["trial"])] = row["status"], row["detail"]
        return reasons


def short(trial):
    return re.sub(r"^tiny-cpu-b\d+-", "", trial)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def run(folder, cpu, monkeypatch):
    """Return a function that runs trials in a folder, or goes on with them there."""

    def run(trials, rules=(), *, device=cpu, deadline_s=math.inf, **scripted):
        launcher = ScriptedLauncher(dict(rules), **scripted)
        for module in ("queue", "session"):
            monkeypatch.setattr(f"bench.run.{module}.time", launcher)
        store = Store(folder)
        store.write_run({})
        plan = Plan(trials=tuple(trials))
        devices = {"cpu": device}
        sampler = Sampler(())
        session = Session(plan, store, devices, launcher, sampler, Display(), deadline_s=deadline_s)
        fine = run_plan(session)
        return Outcome(
            ran=launcher.ran,
            sizes=launcher.sizes,
            rows=trial_rows(folder),
            fine=fine,
            undecided=[*session.undecided],
            largest=largest_batches(plan, folder),
        )

    return run


@pytest.fixture
def speed(tiny_trial):
    """Return a function that makes a trial of the speed of some arms for each process."""

    def speed(*names, **protocol):
        asked = Protocol(time_budget_s=3.0, **protocol)
        first = replace(tiny_trial, phase="speed", arms=arms(*(names or ARMS)), protocol=asked)
        return in_processes(first)

    return speed


def in_processes(first):
    """Return a trial for each process of a protocol."""
    return [replace(first, replicate=number) for number in range(first.protocol.replicates)]


@pytest.fixture
def memory(tiny_trial):
    return [replace(tiny_trial, arms=arms(name)) for name in ARMS]


@pytest.fixture
def trials(memory, speed):
    """Trials of two arms: of their memory, of the speed in two processes, and of training."""
    train = [replace(trial, phase="train") for trial in memory]
    return [*memory, *speed(replicates=2), *train]


def test_what_cannot_fit_is_out_of_memory_and_never_started(run, trials):
    unfit = []
    for trial in trials:
        unfit.append(replace(trial, unfit="it is too large"))
    done = run(unfit)
    assert done.ran == []
    assert not done.fine
    assert {row["status"] for row in done.rows} == {"oom"}
    assert done.lost()["memory-fp32-r0"] == ("oom", "it is too large")


def test_a_precision_that_does_not_fit_is_a_row_and_is_left_out_of_what_follows(run, trials):
    done = run(trials, {"memory-fp32": TOO_BIG})
    assert done.lost() == {"memory-fp32-r0": ("oom", "too big")}
    assert done.ran == [
        "memory-fp32-r0",
        "memory-amp-bf16-r0",
        "speed-amp-bf16-r0",
        "speed-amp-bf16-r1",
        "train-amp-bf16-s0",
    ]
    assert done.fine  # not fitting is an outcome, not a failure
    assert run(trials).ran == []  # and is remembered when resuming


def test_arms_that_do_not_fit_together_are_measured_apart_also_after_an_interruption(run, trials):
    together = {"-speed-r": TOO_BIG}
    with pytest.raises(KeyboardInterrupt):
        run(trials, {**together, "speed-amp-bf16-r0": KeyboardInterrupt})
    done = run(trials, together)
    assert done.ran == [
        "speed-amp-bf16-r0",
        "speed-r1",
        "speed-fp32-r1",
        "speed-amp-bf16-r1",
        "train-fp32-s0",
        "train-amp-bf16-s0",
    ]
    assert done.lost()["speed-r0"][0] == "oom"
    assert done.arms("speed") == [*ARMS, *ARMS]


GIVEN_UP = "not tried again: in tiny-cpu-b4-speed-amp-bf16-r0, why"
NOT_AGAIN = {"speed-amp-bf16-r1": GIVEN_UP, "train-amp-bf16-s0": GIVEN_UP}


@pytest.mark.parametrize(
    ("kind", "status", "second_process", "later"),
    [
        ("timeout", "timeout", ["speed-fp32-r1"], NOT_AGAIN),
        ("died", "failed", ["speed-fp32-r1"], NOT_AGAIN),
        (
            "error",
            "failed",
            ["speed-r1", "speed-fp32-r1", "speed-amp-bf16-r1"],
            {"speed-amp-bf16-r1": "why"},
        ),
    ],
)
def test_an_arm_that_fails_beside_others_is_tried_alone_and_not_again_if_it_hung_or_crashed(
    *, run, trials, kind, status, second_process, later
):
    why = Ending(kind=kind, text="why")
    done = run(trials, {"speed-r": why, "speed-amp-bf16": why})
    tried = [name for name in done.ran if "speed" in name]
    first_process = ["speed-r0", "speed-fp32-r0", "speed-amp-bf16-r0"]  # whose fault it is
    assert tried == first_process + second_process
    reasons = {"speed-amp-bf16-r0": (status, "why")}
    for name, reason in later.items():
        reasons[name] = (status, reason)
    assert done.lost() == reasons
    assert done.arms("speed") == ["fp32", "fp32"]
    assert done.rows[2]["detail"] == "measured alone: together, why"
    assert not done.fine


def test_a_process_lost_with_its_fork_server_is_started_once_more(run, trials, folder):
    done = run(trials, {"speed-r0": LOST})
    assert done.fine
    assert done.ran.count("speed-r0") == 2
    # One in each process: not those of the lost one.
    assert len(rows(folder, "blocks.csv")) == 2


def test_a_failed_process_has_its_reason_in_short_in_its_row_and_all_that_it_printed_in_a_file(
    run, memory, folder
):
    printed = "Traceback\n" + 10_000 * "x" + "\udcff"
    text = "ValueError: bad pixels in \udcff.jpg " + 200_000 * "0" + " is no image"
    done = run(memory, {"memory-fp32": Ending(kind="died", text=text, log=printed)})
    _, detail = done.lost()["memory-fp32-r0"]
    pattern = r"ValueError: bad pixels in \\udcff\.jpg 0+ … \(.* left out\) … 0+ is no image"
    pattern += "; log in the run's folder: (logs/.*)"
    assert len(detail) < 5000
    log = folder / re.fullmatch(pattern, detail)[1]
    assert log.read_text().startswith("Traceback\nxxx")


def test_a_failed_process_whose_output_cannot_be_kept_ends_the_run_with_a_sentence(
    run, memory, folder
):
    """On a full disk, where the process failed because of it."""
    folder.mkdir()
    (folder / "logs").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        run(memory, {"memory-fp32": replace(DIED, log="Traceback")})


@pytest.fixture
def new_fork_server(monkeypatch):
    """Let a launcher start a fork server of its own, which ends with the test."""
    server = forkserver.ForkServer()
    for name in ("ensure_running", "connect_to_new_process", "set_forkserver_preload"):
        monkeypatch.setattr(forkserver, name, getattr(server, name))
    monkeypatch.setattr(forkserver, "_forkserver", server)
    yield
    server._stop()


BREAK_TORCH = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, {broken!r}) if name == "torch" else None

sys.meta_path.insert(0, Finder)
"""
"""A finder that is asked before any folder of sys.path: a fork server takes its parent's since
Python 3.13."""


UNLOADABLE = """
try:
    raise OSError("libcudart.so.13: cannot open shared object file")
except OSError as error:
    raise ImportError("The library of C functions could not be loaded.") from error
"""


def test_a_run_without_torch_ends_with_the_cause_and_an_exit_code(
    tmp_path, monkeypatch, new_fork_server
):
    broken = tmp_path / "broken.py"
    broken.write_text(UNLOADABLE)
    # Processes that are started from now on run it.
    (tmp_path / "sitecustomize.py").write_text(BREAK_TORCH.format(broken=str(broken)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = "--suite mlp --data synthetic --gpus cpu --phases speed,train --out run"
    done = call(*words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert "(because of OSError: libcudart.so.13: cannot" in done.stderr


def test_resuming_runs_only_what_is_missing_or_failed(run, trials):
    failing = {"speed-r1": DIED, "speed-amp-bf16-r1": DIED}
    with pytest.raises(KeyboardInterrupt):
        run(trials, {**failing, "train-fp32": KeyboardInterrupt})
    done = run(trials)
    assert done.ran == ["speed-r1", "train-fp32-s0", "train-amp-bf16-s0"]
    assert done.fine
    assert run(trials).ran == []


@pytest.mark.parametrize(
    ("name", "techniques", "reason"),
    [
        ("fp16-master:scale=8", (), "no float16"),
        ("amp-bf16", ("channels-last", "cuda-graphs"), "cuda-graphs needs a CUDA device"),
    ],
)
def test_what_the_device_does_not_support_is_a_row_with_the_reason_and_no_process(
    run, tiny_trial, cpu, *, name, techniques, reason
):
    device = replace(cpu, unsupported={"fp16-master": "no float16"})
    cell = replace(tiny_trial.cell, techniques=techniques)
    memory = replace(tiny_trial, cell=cell, arms=arms(name))
    unable = [memory, replace(memory, phase="speed")]
    done = run(unable, device=device)
    # Later phases leave it out.
    assert done.lost() == {short(memory.id): ("unsupported", reason)}
    assert done.ran == run(unable, device=device).ran == []


def test_a_search_is_one_row_and_is_read_back_when_resuming(run, tiny_trial):
    trial = replace(tiny_trial, phase="fit")
    for is_first in (True, False):
        done = run([trial], largest=20)
        assert done.fine
        assert done.largest == {(at_any_size(trial.cell), "fp32"): 20}
        assert bool(done.ran) == is_first
    (row,) = done.rows
    assert row["phase"] == "fit"
    assert row["status"] == "ok"
    assert row["batch_size"] == "20"
    assert row["fit_bound"] == "memory"
    assert "too big" in row["detail"]


def test_batches_are_searched_at_sizes_that_all_that_is_compared_can_be_trained_at(
    run, tiny_trial, cpu
):
    cell = replace(tiny_trial.cell, batch_size=20)
    first = replace(tiny_trial, phase="fit", cell=cell)
    searches = []
    for name in ("fp32", "fp8-rowwise", "bf16"):
        searches.append(replace(first, arms=arms(name)))
    device = replace(cpu, unsupported={"bf16": "no bfloat16"})
    done = run(searches, device=device, largest=100)
    assert [row["batch_size"] for row in done.rows] == ["96", "96", "20"]
    assert done.sizes == 2 * [16, 32, 64, 128, 96, 112]


def test_ablation_steps_after_a_refused_one_add_to_the_step_before_it(run, tiny_trial):
    steps, _ = build_ablation("amp-fp16", "cpu", ("channels-last", "compile"))
    together = replace(tiny_trial, phase="speed", ablation=True, arms=tuple(steps))
    ablation = []
    for step in steps:
        ablation.append(replace(together, phase="memory", arms=(step,)))
    ablation.append(together)
    refused = {"channels-last": Ending(kind="unsupported", text="no images")}
    done = run(ablation, refused)
    assert done.arms("memory", "unsupported") == ["amp-fp16+set-to-none+prefetcher+channels-last"]
    rebased = [
        "fp32",
        "amp-fp16",
        "amp-fp16+set-to-none",
        "amp-fp16+set-to-none+prefetcher",
        "amp-fp16+set-to-none+prefetcher+compile",
    ]
    assert done.arms("memory") == rebased
    assert done.arms("speed") == rebased
    assert done.fine
    assert run(ablation, refused).ran == []  # resumed, all is done


def test_telemetry_is_read_of_each_gpu_once(machine, cpu):
    over_nodes = replace(cpu, placement="0+1@2", kind="cuda")
    alone = replace(over_nodes, placement="0", uuid="GPU-a")
    pair = replace(over_nodes, placement="1+0", uuids=("GPU-b", "GPU-a"))
    devices = (alone, pair, over_nodes, cpu)
    gpus = sampled_gpus(replace(machine, devices=devices))
    assert sorted(gpus) == [
        ("0", "GPU-a"),
        ("1", "GPU-b"),
    ]


UNCLEAR = (0.98, 1.05, 0.97, 1.04, 1.00, 0.95)


@pytest.mark.parametrize(
    ("speedups", "processes"),
    [
        ((1.50, 1.51, 1.49), 3),
        ((1.50, 1.51, DISTURBED, 1.49), 4),  # which the fourth replaces
        (UNCLEAR, 6),  # nothing is decided, and six are the most
    ],
)
def test_a_cell_is_measured_by_as_many_processes_as_its_verdict_needs(
    run, speed, capsys, speedups, processes
):
    trials = speed(most_replicates=6)
    done = run(trials, speedups=speedups)
    assert done.fine
    assert done.ran == [f"speed-r{number}" for number in range(processes)]
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"[{processes}/{processes}]")
    assert run(trials, speedups=speedups).ran == []  # nothing is left to measure


def test_the_noise_that_a_gain_must_exceed_is_that_of_all_processes_that_timed_fp32_against_itself(
    run, speed
):
    first, *others = speed(most_replicates=9)
    protocol = replace(first.protocol, replicates=9)
    floor = replace(first, phase="floor", arms=arms("fp32"), protocol=protocol)
    done = run(
        [*in_processes(floor), first, *others],
        speedups=[1.05] * 9,
        against_itself=[0.97, 1.03, *[1.0] * 7],  # noise: 11 % in the first three, 1 % in all
    )
    assert len(done.ran) == 9 + 3


def test_a_precision_whose_second_reading_of_memory_crashes_is_timed(run, memory, speed):
    _, first = memory
    second = replace(first, replicate=1)
    trials = [first, second, *speed()]
    done = run(trials, {"memory-amp-bf16-r1": DIED})
    assert done.arms("memory") == ["amp-bf16"]
    assert done.arms("speed") == [*ARMS * 3]
    assert [*done.lost()] == ["memory-amp-bf16-r1"]


THREE = ["speed-r0", "speed-r1", "speed-r2"]
FOURTH = "speed-r3"
TRAIN = "train-fp32-s0"
MEMORY = "memory-fp32-r0"


@pytest.mark.parametrize(
    ("deadline_s", "ran", "undecided"),
    [
        (100.0, [*THREE, TRAIN, MEMORY, FOURTH], []),
        (61.0, [*THREE, TRAIN, MEMORY], ["further processes for the speed"]),
        (45.0, [*THREE, MEMORY, FOURTH], ["train"]),
        (12.0, ["speed-r0", MEMORY], ["speed", "train"]),
    ],
)
def test_only_what_should_end_in_time_is_begun_and_the_rest_is_undecided(
    run, speed, memory, *, deadline_s, ran, undecided
):
    first, _ = memory
    train = replace(first, phase="train")
    durations = {"speed": 10.0, "train": 20.0, "memory": 2.0}
    trials = []
    for trial in (*speed(most_replicates=4), train, first):
        trials.append(replace(trial, estimate_s=durations[trial.phase]))
    done = run(trials, deadline_s=deadline_s, durations=durations, speedups=UNCLEAR)
    assert done.ran == ran
    assert done.undecided == [f"{phase} of tiny on cpu" for phase in undecided]


def test_a_trial_that_is_slower_than_expected_is_ended_in_time_and_measured_when_the_run_goes_on(
    run, memory
):
    first, second = memory
    trials = [replace(first, estimate_s=1.0), second]
    done = run(trials, deadline_s=10.0, durations={"memory": 8.0})
    assert done.fine  # what was measured is fine
    assert done.arms("memory") == ["fp32"]
    assert done.undecided == ["memory of tiny on cpu"]
    again = run(trials)
    assert len(again.ran) == 1
    assert again.arms("memory") == [*ARMS]
    assert again.fine


def test_an_arm_that_crashes_late_does_not_end_the_processes_of_the_others(run, speed):
    crash = {"speed-r2": DIED, "speed-fp16-master-r2": DIED}
    trials = speed(*ARMS, "fp16-master", most_replicates=6)
    done = run(trials, crash, speedups=UNCLEAR)
    assert done.ran[-1] == "speed-r5"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (1, ["speed-r0", "speed-r1"]),
        (2, ["speed-r1"]),
        (3, ["speed-r1"]),
    ],
    ids=["the second row of r0", "r1", "the second row of r1"],
)
def test_a_run_that_was_cut_off_anywhere_goes_on_with_exactly_what_lacks_a_row(
    run, speed, folder, line, left
):
    trials = speed(replicates=2)
    run(trials)
    path = folder / "speed.csv"
    lines = path.read_text().splitlines(keepends=True)
    torn = lines[line + 1][:9]
    path.write_text("".join(lines[: line + 1]) + torn)
    done = run(trials)
    assert done.ran == left
    assert done.arms("speed") == [*ARMS, *ARMS]
    assert len(done.rows) == 4
    assert len(rows(folder, "blocks.csv")) == 2
    assert done.fine
    assert run(trials).ran == []


def test_arms_that_were_measured_beside_one_that_failed_keep_their_rows_if_it_fails_again(
    run, speed, cpu
):
    trials = speed(*ARMS, "tf32", replicates=2, most_replicates=2)
    device = replace(cpu, unsupported={})

    def second_process(crash):
        done = run(trials, crash, device=device)
        measured = []
        for row in done.rows:
            if row["status"] == "ok" and row["trial"].endswith("speed-r1"):
                measured.append(row)
        return done.ran, measured

    _, first = second_process({"speed-r0": DIED, "speed-tf32-r0": DIED})
    # Without the third, which had crashed.
    assert [row["precision"] for row in first] == [*ARMS]
    ran, again = second_process({"speed-r1": DIED, "speed-tf32-r1": DIED})
    assert again == first
    assert ran == ["speed-r0", "speed-r1", "speed-tf32-r1"]
