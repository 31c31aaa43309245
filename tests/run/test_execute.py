"""The orchestration, with a launcher that answers from a script instead of starting processes."""

import math
import re
from dataclasses import replace
from multiprocessing import forkserver
from typing import NamedTuple

import pytest

import run_bench
from bench.cli.display import Display
from bench.measure.sampler import Sampler
from bench.phases.fit import Fit
from bench.phases.ladder.plan import build_ablation
from bench.phases.memory import MemoryPeak
from bench.planning.batch_sizes import Largest, at_any_size
from bench.planning.plan import Plan
from bench.results.endings import Ending
from bench.results.records import Device, Progress, TrialResult
from bench.results.store import Store, arm_name
from bench.run.execute import largest_batches, sampled_gpus
from bench.run.queue import run_plan
from bench.run.session import Session
from bench.spec.errors import UsageError
from bench.spec.protocol import Protocol
from tests.arms import arms
from tests.derived import with_details
from tests.report.builders import block, timed
from tests.rows import Row, rows, trial_rows

ARMS = ("fp32", "amp-bf16")
TOO_BIG = Ending(kind="oom", text="too big")
DIED = Ending(kind="died", text="why")
STEPS = tuple(
    step.name
    for step in build_ablation("amp-fp16", "cpu", ("channels-last", "compile", "checkpointing"))[0]
)
TOP = "amp-fp16+set-to-none+prefetcher"
DISTURBED = 1.13
"""The speedup of a process next to which another program ran."""


class ScriptedLauncher:
    """Answers a trial by the first rule whose text is in its id; otherwise every arm is ok.

    Several answers of a rule are for one process after the other. Its clock stands still but for
    what trials take.
    """

    overlapping = False

    def __init__(self, rules, *, speedups=(), against_itself=(), largest=math.inf, durations=None):
        self.rules = rules
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

    def monotonic(self):
        return self.now_s

    def run(self, trial, device, on_message):
        self.ran.append(trial)
        for _half in (1, 2):
            self.now_s += self.durations.get(trial.phase, 0.0) / 2
            on_message(Progress(text="half"))
        if trial.phase == "speed" and not self.speedups:
            on_message(block(trial.id))
        answer = self.answer(trial)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        if isinstance(answer, KeyboardInterrupt):
            raise answer
        if trial.cell.batch_size > self.largest:
            answer = TOO_BIG
        return answer or self.measure(trial, on_message)

    def answer(self, trial):
        for text, answer in self.rules.items():
            if text in trial.id:
                return answer
        return None

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
        if phase == "memory":
            return MemoryPeak(model_bytes=1)
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
def run(tmp_path, cpu, monkeypatch):
    """Return a function that runs a plan in a folder, or goes on with it there."""

    def run(plan, rules=None, *, device=cpu, deadline_s=math.inf, **scripted):
        launcher = ScriptedLauncher(rules or {}, **scripted)
        for module in ("queue", "session"):
            monkeypatch.setattr(f"bench.run.{module}.time", launcher)
        store = Store(tmp_path / "run")
        store.write_run({})
        sampler, devices = Sampler(()), {"cpu": device}
        session = Session(plan, store, devices, launcher, sampler, Display(), deadline_s=deadline_s)
        fine = run_plan(session)
        largest = largest_batches(plan, tmp_path / "run")
        return Outcome(
            ran=[short(trial.id) for trial in launcher.ran],
            sizes=[trial.cell.batch_size for trial in launcher.ran],
            rows=trial_rows(tmp_path / "run"),
            fine=fine,
            undecided=[*session.undecided],
            largest=largest,
        )

    return run


def plan_of(*trials):
    return Plan(trials=trials)


@pytest.fixture
def plan(tiny_trial):
    memory = [replace(tiny_trial, arms=arms(name)) for name in ARMS]
    train = [replace(trial, phase="train") for trial in memory]
    first = replace(tiny_trial, phase="speed", arms=arms(*ARMS))
    return plan_of(*memory, first, replace(first, replicate=1), *train)


