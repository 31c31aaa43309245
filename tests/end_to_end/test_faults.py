"""A model that breaks under autocast alone, in each phase: its row says what and where, fp32 keeps
its own.
"""

import json
import os
import re
from types import SimpleNamespace

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
    monkeypatch.setattr(reporting, "report", lambda *_, **__: SimpleNamespace(verdicts=()))
    return tmp_path


def run(place, fault, words, code=1, depth="--quick"):
    """Run the suite with a fault to an exit code; return the rows."""
    silence = "2s" if fault == "hang" else "60s"
    given = f"--suite ./faulty.py --set fault={fault} --batch-sizes 4 --gpus cpu --out out"
    limits = f"--time-budget 0.3 --trial-timeout {silence}"
    line = f"{given} {depth} {limits} --precisions fp32,amp-bf16 {words}"
    done = call(*line.split(), cwd=place)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return trial_rows(place / "out")


def computing():
    """Return this process's descendants, without multiprocessing's servers and trackers."""
    processes = []
    for child in psutil.Process().children(recursive=True):
        command = " ".join(child.cmdline())
        if child.ppid() != os.getpid() or not re.search("forkserver|resource_tracker", command):
            processes.append(child)
    return processes


def check(place, fault, words, phase):
    """Check that fp32 has been measured in a phase, and the row of what breaks there."""
    rows = {}
    for row in run(place, fault, words, code=int(fault != "fill")):
        if row["phase"] == phase:
            rows[row["precision"]] = row
    assert rows["fp32"]["status"] in MEASURED
    check_broken(place, fault, rows["amp-bf16"])


def check_broken(place, fault, broken):
    """Check the row of what breaks, and that nothing is left of its process."""
    status, reason = FAULTS[fault]
    detail = broken["detail"]
    assert broken["status"] == status
    assert re.search(reason, detail, re.IGNORECASE)
    assert len(detail) < 1000
    if fault not in ("fill", "kill", "leave"):  # which leave no word
        (log,) = re.findall(r"folder: (logs/.*\.log)$", detail)
        assert (place / "out" / log).exists()
    assert computing() == []


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_precision_that_breaks_is_a_row_with_what_and_where_and_fp32_keeps_its_own(
    place, fault, phase
):
    check(place, fault, f"--phases {phase}", phase)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "throw", "hang"])
def test_a_step_of_an_ablation_that_breaks_is_a_row_and_the_others_keep_theirs(place, fault):
    measured = []
    for row in run(place, fault, "--ladder --techniques set-to-none"):
        name = arm_name(row)
        if name == "amp-bf16":
            check_broken(place, fault, row)
        elif row["status"] in MEASURED:
            measured.append((row["phase"], name))
    for phase in ("memory", "speed"):
        assert (phase, "fp32") in measured
        assert (phase, "fp32+set-to-none") in measured


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "throw"])
def test_a_precision_that_breaks_in_the_search_for_the_largest_batch_is_a_row_and_fp32_has_its_size(
    place, fault
):
    check(place, fault, "--phases memory --batch-sizes max", "fit")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "throw", "kill"])
def test_a_baseline_that_breaks_where_it_is_timed_against_itself_is_a_row(place, fault):
    (broken,) = run(place, fault, "--phases floor --set always=true --precisions fp32")
    assert broken["phase"] == "floor"
    check_broken(place, fault, broken)


@pytest.mark.slow
def test_a_precision_that_crashes_while_it_is_timed_with_fp32_leaves_it_its_row(place):
    check(place, "crash", "--phases speed --set at=5", "speed")


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_model_that_prints_garbage_is_measured(place, phase):
    for row in run(place, "shout", f"--phases {phase}", code=0):
        assert row["status"] in MEASURED


@pytest.mark.slow
def test_a_precision_that_hangs_costs_one_limit_and_not_one_in_each_phase_and_process(place):
    tried = []
    for row in run(place, "hang", "--phases speed,train,inference", depth="--rigorous"):
        if row["precision"] == "amp-bf16":
            assert row["status"] == "timeout"
            tried.append("not tried again" not in row["detail"])
    assert len(tried) > 3
    assert sum(tried) == 1


@pytest.mark.slow
def test_a_trial_that_runs_over_the_time_of_a_run_is_ended_and_has_no_row(place):
    limits = "--trial-timeout 60s --within 16s"
    (row,) = run(place, "hang", f"--phases memory,train {limits}", code=0)
    assert row["phase"] == "memory"
    assert row["precision"] == "fp32"
    assert row["status"] == "ok"
    written = (place / "out" / "run.json").read_text()
    undecided = json.loads(written)["undecided"]
    assert undecided == ["memory of faulty on cpu", "train of faulty on cpu"]
    assert computing() == []
