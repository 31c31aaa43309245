"""The orchestration, with a launcher that answers from a script instead of starting processes."""

import json
import re
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path

import pytest

import run_bench
from bench.cli.display import Display
from bench.launch import Ending
from bench.launch.local import LocalLauncher
from bench.measure.sampler import Sampler
from bench.phases.fit import Fit
from bench.phases.ladder.plan import build_ablation
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.planning.batch_sizes import at_any_size
from bench.planning.plan import Plan
from bench.report.reading.completeness import missing
from bench.report.reading.load import load
from bench.results.records import Block, Device, Progress, TrialResult
from bench.results.run_json import FORMAT
from bench.results.run_json import planned as entry_of
from bench.results.store import Store, arm_name
from bench.run.execute import largest_batches, sampled_gpus
from bench.run.runner import Runner
from bench.spec.errors import UsageError
from bench.spec.protocol import Protocol
from tests.arms import arms
from tests.derived import with_details
from tests.rows import rows, trial_rows

ARMS = ("fp32", "amp-bf16")
TOO_BIG = Ending(kind="oom", text="too big")
NO_IMAGES = Ending(kind="unsupported", text="no images")
MORE = ("channels-last", "compile", "checkpointing")
STEPS = tuple(step.name for step in build_ablation("amp-fp16", "cpu", MORE)[0])
TOP = "amp-fp16+set-to-none+prefetcher"


DISTURBED = 1.13
"""The speedup of a process next to which another program ran."""


class ScriptedLauncher:
    """Answers a trial by the first rule whose text is in its id; otherwise every arm is ok."""

    overlapping = False

    def __init__(self, rules, speedups=(), against_itself=()):
        self.rules = rules
        self.speedups = speedups
        """Of the second arm, in each process; none sends no speeds."""
        self.against_itself = against_itself
        """The speedups of fp32 over itself, in each process of the floor phase."""
        self.ran = []

    def run(self, trial, device, on_message):
        self.ran.append(trial.id)
        for text, answer in self.rules.items():
            if text in trial.id:
                if isinstance(answer, Ending):
                    return answer
                raise answer
        results = []
        for name in trial.precisions:
            speed = self.speed(name, trial.replicate) if trial.phase == "speed" and self.speedups else None
            if trial.phase == "floor":
                speed = replace(self.speed("", 0), speedup=self.against_itself[trial.replicate])
            row = MemoryPeak(model_bytes=1) if trial.phase == "memory" else speed
            results.append(TrialResult(precision=name, status="ok", row=row))
        sent, blocks = with_details(trial, results)
        if trial.phase == "speed" and not blocks:
            on_message(Block(trial=trial.id, precision="fp32", round=0, position=0, steps=1, time_ms=1.0, start_s=0.0))
        for message in (*blocks, *sent):
            on_message(message)
        return Ending(kind="done")

    def speed(self, name, replicate):
        ratio = self.speedups[replicate]
        ends = {} if name == "fp32" else {"speedup": ratio, "speedup_low": 0.99 * ratio, "speedup_high": 1.01 * ratio}
        ends["foreign_load_pct"] = 80.0 if ratio == DISTURBED else 0.0
        cut = {"steady": True, "warmup_steps": 12, "switch_warmup_steps": 2, "block_steps": 7}
        return Speed(**cut, rounds=20, step_ms=2.0 if name == "fp32" else 2.0 / ratio, **ends)


def execution(store, device, launcher):
    store.write_run({})
    return Runner(store=store, devices={"cpu": device}, launcher=launcher, sampler=Sampler(()), display=Display())


def run_with(launcher, folder, plan, device):
    """Run a plan in a folder, and return whether all went well."""
    with Store(folder) as store:
        return execution(store, device, launcher).run(plan)


def execute(folder, plan, device, rules=None):
    """Run a plan; return the trials that were started, the rows that count, and whether all went well."""
    launcher = ScriptedLauncher(rules or {})
    fine = run_with(launcher, folder, plan, device)
    stored = [(row["trial"], arm_name(row), row["status"]) for row in trial_rows(folder)]
    return launcher.ran, stored, fine


def arms_of(stored, phase, status="ok"):
    return [name for trial, name, ending in stored if f"-{phase}-" in trial and ending == status]


def plan_of(*trials):
    return Plan(trials=trials, seconds=(None,) * len(trials))