@pytest.fixture
def speed_plan(tiny_trial):
    def speed_plan(*names, **protocol):
        asked = Protocol(time_budget_s=3.0, **protocol)
        speed = replace(tiny_trial, phase="speed", arms=arms(*(names or ARMS)), protocol=asked)
        return plan_of(*(replace(speed, replicate=number) for number in range(asked.replicates)))

    return speed_plan


def test_what_cannot_fit_is_out_of_memory_and_never_started(run, plan):
    done = run(plan_of(*(replace(trial, unfit="it is too large") for trial in plan.trials)))
    assert (done.ran, done.fine) == ([], False)
    assert {row["status"] for row in done.rows} == {"oom"}
    assert done.lost()["memory-fp32-r0"] == ("oom", "it is too large")


def test_a_precision_that_does_not_fit_is_a_row_and_is_left_out_of_what_follows(run, plan):
    done = run(plan, {"memory-fp32": TOO_BIG})
    assert done.lost() == {"memory-fp32-r0": ("oom", "too big")}
    assert [name for name in done.ran if "fp32" in name] == ["memory-fp32-r0"]
    assert done.arms("speed") + done.arms("train") == ["amp-bf16"] * 3
    assert done.fine  # not fitting is an outcome, not a failure
    assert run(plan).ran == []  # and is remembered when resuming


def test_arms_that_do_not_fit_together_are_measured_apart_also_after_an_interruption(run, plan):
    together = {"-speed-r": TOO_BIG}
    with pytest.raises(KeyboardInterrupt):
        run(plan, {**together, "speed-amp-bf16-r0": KeyboardInterrupt()})
    done = run(plan, together)
    assert done.ran[:3] == ["speed-amp-bf16-r0", "speed-r1", "speed-fp32-r1"]
    assert done.lost()["speed-r0"][0] == "oom"
    assert done.arms("speed") == [*ARMS, *ARMS]


@pytest.mark.parametrize(
    ("kind", "status"), [("timeout", "timeout"), ("died", "failed"), ("error", "failed")]
)
def test_an_arm_that_fails_beside_others_is_tried_alone_and_not_again_if_it_hung_or_crashed(
    run, plan, kind, status
):
    why = Ending(kind=kind, text="why")
    done = run(plan, {"speed-r": why, "speed-amp-bf16": why})
    tried = [name for name in done.ran if "speed" in name]
    assert tried[:3] == ["speed-r0", "speed-fp32-r0", "speed-amp-bf16-r0"]  # whose fault it is
    first, *others = done.lost().items()
    assert first == ("speed-amp-bf16-r0", (status, "why"))
    if kind == "error":
        assert tried[3:] == ["speed-r1", "speed-fp32-r1", "speed-amp-bf16-r1"]
        assert others == [("speed-amp-bf16-r1", (status, "why"))]
    else:
        reason = "not tried again: in tiny-cpu-b4-speed-amp-bf16-r0, why"
        assert tried[3:] == ["speed-fp32-r1"]
        assert dict(others) == dict.fromkeys(
            ("speed-amp-bf16-r1", "train-amp-bf16-s0"), (status, reason)
        )
    assert done.arms("speed") == ["fp32", "fp32"]
    assert done.rows[2]["detail"] == "measured alone: together, why"
    assert not done.fine


def test_a_process_lost_with_its_fork_server_is_started_once_more(run, plan, tmp_path):
    done = run(plan, {"speed-r0": [Ending(kind="lost", text="killed")]})
    assert done.fine
    assert done.ran.count("speed-r0") == 2
    # One in each process: not those of the lost one.
    assert len(rows(tmp_path / "run", "blocks.csv")) == 2


