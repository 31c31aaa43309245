"""A model that breaks under autocast alone, in each phase: its row says what and where, fp32 keeps
its own.
"""

import json
import os
import re
from itertools import product

import psutil
import pytest

from bench.results.records import MEASURED
from bench.results.store import arm_name
from bench.run import reporting
from tests.conftest import call
from tests.rows import trial_rows

FAULTY = """
import ctypes, os, signal, sys
from bench.spec import Data, Suite


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(7)


def end():
    sys.exit(3)


def throw():
    raise RuntimeError("the model broke")


def hang():
    while True:
        ctypes.PyDLL(None).sleep(600)


def fill():
    import torch
    torch.empty(2**60, dtype=torch.uint8)


def shout():
    os.write(1, os.urandom(100_000))
    os.write(2, os.urandom(100_000))


def suite(fault: str = "shout", at: int = 1, always: bool = False) -> Suite:
    def model(data):
        import torch
        from torch import nn

        class Breaking(nn.Module):
            passes = 0

            def forward(self, inputs):
                if always or torch.is_autocast_enabled("cpu"):
                    self.passes += 1
                    if fault == "nan":
                        return inputs * float("nan")
                    if self.passes >= at:
                        globals()[fault]()
                return inputs

        last = nn.Linear(16, data.classes)
        return nn.Sequential(nn.Flatten(), Breaking(), nn.Linear(12, 16), nn.ReLU(), last)

    def optimizer(parameters):
        from torch import optim

        return optim.SGD(parameters, lr=0.01)

    return Suite(
        name="faulty",
        title="two layers and a fault",
        data=Data(input_shape=(3, 2, 2), classes=2, steps_per_epoch=3),
        model=model,
        optimizer=optimizer,
        batch_size=4,
        batch_sizes=(4,),
        epochs=1,
    )
"""


def at(name):
    """Return a pattern of the place in the suite's file where a function breaks."""
    before, _, _ = FAULTY.partition(f"def {name}(")
    return rf" \(faulty\.py:{before.count(chr(10)) + 2}\)"


FAULTS = {
    "crash": ("failed", "by SIGSEGV" + at("crash")),
    "kill": ("failed", "by SIGKILL"),
    "leave": ("failed", "by exit code 7"),
    "end": ("failed", "SystemExit: 3" + at("end")),
    "throw": ("failed", "RuntimeError: the model broke" + at("throw")),
    "hang": ("timeout", r"no sign of life for 2 s \(faulty\.py:\d+\)"),
    "fill": ("oom", "memory"),
}
"""The status and the reason of the row of the precision that breaks."""
PHASES = ("memory", "speed", "train", "numerics", "inference")


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.setattr(reporting, "report", lambda *_, **__: None)
    return tmp_path


def run(place, fault, words, depth="--quick"):
    """Run the suite with a fault; return how that ended, and the rows."""
    given = f"--suite ./faulty.py --set fault={fault} --batch-sizes 4 --gpus cpu --out out"
    limits = f"--time-budget 0.3 --trial-timeout {'2s' if fault == 'hang' else '60s'}"
    line = f"{given} {depth} {limits} --precisions fp32,amp-bf16 {words}"
    return call(*line.split(), cwd=place), trial_rows(place / "out")


def computing():
    """Return this process's descendants, without multiprocessing's servers and trackers."""
    found = []
    for child in psutil.Process().children(recursive=True):
        command = " ".join(child.cmdline())
        if child.ppid() != os.getpid() or not re.search("forkserver|resource_tracker", command):
            found.append(child)
    return found


def check(place, fault, phase, words=""):
    done, rows = run(place, fault, f"--phases {phase} {words}")
    assert done.returncode == (0 if fault == "fill" else 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    check_apart(place, fault, phase, rows)


def check_apart(place, fault, phase, rows):
    """Check that fp32 has been measured in a phase, and the row of what breaks there."""
    by_name = {row["precision"]: row for row in rows if row["phase"] == phase}
    assert by_name["fp32"]["status"] in MEASURED
    check_broken(place, fault, by_name["amp-bf16"])


def check_broken(place, fault, broken):
    """Check the row of what breaks, and that nothing is left of its process."""
    status, reason = FAULTS[fault]
    assert broken["status"] == status
    assert re.search(reason, broken["detail"], re.IGNORECASE)
    assert len(broken["detail"]) < 1000
    if fault not in ("fill", "kill", "leave"):  # which leave no word
        (log,) = re.findall(r"folder: (logs/.*\.log)$", broken["detail"])
        assert (place / "out" / log).exists()
    assert computing() == []


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_precision_that_breaks_is_a_row_with_what_and_where_and_fp32_keeps_its_own(
    place, fault, phase
):
    check(place, fault, phase)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "throw", "hang"])
def test_a_step_of_an_ablation_that_breaks_is_a_row_and_the_others_keep_theirs(place, fault):
    done, rows = run(place, fault, "--ladder --techniques set-to-none")
    assert done.returncode == 1, done.stdout + done.stderr
    measured = set()
    for row in rows:
        if row["status"] in MEASURED:
            measured.add((row["phase"], arm_name(row)))
    assert measured >= set(product(("memory", "speed"), ("fp32", "fp32+set-to-none")))
    (broken,) = (row for row in rows if arm_name(row) == "amp-bf16")
    check_broken(place, fault, broken)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "throw"])
def test_a_precision_that_breaks_in_the_search_for_the_largest_batch_is_a_row_and_fp32_has_its_size(
    place, fault
):
    _, rows = run(place, fault, "--phases memory --batch-sizes max")
    check_apart(place, fault, "fit", rows)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "throw", "kill"])
def test_a_baseline_that_breaks_where_it_is_timed_against_itself_is_a_row(place, fault):
    always = "--phases floor --set always=true --precisions fp32"
    done, (broken,) = run(place, fault, always)
    assert done.returncode == 1, done.stdout + done.stderr
    assert broken["phase"] == "floor"
    check_broken(place, fault, broken)


@pytest.mark.slow
def test_a_precision_that_crashes_while_it_is_timed_with_fp32_leaves_it_its_row(place):
    check(place, "crash", "speed", "--set at=5")


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_model_that_prints_garbage_is_measured(place, phase):
    done, rows = run(place, "shout", f"--phases {phase}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["status"] for row in rows} <= {*MEASURED}


@pytest.mark.slow
def test_a_precision_that_hangs_costs_one_limit_and_not_one_in_each_phase_and_process(place):
    done, rows = run(place, "hang", "--phases speed,train,inference", "--rigorous")
    assert done.returncode == 1
    tried = []
    for row in rows:
        if row["precision"] == "amp-bf16":
            assert row["status"] == "timeout"
            tried.append("not tried again" not in row["detail"])
    assert len(tried) > 3
    assert sum(tried) == 1


@pytest.mark.slow
def test_a_trial_that_runs_over_the_time_of_a_run_is_ended_and_has_no_row(place):
    done, (row,) = run(place, "hang", "--phases memory,train --trial-timeout 60s --within 16s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (row["phase"], row["precision"], row["status"]) == ("memory", "fp32", "ok")
    undecided = json.loads((place / "out" / "run.json").read_text())["undecided"]
    assert undecided == ["memory of faulty on cpu", "train of faulty on cpu"]
    assert computing() == []