@pytest.fixture
def plan(tiny_trial):
    memory = [replace(tiny_trial, arms=arms(name)) for name in ARMS]
    speed = [replace(tiny_trial, phase="speed", arms=arms(*ARMS), replicate=number) for number in (0, 1)]
    train = [replace(tiny_trial, phase="train", arms=arms(name)) for name in ARMS]
    return plan_of(*memory, *speed, *train)


@pytest.fixture
def ablation(tiny_trial):
    memory = [replace(tiny_trial, phase="memory", ablation=True, arms=arms(name)) for name in STEPS]
    together = replace(tiny_trial, phase="speed", ablation=True, arms=arms(*STEPS))
    return plan_of(*memory, *(replace(together, replicate=number) for number in (0, 1)))


def test_what_cannot_fit_is_out_of_memory_and_never_started(tmp_path, plan, cpu):
    unfit = plan_of(*(replace(trial, unfit="it is too large") for trial in plan.trials))
    ran, stored, fine = execute(tmp_path / "run", unfit, cpu)
    assert (ran, {status for _, _, status in stored}, fine) == ([], {"oom"}, False)
    assert {row["detail"] for row in trial_rows(tmp_path / "run")} >= {"it is too large"}


def test_a_precision_that_does_not_fit_is_a_row_and_is_left_out_of_what_follows(tmp_path, plan, cpu):
    ran, stored, fine = execute(tmp_path / "run", plan, cpu, {"memory-fp32": TOO_BIG})
    assert ("tiny-cpu-b4-memory-fp32-r0", "fp32", "oom") in stored
    assert [name for name in ran if "fp32" in name] == ["tiny-cpu-b4-memory-fp32-r0"]
    assert {precision for trial, precision, _ in stored if "memory" not in trial} == {"amp-bf16"}
    assert fine  # not fitting is an outcome, not a failure
    assert execute(tmp_path / "run", plan, cpu)[0] == []  # and is remembered when resuming


def test_arms_that_do_not_fit_together_are_measured_apart_also_after_an_interruption(tmp_path, plan, cpu):
    together = {"-speed-r": TOO_BIG}
    with pytest.raises(KeyboardInterrupt):
        execute(tmp_path / "run", plan, cpu, {**together, "speed-amp-bf16-r0": KeyboardInterrupt()})
    assert len(trial_rows(tmp_path / "run")) == 2 + 2 + 1
    ran, stored, _ = execute(tmp_path / "run", plan, cpu, together)
    assert ran[:3] == ["tiny-cpu-b4-speed-amp-bf16-r0", "tiny-cpu-b4-speed-r1", "tiny-cpu-b4-speed-fp32-r1"]
    assert ("tiny-cpu-b4-speed-r0", "fp32", "oom") in stored
    assert arms_of(stored, "speed") == [*ARMS, *ARMS]


@pytest.mark.parametrize(("kind", "status"), [("timeout", "timeout"), ("died", "failed"), ("error", "failed")])
def test_an_arm_that_fails_beside_others_is_a_row_and_the_others_are_measured_alone(tmp_path, plan, cpu, kind, status):
    why = Ending(kind=kind, text="why")
    _, stored, fine = execute(tmp_path / "run", plan, cpu, {"speed-r": why, "speed-amp-bf16": why})
    assert [row for row in stored if row[2] != "ok"] == [
        (f"tiny-cpu-b4-speed-amp-bf16-r{number}", "amp-bf16", status) for number in (0, 1)
    ] + ([] if kind == "error" else [("tiny-cpu-b4-train-amp-bf16-s0", "amp-bf16", status)])
    assert arms_of(stored, "speed") == ["fp32", "fp32"]
    assert not fine
    details = {row["precision"]: row["detail"] for row in rows(tmp_path / "run", "speed.csv")[:2]}
    assert details["fp32"] == "measured alone: together, why"
    assert "why" in details["amp-bf16"]