def test_a_failed_process_has_its_reason_in_short_in_its_row_and_all_that_it_printed_in_a_file(
    run, plan, tmp_path
):
    printed = "Traceback\n" + 10_000 * "x" + "\udcff"
    text = "ValueError: bad pixels in \udcff.jpg " + 200_000 * "0" + " is no image"
    done = run(plan, {"memory-fp32": Ending(kind="died", text=text, log=printed)})
    _, detail = done.lost()["memory-fp32-r0"]
    pattern = r"ValueError: bad pixels in \\udcff\.jpg 0+ … \(.* left out\) … 0+ is no image"
    pattern += "; log in the run's folder: (logs/.*)"
    assert len(detail) < 5000
    log = tmp_path / "run" / re.fullmatch(pattern, detail)[1]
    assert log.read_text().startswith("Traceback\nxxx")


def test_a_failed_process_whose_output_cannot_be_kept_ends_the_run_with_a_sentence(
    run, plan, tmp_path
):
    """On a full disk, where the process failed because of it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        run(plan, {"memory-fp32": replace(DIED, log="Traceback")})


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


def _break_torch(folder, source, monkeypatch):
    """Let processes that are started from now on import another torch: each runs sitecustomize.py
    at its start.
    """
    folder.mkdir()
    (folder / "broken.py").write_text(source)
    (folder / "sitecustomize.py").write_text(BREAK_TORCH.format(broken=str(folder / "broken.py")))
    monkeypatch.setenv("PYTHONPATH", str(folder))


UNLOADABLE = """
try:
    raise OSError("libcudart.so.13: cannot open shared object file")
except OSError as error:
    raise ImportError("The library of C functions could not be loaded.") from error
