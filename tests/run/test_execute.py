"""The orchestration, with a launcher that answers from a script instead of starting processes."""

from dataclasses import replace

import pytest

from bench.cli.display import PlainDisplay
from bench.launch.launcher import Ending
from bench.measure.sampler import Sampler
from bench.planning.plan import Plan
from bench.results.records import Block, Device, EpochResult, MemoryPeak, TrialResult
from bench.results.store import Store
from bench.run.execute import Execution
from bench.run.session import sampled
from tests.arms import arms
from tests.results.test_store import rows

ARMS = ("fp32", "amp-bf16")


class ScriptedLauncher:
    """Answers a trial by the first rule whose words are all in its id; otherwise every precision is ok."""

    def __init__(self, rules=()):
        self.rules = list(rules)
        self.ran = []

    def run(self, trial, device, on_message):
        self.ran.append(trial.id)
        for words, answer in self.rules:
            if all(word in trial.id for word in words) and (len(words) < 3 or len(trial.precisions) == 2):
                if isinstance(answer, Ending):
                    return answer
                raise answer
        if trial.phase == "speed":
            on_message(Block(trial=trial.id, precision="fp32", round=0, position=0, steps=1, time_ms=1.0, start_s=0.0))
        for name in trial.precisions:
            on_message(TrialResult(precision=name, status="ok", memory=MemoryPeak(model_bytes=1)))
        return Ending(kind="done")


@pytest.fixture
def plan(tiny_trial):
    memory = [replace(tiny_trial, arms=arms(name)) for name in ARMS]
    speed = [replace(tiny_trial, phase="speed", arms=arms(*ARMS), replicate=number) for number in (0, 1)]
    train = [replace(tiny_trial, phase="train", arms=arms(name)) for name in ARMS]
    trials = (*memory, *speed, *train)
    return Plan(trials=trials, seconds=(None,) * len(trials))


def execute(folder, plan, cpu, rules=()):
    launcher = ScriptedLauncher(rules)
    with Store(folder) as store:
        execution = Execution(
            store=store, devices={"cpu": cpu}, launcher=launcher, sampler=Sampler(()), display=PlainDisplay()
        )
        fine = execution.run(plan)
    found = [(row["trial"], row["precision"], row["status"]) for row in rows(folder, "trials.csv")]
    return launcher.ran, found, fine


def test_every_trial_is_run_in_order_and_stored(tmp_path, plan, cpu):
    ran, found, fine = execute(tmp_path / "run", plan, cpu)
    assert ran == [trial.id for trial in plan.trials]
    assert len(found) == 2 + 2 * 2 + 2
    assert fine
    assert len(rows(tmp_path / "run", "blocks.csv")) == 2


def test_a_precision_that_does_not_fit_is_a_row_and_is_left_out_of_what_follows(tmp_path, plan, cpu):
    ran, found, fine = execute(tmp_path / "run", plan, cpu, [(("memory-fp32",), Ending(kind="oom", text="too big"))])
    assert ("tiny-cpu-b4-memory-fp32", "fp32", "oom") in found
    assert [name for name in ran if "fp32" in name] == ["tiny-cpu-b4-memory-fp32"]
    assert {precision for trial, precision, _ in found if "memory" not in trial} == {"amp-bf16"}
    assert fine  # not fitting is an outcome, not a failure


def test_arms_that_do_not_fit_together_are_measured_apart(tmp_path, plan, cpu):
    joint = (("speed", "tiny", "b4"), Ending(kind="oom", text="too big"))
    ran, found, _ = execute(tmp_path / "run", plan, cpu, [joint])
    assert ran[2:5] == ["tiny-cpu-b4-speed-r0", "tiny-cpu-b4-speed-fp32-r0", "tiny-cpu-b4-speed-amp-bf16-r0"]
    assert ("tiny-cpu-b4-speed-r0", "fp32", "oom") in found
    assert ("tiny-cpu-b4-speed-amp-bf16-r0", "amp-bf16", "ok") in found


@pytest.mark.parametrize(("kind", "status"), [("timeout", "timeout"), ("died", "failed"), ("error", "failed")])
def test_a_trial_that_fails_leaves_rows_and_the_rest_goes_on(tmp_path, plan, cpu, kind, status):
    rules = [(("speed-r0",), Ending(kind=kind, text="why"))]
    ran, found, fine = execute(tmp_path / "run", plan, cpu, rules)
    assert [row for row in found if row[2] != "ok"] == [("tiny-cpu-b4-speed-r0", name, status) for name in ARMS]
    assert len(ran) == len(plan.trials)
    assert not fine
    assert rows(tmp_path / "run", "trials.csv")[2]["detail"] == "why"


def test_resuming_runs_only_what_is_missing_or_failed(tmp_path, plan, cpu):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        execute(folder, plan, cpu, [(("speed-r0",), Ending(kind="died")), (("train-fp32",), KeyboardInterrupt())])
    ran, _, fine = execute(folder, plan, cpu)
    assert ran == ["tiny-cpu-b4-speed-r0", "tiny-cpu-b4-train-fp32-s0", "tiny-cpu-b4-train-amp-bf16-s0"]
    assert fine
    assert execute(folder, plan, cpu)[0] == []