@pytest.mark.parametrize("kind", ["timeout", "died"])
def test_an_arm_that_hung_or_crashed_is_not_tried_again_in_its_cell(tmp_path, plan, cpu, kind):
    why = Ending(kind=kind, text="why")
    ran, _, _ = execute(tmp_path / "run", plan, cpu, {"speed-r0": why, "speed-amp-bf16-r0": why})
    alone = ["tiny-cpu-b4-speed-fp32-r0", "tiny-cpu-b4-speed-amp-bf16-r0"]
    assert [name for name in ran if "speed" in name] == [
        "tiny-cpu-b4-speed-r0",
        *alone,  # which shows whose fault it is
        "tiny-cpu-b4-speed-fp32-r1",
    ]
    assert "tiny-cpu-b4-train-amp-bf16-s0" not in ran
    details = {row["trial"]: row["detail"] for row in trial_rows(tmp_path / "run") if row["status"] != "ok"}
    assert len(details) == 3
    for trial in ("tiny-cpu-b4-speed-amp-bf16-r1", "tiny-cpu-b4-train-amp-bf16-s0"):
        assert details[trial].startswith("not tried again: in tiny-cpu-b4-speed-amp-bf16-r0, ")
        assert details[trial].endswith("why")


def test_a_process_lost_with_its_fork_server_is_started_once_more(tmp_path, plan, cpu):
    launcher = ScriptedLauncher({})
    lost = [Ending(kind="lost", text="killed")]
    run = launcher.run

    def losing(trial, device, on_message):
        ending = run(trial, device, on_message)
        return lost.pop() if lost and trial.phase == "speed" else ending

    launcher.run = losing
    assert run_with(launcher, tmp_path / "run", plan, cpu)
    assert launcher.ran.count("tiny-cpu-b4-speed-r0") == 2
    assert len(rows(tmp_path / "run", "blocks.csv")) == 2  # one in each process: not those of the lost one


def test_a_failed_process_has_its_reason_in_short_in_its_row_and_all_that_it_printed_in_a_file(tmp_path, plan, cpu):
    printed = "Traceback\n" + 10_000 * "x" + "\udcff"
    text = "ValueError: bad pixels in \udcff.jpg " + 200_000 * "0" + " is no image"
    execute(tmp_path / "run", plan, cpu, {"memory-fp32": Ending(kind="died", text=text, log=printed)})
    (detail,) = (row["detail"] for row in trial_rows(tmp_path / "run") if row["status"] == "failed")
    assert re.fullmatch(
        r"ValueError: bad pixels in \\udcff\.jpg 0+ … \(.* left out\) … 0+ is no image; log: (logs/.*)", detail
    )
    assert len(detail) < 5000
    (log,) = (tmp_path / "run" / "logs").iterdir()
    assert detail.endswith(f"logs/{log.name}")
    assert log.read_text().startswith("Traceback\nxxx")


def test_a_failed_process_whose_output_cannot_be_kept_ends_the_run_with_a_sentence(tmp_path, plan, cpu):
    """On a full disk, where the process failed because of it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        execute(tmp_path / "run", plan, cpu, {"memory-fp32": Ending(kind="died", text="no space", log="Traceback")})


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
"""A finder that is asked before any folder of sys.path: a fork server takes its parent's since Python 3.13."""


def _break_torch(folder, source, monkeypatch):
    """Let processes that are started from now on import another torch: each runs sitecustomize.py at its start."""
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