"""


def test_a_run_without_torch_ends_with_the_cause_and_an_exit_code(
    tmp_path, monkeypatch, capsys, new_fork_server
):
    _break_torch(tmp_path / "broken", UNLOADABLE, monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = "--suite mlp --data synthetic --gpus cpu --phases speed,train --out run"
    assert run_bench.main(words.split()) == 2
    assert "(because of OSError: libcudart.so.13: cannot" in capsys.readouterr().err


def test_resuming_runs_only_what_is_missing_or_failed(run, plan):
    failing = dict.fromkeys(("speed-r1", "speed-amp-bf16-r1"), DIED)
    with pytest.raises(KeyboardInterrupt):
        run(plan, {**failing, "train-fp32": KeyboardInterrupt()})
    done = run(plan)
    assert done.ran == ["speed-r1", "train-fp32-s0", "train-amp-bf16-s0"]
    assert done.fine
    assert run(plan).ran == []


@pytest.mark.parametrize(
    ("name", "techniques", "reason"),
    [
        ("fp16-master:scale=8", (), "no float16"),
        ("amp-bf16", ("channels-last", "cuda-graphs"), "cuda-graphs needs a CUDA device"),
    ],
)
def test_what_the_device_does_not_support_is_a_row_with_the_reason_and_no_process(
    run, plan, cpu, *, name, techniques, reason
):
    device = replace(cpu, unsupported={"fp16-master": "no float16"})
    cell = replace(plan.trials[0].cell, techniques=techniques)
    memory, speed = (replace(trial, cell=cell, arms=arms(name)) for trial in plan.trials[1:3])
    unable = plan_of(memory, speed)
    done = run(unable, device=device)
    # Later phases leave it out.
    assert done.lost() == {short(unable.trials[0].id): ("unsupported", reason)}
    assert done.ran == run(unable, device=device).ran == []


def test_a_search_is_one_row_and_is_read_back_when_resuming(run, tiny_trial):
    trial = replace(tiny_trial, phase="fit")
    for is_first in (True, False):
        done = run(plan_of(trial), largest=20)
        assert done.fine
        assert done.largest == {(at_any_size(trial.cell), "fp32"): 20}
        assert bool(done.ran) == is_first
    (row,) = done.rows
    assert (row["phase"], row["status"]) == ("fit", "ok")
    assert (row["batch_size"], row["fit_bound"]) == ("20", "memory")
    assert "too big" in row["detail"]


def test_batches_are_searched_at_sizes_that_all_that_is_compared_can_be_trained_at(
    run, tiny_trial, cpu
):
    cell = replace(tiny_trial.cell, batch_size=20)
    fits = []
    for name in ("fp32", "fp8-rowwise", "bf16"):
        fits.append(replace(tiny_trial, phase="fit", cell=cell, arms=arms(name)))
    done = run(
        plan_of(*fits), device=replace(cpu, unsupported={"bf16": "no bfloat16"}), largest=100
    )
    assert [row["batch_size"] for row in done.rows] == ["96", "96", "20"]
    assert done.sizes == 2 * [16, 32, 64, 128, 96, 112]


def test_ablation_steps_after_a_refused_one_add_to_the_step_before_it(run, tiny_trial):
    memory = [replace(tiny_trial, phase="memory", ablation=True, arms=arms(name)) for name in STEPS]
    together = replace(tiny_trial, phase="speed", ablation=True, arms=arms(*STEPS))
    ablation = plan_of(*memory, together, replace(together, replicate=1))
    refused = {"channels-last": Ending(kind="unsupported", text="no images")}
    done = run(ablation, refused)
    assert done.arms("memory", "unsupported") == [f"{TOP}+channels-last"]
    rebased = [*STEPS[:4], f"{TOP}+compile", f"{TOP}+compile+checkpointing"]
    assert done.arms("memory") == rebased
    assert done.arms("speed") == rebased * 2
    assert done.fine
    assert run(ablation, refused).ran == []  # resumed, all is done


def test_telemetry_is_read_of_each_gpu_once(machine):
    pair = Device(
        placement="1+0",
        kind="cuda",
        name="2 × GPU",
        architecture="Hopper",
        uuids=("GPU-b", "GPU-a"),
    )
    alone = replace(pair, placement="0", uuid="GPU-a", uuids=())
    over_nodes = replace(pair, placement="0+1@2", uuids=())
    found = sampled_gpus(replace(machine, devices=(alone, pair, over_nodes, *machine.devices)))
    assert sorted(found) == [("0", "GPU-a"), ("1", "GPU-b")]


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
    run, speed_plan, capsys, speedups, processes
):
    plan = speed_plan(most_replicates=6)
    done = run(plan, speedups=speedups)
    assert done.fine
    assert done.ran == [f"speed-r{number}" for number in range(processes)]
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"[{processes}/{processes}]")
    assert run(plan, speedups=speedups).ran == []  # nothing is left to measure


def test_the_noise_that_a_gain_must_exceed_is_that_of_all_processes_that_timed_fp32_against_itself(
    run, speed_plan, tiny_trial
):
    speed = speed_plan(most_replicates=9)
    protocol = replace(speed.trials[0].protocol, replicates=9)
    floor = replace(tiny_trial, phase="floor", arms=arms("fp32"), protocol=protocol)
    floors = [replace(floor, replicate=number) for number in range(9)]
    noise = [0.97, 1.03, *[1.0] * 7]  # 11 % in the first three, 1 % in all
    plan = plan_of(*floors, *speed.trials)
    done = run(plan, speedups=[1.05] * 9, against_itself=noise)
    assert len(done.ran) == 9 + 3


def test_a_precision_whose_second_reading_of_memory_crashes_is_timed(run, speed_plan, tiny_trial):
    memory = replace(tiny_trial, phase="memory", arms=arms("amp-bf16"))
    done = run(
        plan_of(memory, replace(memory, replicate=1), *speed_plan().trials),
        {"memory-amp-bf16-r1": DIED},
    )
    assert done.arms("memory") == ["amp-bf16"]
    assert done.arms("speed") == [*ARMS * 3]
    assert [*done.lost()] == ["memory-amp-bf16-r1"]


SPEED = ["speed-r0", "speed-r1", "speed-r2", "speed-r3"]
OTHERS = ["train-fp32-s0", "memory-fp32-r0"]


@pytest.mark.parametrize(
    ("deadline_s", "ran", "undecided"),
    [
        (100.0, [*SPEED[:3], *OTHERS, SPEED[3]], []),
        (61.0, [*SPEED[:3], *OTHERS], ["further processes for the speed"]),  # a fourth is too long
        (45.0, [*SPEED[:3], OTHERS[1], SPEED[3]], ["train"]),
        (12.0, [SPEED[0], OTHERS[1]], ["speed", "train"]),
    ],
)
def test_only_what_should_end_in_time_is_begun_and_the_rest_is_undecided(
    run, speed_plan, tiny_trial, *, deadline_s, ran, undecided
):
    others = [replace(tiny_trial, phase=phase, arms=arms("fp32")) for phase in ("train", "memory")]
    durations = {"speed": 10.0, "train": 20.0, "memory": 2.0}
    trials = (*speed_plan(most_replicates=4).trials, *others)
    plan = plan_of(*(replace(trial, estimate_s=durations[trial.phase]) for trial in trials))
    done = run(plan, deadline_s=deadline_s, durations=durations, speedups=UNCLEAR)
    assert done.ran == ran
    assert done.undecided == [f"{phase} of tiny on cpu" for phase in undecided]


def test_a_trial_that_is_slower_than_expected_is_ended_in_time_and_measured_when_the_run_goes_on(
    run, plan
):
    timed = plan_of(replace(plan.trials[0], estimate_s=1.0), plan.trials[1])
    done = run(timed, deadline_s=10.0, durations={"memory": 8.0})
    assert done.fine  # what was measured is fine
    assert done.arms("memory") == ["fp32"]
    assert done.undecided == ["memory of tiny on cpu"]
    again = run(timed)
    assert len(again.ran) == 1
    assert again.arms("memory") == [*ARMS]
    assert again.fine


def test_an_arm_that_crashes_late_does_not_end_the_processes_of_the_others(run, speed_plan):
    crash = dict.fromkeys(("speed-r2", "speed-fp16-master-r2"), DIED)
    done = run(speed_plan(*ARMS, "fp16-master", most_replicates=6), crash, speedups=UNCLEAR)
    assert done.ran[-1] == "speed-r5"


@pytest.mark.parametrize(
    ("line", "left"),
    [(1, [0, 1]), (2, [1]), (3, [1])],
    ids=["the second row of r0", "r1", "the second row of r1"],
)
def test_a_run_that_was_cut_off_anywhere_goes_on_with_exactly_what_lacks_a_row(
    run, plan, tmp_path, line, left
):
    run(plan)
    path = tmp_path / "run" / "speed.csv"
    whole = path.read_text().splitlines(keepends=True)
    *before, torn = whole[: line + 2]
    path.write_text("".join(before) + torn[:9])
    done = run(plan)
    assert done.ran == [f"speed-r{number}" for number in left]
    assert done.arms("speed") == [*ARMS, *ARMS]
    assert path.read_text().count("\n") == len(whole)
    assert len(rows(tmp_path / "run", "blocks.csv")) == 2
    assert done.fine
    assert run(plan).ran == []


def test_arms_that_were_measured_beside_one_that_failed_keep_their_rows_if_it_fails_again(
    run, speed_plan, cpu
):
    def kept(done):
        measured = [row for row in done.rows if row["status"] == "ok"]
        return [row for row in measured if row["trial"].endswith("speed-r1")]

    plan = speed_plan(*ARMS, "tf32", replicates=2, most_replicates=2)
    device = replace(cpu, unsupported={})
    first = run(plan, dict.fromkeys(("speed-r0", "speed-tf32-r0"), DIED), device=device)
    again = run(plan, dict.fromkeys(("speed-r1", "speed-tf32-r1"), DIED), device=device)
    # Without the third, which had crashed.
    assert [row["precision"] for row in kept(first)] == [*ARMS]
    assert kept(again) == kept(first)
    assert again.ran == ["speed-r0", "speed-r1", "speed-tf32-r1"]
