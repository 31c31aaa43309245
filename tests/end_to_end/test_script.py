"""A script of known times is measured right, whatever else it does, and what is no comparison is
refused.
"""

import json
import math
import shlex
from contextlib import closing
from dataclasses import replace

import pytest

from bench.results.records import TrialResult
from bench.script.launcher import ScriptLauncher
from bench.spec.request import Script
from tests.conftest import call
from tests.derived import figured
from tests.rows import trial_figures, trial_rows
from tests.script.test_launcher import CPU, trial

METRONOME = """
import argparse, os, time
from contextlib import suppress

parser = argparse.ArgumentParser()
parser.add_argument("--ms", type=float, default=30)
parser.add_argument("--start", type=float, default=0)
parser.add_argument("--has", default="evaluation,accumulation,optimizers,teacher,scaler")
parser.add_argument("--slow-evaluation", action="store_true")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--no-effect", action="store_true")
options = parser.parse_args()
has = options.has.split(",")
time.sleep(options.start)

import torch

with suppress(OSError):  # other programs then take no core away, where the system allows it
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
torch.set_num_threads(1)
torch.manual_seed(0)
model, teacher = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
groups = [model.parameters()]
if "optimizers" in has or "gan" in has:
    groups = [[model.weight], [model.bias]]
optimizers = [torch.optim.SGD(group) for group in groups]
turns = [[each] for each in optimizers] if "gan" in has else [optimizers]
scaler = torch.amp.GradScaler("cpu", enabled="scaler" in has)
forward = torch.compile(model, backend="eager") if "compiled" in has else model
end = time.perf_counter()


def wait():
    time.sleep(max(0.0, end - 0.003 - time.perf_counter()))
    while time.perf_counter() < end:
        pass


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, number):
        if "bursts" in has and number % 5 == 0:
            wait()
        return torch.randn(4, 8)


for step, x in enumerate(torch.utils.data.DataLoader(Batches(), batch_size=None)):
    for turn in turns:
        for part in range(2 if "accumulation" in has else 1):
            target = x
            if "teacher" in has:
                with torch.no_grad():
                    target = teacher(x)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
                loss = (forward(x) - target).square().mean()
            if "scaler" in has and step in (20, 31, 32):
                loss = loss * float("inf")
            scaler.scale(loss).backward()
        end += (options.ms + 20 * ("slow start" in has and step < 20)) / 1e3 / len(turns)
        if "bursts" not in has:
            wait()
        for optimizer in turn:
            scaler.step(optimizer)
            if "twice" in has:
                optimizer.step()
            optimizer.zero_grad()
    scaler.update()
    if "evaluation" in has and step % 15 == 14:
        model.eval()
        with torch.no_grad():
            model(x)
        time.sleep(0.2 if options.slow_evaluation else 0.01)
        model.train()
    if step == 0 or "evaluation" in has and step % 15 == 14:
        end = time.perf_counter()
"""


def script(line, cwd, code=1, main=METRONOME):
    """Run a command line of ``script`` on this file, into the folder ``run``, to an exit code."""
    (cwd / "train.py").write_text(main)
    words = f"script --quick --gpus cpu --out run {line} -- train.py"
    done = call(*shlex.split(words), cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timing
def test_a_metronome_reads_what_it_is_set_to(tmp_path):
    mixed = "mixed=--ms 20 --bf16 --slow-evaluation --start 0.5"
    printed = script(f"--arm 'plain=--ms 30' --arm '{mixed}'", tmp_path, code=0)
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "run", "reports"}
    *_, measured = trial_figures(tmp_path / "run")
    assert measured["phase"] == "speed"
    assert measured["precision"] == "mixed"
    assert math.exp(measured["log_speedup"]) == pytest.approx(1.5, abs=0.02)
    assert measured["skipped_steps"] == 6  # three in each of its two processes
    report = (tmp_path / "reports" / "run" / "report.md").read_text()
    assert "plain, its reference, is called fp32" in report
    assert "batch" not in printed  # a script's batch size is its own
    assert "batch size |" not in report
    assert "samples/s |" not in report


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(
    "has",
    [
        "plain",
        "slow start",
        "evaluation",
        "accumulation",
        "optimizers",
        "teacher",
        "gan",
        "scaler",
        "twice",
        "bursts",
        "compiled",
    ],
)
def test_what_a_step_consists_of_does_not_change_its_time(tmp_path, has):
    main = tmp_path / "train.py"
    main.write_text(METRONOME)
    options = {"a": "--ms 30", "b": "--ms 20 --slow-evaluation --start 1"}
    given = Script(command=(str(main), f"--has={has}"), arms=tuple(options.items()))
    sent = []
    asked = replace(trial(*options), silence_s=120.0)
    with closing(ScriptLauncher(given)) as launcher:
        launcher.run(asked, CPU, sent.append)
    results = {}
    for message in figured(asked, sent):
        if isinstance(message, TrialResult):
            results[message.arm] = message
    measured = results["b"]
    assert measured.status == "ok", measured.detail
    speedup = measured.row.log_gain().exp().center
    assert speedup == pytest.approx(1.5, rel=0.01)
    # Three in each of its two processes.
    assert measured.row.skipped_steps == (6 if has == "scaler" else 0)


@pytest.mark.slow
def test_an_arm_without_effect_and_one_that_fails_are_refused_and_the_rest_is_measured_once(
    tmp_path,
):
    arms = "--arm 'fp32=--ms 4' --arm 'same=--ms 4 --no-effect' --arm broken=--flag"
    script(f"{arms} --arm 'bf16=--ms 4 --bf16' --steps 20", tmp_path)
    run = tmp_path / "run"
    rows = {(row["phase"], row["precision"]): row for row in trial_rows(run)}
    assert "computed what the reference did" in rows["memory", "same"]["detail"]
    assert "unrecognized arguments: --flag" in rows["memory", "broken"]["detail"]
    assert rows["speed", "bf16"]["status"] == "ok"
    assert ("speed", "same") not in rows
    request = json.loads((run / "run.json").read_text())["request"]
    assert request["script"]["steps"] == 20
    measured = (run / "blocks.csv").read_bytes()
    resumed = call("--resume", "run", cwd=tmp_path)
    assert resumed.returncode == 1
    assert (run / "blocks.csv").read_bytes() == measured


@pytest.mark.slow
def test_a_script_that_fails_in_each_arm_has_a_report_with_the_reason(tmp_path):
    failing = "raise ValueError('no images')"
    printed = script("--inject as-is,amp-bf16", tmp_path, main=failing)
    assert "in time" not in printed
    report = tmp_path / "reports" / "run" / "report.html"
    assert "no images" in report.read_text()