def test_what_did_not_fit_is_remembered_when_resuming(tmp_path, plan, cpu):
    folder = tmp_path / "run"
    execute(folder, plan, cpu, [(("memory-fp32",), Ending(kind="oom"))])
    assert execute(folder, plan, cpu)[0] == []


def test_arms_still_to_be_measured_apart_are_measured_when_resuming(tmp_path, plan, cpu):
    folder = tmp_path / "run"
    joint = (("speed", "tiny", "b4"), Ending(kind="oom", text="too big"))
    with pytest.raises(KeyboardInterrupt):
        execute(folder, plan, cpu, [joint, (("speed-fp32-r0",), KeyboardInterrupt())])
    ran, _, _ = execute(folder, plan, cpu, [joint])
    assert ran[:2] == ["tiny-cpu-b4-speed-fp32-r0", "tiny-cpu-b4-speed-amp-bf16-r0"]


def test_a_run_in_which_nothing_could_be_measured_is_no_success(tmp_path, plan, cpu):
    _, found, fine = execute(tmp_path / "run", plan, cpu, [(("tiny",), Ending(kind="oom", text="too big"))])
    assert {status for _, _, status in found} == {"oom"}
    assert not fine


def test_a_precision_that_the_device_cannot_do_is_a_row_with_the_reason_and_no_process(tmp_path, plan, cpu):
    device = replace(cpu, unsupported={"fp16-master": "no float16"})
    unable = [
        replace(trial, arms=arms(name))
        for trial in (plan.trials[0], plan.trials[2], plan.trials[4])
        for name in ("fp16-master", "fp16-master:scale=8")
    ]
    for phases in (slice(0, 6), slice(2, 6)):  # with the memory phase and without
        both = Plan(trials=(*unable[phases], *plan.trials), seconds=(None,) * len(plan.trials))
        folder = tmp_path / f"run{phases.start}"
        ran, found, fine = execute(folder, both, device)
        assert not [name for name in ran if "fp16-master" in name]
        refused = [row for row in rows(folder, "trials.csv") if row["status"] == "unsupported"]
        assert {(row["precision"], row["detail"]) for row in refused} == {
            ("fp16-master", "no float16"),
            ("fp16-master:scale=8", "no float16"),
        }
        assert len(found) == len(refused) + 8
        assert fine
        assert execute(folder, both, device)[0] == []  # nor when resuming


def test_a_technique_that_the_device_cannot_do_is_a_row_for_each_precision_and_no_process(tmp_path, plan, cpu):
    cell = replace(plan.trials[0].cell, techniques=("channels-last", "cuda-graphs"))
    graphed = tuple(replace(trial, cell=cell) for trial in plan.trials[2:])  # without the memory phase
    both = Plan(trials=(*plan.trials, *graphed), seconds=(None,) * (len(plan.trials) + len(graphed)))
    ran, _, fine = execute(tmp_path / "run", both, cpu)
    assert ran == [trial.id for trial in plan.trials]
    refused = [row for row in rows(tmp_path / "run", "trials.csv") if row["techniques"]]
    assert [row["precision"] for row in refused] == [*ARMS * 2, *ARMS]
    assert {(row["status"], row["detail"]) for row in refused} == {("unsupported", "cuda-graphs needs a CUDA device")}
    assert fine


def test_epochs_are_stored_also_of_a_run_that_failed_later(tmp_path, plan, cpu):
    class Half(ScriptedLauncher):
        def run(self, trial, device, on_message):
            if trial.phase == "train":
                fields = dict.fromkeys(EpochResult.__dataclass_fields__)
                on_message(EpochResult(**{**fields, "trial": trial.id, "epoch": 1, "train_loss": 1.0}))
                return Ending(kind="died", text="gone")
            return super().run(trial, device, on_message)

    with Store(tmp_path / "run") as store:
        display, sampler = PlainDisplay(), Sampler(())
        Execution(store=store, devices={"cpu": cpu}, launcher=Half(), sampler=sampler, display=display).run(plan)
    assert [row["epoch"] for row in rows(tmp_path / "run", "epochs.csv")] == ["1", "1"]


def test_an_error_of_a_whole_tensor_and_of_an_odd_file_name_is_a_row_that_can_be_read_again(tmp_path, plan, cpu):
    text = "ValueError: bad pixels in \udcff.jpg " + 200_000 * "0" + " is no image"
    execute(tmp_path / "run", plan, cpu, [(("memory-fp32",), Ending(kind="error", text=text))])
    detail = rows(tmp_path / "run", "trials.csv")[0]["detail"]
    assert detail.startswith("ValueError: bad pixels in \\udcff.jpg 000")
    assert detail.endswith("000 is no image")
    assert len(detail) < 5000


def test_telemetry_is_read_of_each_gpu_once(machine):
    pair = Device(placement="1+0", kind="cuda", name="2 × GPU", architecture="Hopper", uuids=("GPU-b", "GPU-a"))
    alone = replace(pair, placement="0", uuid="GPU-a", uuids=())
    over_nodes = replace(pair, placement="0+1@2", uuids=())
    found = sampled(replace(machine, devices=(alone, pair, over_nodes, *machine.devices)))
    assert sorted(found) == [("0", "GPU-a"), ("1", "GPU-b")]