def test_a_run_without_torch_ends_with_the_cause_an_exit_code_and_no_advice(
    tmp_path, machine, monkeypatch, capsys, new_fork_server
):
    _break_torch(tmp_path / "broken", UNLOADABLE, monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = ["--suite", "mlp", "--data", "synthetic", "--gpus", "cpu", "--phases", "speed,train", "--out", "run"]
    assert run_bench.main(words) == 2
    assert "(because of OSError: libcudart.so.13: cannot" in capsys.readouterr().err
    monkeypatch.setattr(LocalLauncher, "survey", lambda _self, _gpus: machine)  # torch broke after it
    assert run_bench.main(words) == 1
    out = capsys.readouterr().out
    assert out.count("libcudart.so.13") == 1
    assert "--resume run tries it again" in out
    pages = [path.read_text() for path in Path("reports/run").glob("report.*")]
    assert len(pages) == 2
    assert not any("stay with" in text for text in (out, *pages))


def test_resuming_runs_only_what_is_missing_or_failed(tmp_path, plan, cpu):
    folder = tmp_path / "run"
    failing = dict.fromkeys(("speed-r1", "speed-amp-bf16-r1"), Ending(kind="died"))
    with pytest.raises(KeyboardInterrupt):
        execute(folder, plan, cpu, {**failing, "train-fp32": KeyboardInterrupt()})
    ran, _, fine = execute(folder, plan, cpu)
    assert ran == ["tiny-cpu-b4-speed-r1", "tiny-cpu-b4-train-fp32-s0", "tiny-cpu-b4-train-amp-bf16-s0"]
    assert fine
    assert execute(folder, plan, cpu)[0] == []


@pytest.mark.parametrize("first", [0, 2], ids=["with the memory phase", "without"])
def test_a_precision_that_the_device_does_not_support_is_a_row_with_the_reason_and_no_process(
    tmp_path, plan, cpu, first
):
    device = replace(cpu, unsupported={"fp16-master": "no float16"})
    names = ("fp16-master", "fp16-master:scale=8")
    unable = [replace(plan.trials[at], arms=arms(name)) for at in (0, 2, 4) if at >= first for name in names]
    both = plan_of(*unable, *plan.trials)
    ran, stored, fine = execute(tmp_path / "run", both, device)
    assert not [name for name in ran if "fp16-master" in name]
    refused = [row for row in trial_rows(tmp_path / "run") if row["status"] == "unsupported"]
    assert {(row["precision"], row["detail"]) for row in refused} == {(name, "no float16") for name in names}
    assert len(stored) == len(refused) + 8
    assert fine
    assert execute(tmp_path / "run", both, device)[0] == []  # nor when resuming


def test_a_technique_that_the_device_does_not_support_is_a_row_for_each_precision_and_no_process(tmp_path, plan, cpu):
    cell = replace(plan.trials[0].cell, techniques=("channels-last", "cuda-graphs"))
    graphed = [replace(trial, cell=cell) for trial in plan.trials[2:]]  # without the memory phase
    ran, _, fine = execute(tmp_path / "run", plan_of(*plan.trials, *graphed), cpu)
    assert ran == [trial.id for trial in plan.trials]
    refused = [row for row in trial_rows(tmp_path / "run") if row["techniques"]]
    assert [row["precision"] for row in refused] == [*ARMS * 2, *ARMS]
    assert {(row["status"], row["detail"]) for row in refused} == {("unsupported", "cuda-graphs needs a CUDA device")}
    assert fine


class FitsUpTo:
    """A launcher on which batches up to a size fit."""

    overlapping = False

    def __init__(self, most):
        self.most, self.tried = most, []

    def run(self, trial, device, on_message):
        self.tried.append(trial.cell.batch_size)
        if trial.cell.batch_size > self.most:
            return TOO_BIG
        fit = Fit(fit_peak_bytes=1, fit_step_s=1e-6)
        on_message(TrialResult(precision=trial.precisions[0], status="ok", row=fit))
        return Ending(kind="done")


def test_a_search_is_one_row_and_is_read_back_when_resuming(tmp_path, tiny_trial, cpu):
    trial = replace(tiny_trial, phase="fit")
    for is_first in (True, False):
        launcher = FitsUpTo(20)
        with Store(tmp_path / "run") as store:
            running = execution(store, cpu, launcher)
            assert running.run(plan_of(trial))
            assert largest_batches(plan_of(trial), tmp_path / "run") == {(at_any_size(trial.cell), "fp32"): 20}
        assert bool(launcher.tried) == is_first
    (row,) = trial_rows(tmp_path / "run")
    assert (row["phase"], row["batch_size"], row["status"], row["fit_bound"]) == ("fit", "20", "ok", "memory")
    assert "too big" in row["detail"]


def test_batches_are_searched_at_sizes_that_all_that_is_compared_can_be_trained_at(tmp_path, tiny_trial, cpu):
    cpu, launcher = replace(cpu, unsupported={"bf16": "no bfloat16"}), FitsUpTo(100)
    fit = replace(tiny_trial, phase="fit", cell=replace(tiny_trial.cell, batch_size=20))
    plan = plan_of(*(replace(fit, arms=arms(name)) for name in ("fp32", "mxfp8", "bf16")))
    with Store(tmp_path / "run") as store:
        running = execution(store, cpu, launcher)
        running.run(plan)
        sizes = {name: size for (_cell, name), size in largest_batches(plan, tmp_path / "run").items()}
    assert (sizes["fp32"], sizes["mxfp8"]) == (96, 96)
    assert launcher.tried == 2 * [32, 64, 128, 96]


def test_ablation_steps_after_a_refused_one_add_to_the_step_before_it(tmp_path, ablation, cpu):
    refused = {"channels-last": NO_IMAGES}
    _, stored, fine = execute(tmp_path / "run", ablation, cpu, refused)
    assert arms_of(stored, "memory", "unsupported") == [f"{TOP}+channels-last"]
    rebased = [*STEPS[:4], f"{TOP}+compile", f"{TOP}+compile+checkpointing"]
    assert arms_of(stored, "memory") == rebased
    assert arms_of(stored, "speed") == rebased * 2
    assert fine
    assert execute(tmp_path / "run", ablation, cpu, refused)[0] == []  # resumed, all is done
    planned = [entry_of(trial) for trial in ablation.trials]
    (tmp_path / "run" / "run.json").write_text(json.dumps({"format": FORMAT}))
    measured = load([tmp_path / "run"]).ablations
    assert missing(planned, measured) == []  # although steps have other names than planned
    without = measured[measured["precision"] != f"{TOP}+compile"]
    assert [one["phase"] for one in missing(planned, without)] == ["memory", "speed", "speed"]


def test_an_ablation_of_which_no_step_works_is_not_timed(tmp_path, ablation, cpu):
    ran, stored, fine = execute(tmp_path / "run", ablation, cpu, {"memory": TOO_BIG})
    assert arms_of(stored, "memory", "oom") == [
        *("fp32", "amp-fp16", "amp-fp16+set-to-none", "amp-fp16+prefetcher"),
        *(f"amp-fp16+{name}" for name in MORE),
    ]
    assert len(ran) == len(STEPS)
    assert not fine


def test_telemetry_is_read_of_each_gpu_once(machine):
    pair = Device(placement="1+0", kind="cuda", name="2 × GPU", architecture="Hopper", uuids=("GPU-b", "GPU-a"))
    alone = replace(pair, placement="0", uuid="GPU-a", uuids=())
    over_nodes = replace(pair, placement="0+1@2", uuids=())
    found = sampled_gpus(replace(machine, devices=(alone, pair, over_nodes, *machine.devices)))
    assert sorted(found) == [("0", "GPU-a"), ("1", "GPU-b")]


def speed_plan(tiny_trial, **protocol):
    asked = Protocol(time_budget_s=3.0, **protocol)
    speed = replace(tiny_trial, phase="speed", arms=arms(*ARMS), protocol=asked)
    return plan_of(*(replace(speed, replicate=number) for number in range(asked.replicates)))


@pytest.mark.parametrize(
    ("speedups", "processes"),
    [
        ((1.50, 1.51, 1.49), 3),
        ((1.50, 1.51, DISTURBED, 1.49), 4),  # which the fourth replaces
        ((0.98, 1.05, 0.97, 1.04, 1.00, 0.95), 6),  # nothing is decided, and six are the most
    ],
)
def test_a_cell_is_measured_by_as_many_processes_as_its_verdict_needs(tiny_trial, tmp_path, cpu, speedups, processes):
    launcher = ScriptedLauncher({}, speedups)
    assert run_with(launcher, tmp_path, speed_plan(tiny_trial, most_replicates=6), cpu)
    assert len(launcher.ran) == processes
    again = ScriptedLauncher({}, speedups)  # nothing is left to measure
    assert run_with(again, tmp_path, speed_plan(tiny_trial, most_replicates=6), cpu)
    assert again.ran == []


def test_the_noise_that_a_gain_must_exceed_is_that_of_all_processes_that_timed_fp32_against_itself(
    tiny_trial, tmp_path, cpu
):
    speed = speed_plan(tiny_trial, most_replicates=9)
    floor = replace(tiny_trial, phase="floor", arms=arms("fp32"), protocol=speed.trials[0].protocol)
    floors = [replace(floor, replicate=number) for number in range(9)]
    launcher = ScriptedLauncher({}, [1.05] * 9, [0.97, 1.03, *[1.0] * 7])  # 11 % in the first three, 1 % in all
    run_with(launcher, tmp_path, plan_of(*floors, *speed.trials), cpu)
    assert len(launcher.ran) == 9 + 3


def test_a_precision_whose_second_reading_of_memory_crashes_is_timed(tiny_trial, tmp_path, cpu):
    memory = replace(tiny_trial, phase="memory", arms=arms("amp-bf16"))
    plan = plan_of(*(replace(memory, replicate=process) for process in (0, 1)), *speed_plan(tiny_trial).trials)
    launcher = ScriptedLauncher({"memory-amp-bf16-r1": Ending(kind="died", text="why")})
    run_with(launcher, tmp_path, plan, cpu)
    assert [row["precision"] for row in trial_rows(tmp_path)].count("amp-bf16") == 2 + 3
    assert [row["status"] for row in trial_rows(tmp_path)].count("failed") == 1


def test_processes_that_are_added_have_numbers_of_their_own(tiny_trial, tmp_path, cpu, capsys):
    speed = speed_plan(tiny_trial, most_replicates=6)
    train = replace(tiny_trial, phase="train", arms=arms("fp32"))
    run_with(ScriptedLauncher({}, (1.50, 1.51, DISTURBED, 1.49)), tmp_path, plan_of(*speed.trials, train), cpu)
    shown = [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["[1/4]", "[2/4]", "[3/4]", "[4/4]", "[5/5]"]


class TimedLauncher(ScriptedLauncher):
    """Takes a time for each trial, on a clock of its own, and sends a message in the middle."""

    def __init__(self, durations, speedups=()):
        super().__init__({}, speedups)
        self.durations, self.now_s = durations, 0.0

    def monotonic(self):
        return self.now_s

    def run(self, trial, device, on_message):
        half_s = self.durations[trial.phase] / 2
        self.now_s += half_s
        on_message(Progress(text="half"))
        self.now_s += half_s
        return super().run(trial, device, on_message)


FURTHER = "further processes for the speed"


@pytest.mark.parametrize(
    ("deadline_s", "ran", "undecided"),
    [
        (100.0, ["speed-r0", "speed-r1", "speed-r2", "train-fp32-s0", "memory-fp32-r0", "speed-r3"], []),
        (
            61.0,
            ["speed-r0", "speed-r1", "speed-r2", "train-fp32-s0", "memory-fp32-r0"],
            [FURTHER],
        ),  # a fourth is too long
        (45.0, ["speed-r0", "speed-r1", "speed-r2", "memory-fp32-r0", "speed-r3"], ["train"]),
        (12.0, ["speed-r0", "memory-fp32-r0"], ["speed", "train"]),
        (4.0, ["memory-fp32-r0"], ["speed", "train"]),
    ],
)
def test_only_what_should_end_in_time_is_begun_and_the_rest_is_undecided(
    tiny_trial, tmp_path, cpu, monkeypatch, *, deadline_s, ran, undecided
):
    speed = speed_plan(tiny_trial, most_replicates=4).trials
    others = [replace(tiny_trial, phase=phase, arms=arms("fp32")) for phase in ("train", "memory")]
    plan = Plan(trials=(*speed, *others), seconds=(10.0, 10.0, 10.0, 20.0, 2.0))
    launcher = TimedLauncher({"speed": 10.0, "train": 20.0, "memory": 2.0}, (0.98, 1.05, 0.97, 1.04))
    monkeypatch.setattr("bench.run.runner.time", launcher)
    with Store(tmp_path) as store:
        run = execution(store, cpu, launcher)
        run.deadline_s = deadline_s
        run.run(plan)
    assert [re.sub("^tiny-cpu-b[0-9]+-", "", trial) for trial in launcher.ran] == ran
    assert list(run.undecided) == [f"{phase} of tiny on cpu" for phase in undecided]


def test_a_trial_that_is_slower_than_expected_is_ended_in_time_and_measured_when_the_run_goes_on(
    plan, tmp_path, cpu, monkeypatch
):
    launcher = TimedLauncher({"memory": 8.0})
    monkeypatch.setattr("bench.run.runner.time", launcher)
    timed = Plan(trials=plan.trials[:2], seconds=(1.0, None))
    with Store(tmp_path) as store:
        run = execution(store, cpu, launcher)
        run.deadline_s = 10.0
        assert run.run(timed)  # what was measured is fine
    assert [row["precision"] for row in trial_rows(tmp_path)] == ["fp32"]
    assert list(run.undecided) == ["memory of tiny on cpu"]
    again, stored, fine = execute(tmp_path, timed, cpu)
    assert (len(again), [status for *_, status in stored], fine) == (1, ["ok", "ok"], True)


def test_a_process_that_is_lost_is_measured_again_when_the_run_goes_on(tiny_trial, tmp_path, cpu):
    plan = speed_plan(tiny_trial)
    launcher = ScriptedLauncher({"-r2": KeyboardInterrupt()}, (1.5, 1.2, 1.8, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5))
    with pytest.raises(KeyboardInterrupt):
        run_with(launcher, tmp_path, plan, cpu)
    launcher = ScriptedLauncher({}, launcher.speedups)
    run_with(launcher, tmp_path, plan, cpu)
    assert launcher.ran[0].endswith("-r2")


def test_an_arm_that_crashes_late_does_not_end_the_processes_of_the_others(tiny_trial, tmp_path, cpu):
    crash = dict.fromkeys(("speed-r2", "speed-fp16-master-r2"), Ending(kind="died", text="why"))
    plan = speed_plan(tiny_trial, most_replicates=6)
    plan = plan_of(*(replace(trial, arms=arms(*ARMS, "fp16-master")) for trial in plan.trials))
    launcher = ScriptedLauncher(crash, (0.98, 1.05, 0.97, 1.04, 1.00, 0.95))
    run_with(launcher, tmp_path, plan, cpu)
    assert launcher.ran[-1].endswith("-speed-r5")


@pytest.mark.parametrize(
    ("line", "left"), [(1, [0, 1]), (2, [1]), (3, [1])], ids=["the second row of r0", "r1", "the second row of r1"]
)
def test_a_run_that_was_cut_off_anywhere_goes_on_with_exactly_what_lacks_a_row(tmp_path, plan, cpu, line, left):
    folder = tmp_path / "run"
    execute(folder, plan, cpu)
    path = folder / "speed.csv"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[: 1 + line]) + whole[1 + line][:9])
    ran, stored, fine = execute(folder, plan, cpu)
    assert ran == [f"tiny-cpu-b4-speed-r{number}" for number in left]
    assert sorted(stored) == sorted(set(stored))
    assert (folder / "speed.csv").read_text().count("\n") == len(whole)
    assert len(rows(folder, "blocks.csv")) == 2
    assert fine
    assert execute(folder, plan, cpu)[0] == []


def test_blocks_of_an_attempt_that_failed_are_not_mixed_with_those_of_the_next(tmp_path, plan, cpu):
    class FailsAfterTiming(ScriptedLauncher):
        def run(self, trial, device, on_message):
            super().run(trial, device, on_message if trial.phase != "speed" else keep_blocks(on_message))
            return Ending(kind="error", text="gone") if trial.phase == "speed" else Ending(kind="done")

    def keep_blocks(on_message):
        return lambda message: on_message(message) if isinstance(message, Block) else None

    run_with(FailsAfterTiming({}), tmp_path, plan, cpu)
    assert len(rows(tmp_path, "blocks.csv")) == 4  # of each arm alone
    ran, stored, _ = execute(tmp_path, plan, cpu)
    assert ran == [f"tiny-cpu-b4-speed-r{number}" for number in (0, 1)]
    assert len(rows(tmp_path, "blocks.csv")) == 2
    assert [status for trial, _, status in stored if "speed" in trial] == ["ok"] * 4


def test_arms_that_failed_together_and_were_all_measured_apart_are_not_measured_again(tmp_path, plan, cpu):
    execute(tmp_path, plan, cpu, {"speed-r0": Ending(kind="died", text="killed")})
    before = (tmp_path / "speed.csv").read_bytes()
    assert execute(tmp_path, plan, cpu)[0] == []
    assert (tmp_path / "speed.csv").read_bytes() == before


def test_arms_that_were_measured_beside_one_that_failed_keep_their_rows_if_it_fails_again(tmp_path, tiny_trial, cpu):
    speed = replace(tiny_trial, phase="speed", arms=arms(*ARMS, "tf32"))
    plan = plan_of(*(replace(speed, replicate=number) for number in (0, 1)))
    device = replace(cpu, unsupported={})
    fails = {f"speed{arm}-r{number}": Ending(kind="died", text="gone") for arm in ("", "-tf32") for number in (0, 1)}
    fails.pop("speed-r1")
    first = execute(tmp_path, plan, device, fails)[1]
    assert [row[1:] for row in first if row[0].endswith("-speed-r1")] == [(name, "ok") for name in ARMS]
    again = {**fails, "speed-r1": Ending(kind="died", text="gone")}
    ran, stored, _ = execute(tmp_path, plan, device, again)
    assert [row for row in stored if row[2] == "ok"] == [row for row in first if row[2] == "ok"]
    assert not [trial for trial in ran if trial.endswith(("-fp32-r1", "-fp32-r0"))]
