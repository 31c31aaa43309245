"""A model that breaks under autocast alone, in each phase: its row says what and where, fp32 keeps
its own.
"""

import json
import os
import re

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
LINES = {
    name: next(
        n for n, line in enumerate(FAULTY.splitlines(), start=1) if line.startswith(f"def {name}(")
    )
    + 1
    for name in ("crash", "end", "throw")
}
FAULTS = {
    "crash": ("failed", rf"by SIGSEGV \(faulty\.py:{LINES['crash']}\)"),
    "kill": ("failed", "by SIGKILL"),
    "leave": ("failed", "by exit code 7"),
    "end": ("failed", rf"SystemExit: 3 \(faulty\.py:{LINES['end']}\)"),
    "throw": ("failed", rf"RuntimeError: the model broke \(faulty\.py:{LINES['throw']}\)"),
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


def run(place, fault, phases, *words):
    """Run the suite with a fault; return how that ended, and the rows."""
    depth = () if "--rigorous" in words else ("--quick",)
    limit = "2s" if fault == "hang" else "60s"
    short = (
        *depth,
        "--time-budget",
        0.3,
        "--trial-timeout",
        limit,
        "--batch-sizes",
        4,
        "--gpus",
        "cpu",
    )
    asked = ("--phases", phases) if phases else ()
    given = ("--suite", "./faulty.py", "--set", f"fault={fault}", *asked, "--out", "out")
    done = call(*given, *short, "--precisions", "fp32,amp-bf16", *words, cwd=place)
    return done, trial_rows(place / "out")


def computing():
    """Return this process's descendants, without multiprocessing's servers and trackers."""
    every = psutil.Process(os.getpid()).children(recursive=True)
    return [
        child
        for child in every
        if not re.search("forkserver|resource_tracker", " ".join(child.cmdline()))
    ] + [child for child in every if child.ppid() != os.getpid()]


def check(place, fault, phase, *words):
    done, rows = run(place, fault, phase, *words)
    assert done.returncode == (0 if FAULTS[fault][0] == "oom" else 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    by_name = {row["precision"]: row for row in rows if row["phase"] == phase}
    assert by_name["fp32"]["status"] in MEASURED
    check_broken(place, fault, by_name["amp-bf16"])


def check_broken(place, fault, broken):
    """Check the row of what breaks, and that nothing is left of its process."""
    status, reason = FAULTS[fault]
    assert broken["status"] == status
    assert re.search(reason, broken["detail"], re.IGNORECASE)
    assert len(broken["detail"]) < 1000
    if status != "oom" and fault not in ("kill", "leave"):  # which leave no word
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
    done, rows = run(place, fault, "", "--ladder", "--techniques", "set-to-none")
    assert done.returncode == 1, done.stdout + done.stderr
    arms = {(row["phase"], arm_name(row)): row for row in rows}
    (broken,) = (row for (_, name), row in arms.items() if name == "amp-bf16")
    check_broken(place, fault, broken)
    for phase in ("memory", "speed"):
        measured = {
            name for (of, name), row in arms.items() if of == phase and row["status"] in MEASURED
        }
        assert measured >= {"fp32", "fp32+set-to-none"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "throw"])
def test_a_precision_that_breaks_in_the_search_for_the_largest_batch_is_a_row_and_fp32_has_its_size(
    place, fault
):
    _, rows = run(place, fault, "memory", "--batch-sizes", "max")
    by_name = {row["precision"]: row for row in rows if row["phase"] == "fit"}
    assert by_name["fp32"]["status"] == "ok"
    check_broken(place, fault, by_name["amp-bf16"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "throw", "kill"])
def test_a_baseline_that_breaks_where_it_is_timed_against_itself_is_a_row(place, fault):
    done, (broken,) = run(place, fault, "floor", "--set", "always=true", "--precisions", "fp32")
    assert done.returncode == 1, done.stdout + done.stderr
    assert broken["phase"] == "floor"
    check_broken(place, fault, broken)


@pytest.mark.slow
def test_a_precision_that_crashes_while_it_is_timed_with_fp32_leaves_it_its_row(place):
    check(place, "crash", "speed", "--set", "at=5")


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_model_that_prints_garbage_is_measured(place, phase):
    done, rows = run(place, "shout", phase)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["status"] for row in rows} <= {*MEASURED}


@pytest.mark.slow
def test_a_precision_that_hangs_costs_one_limit_and_not_one_in_each_phase_and_process(place):
    done, rows = run(place, "hang", "speed,train,inference", "--rigorous")
    assert done.returncode == 1
    broken = [row for row in rows if row["precision"] == "amp-bf16"]
    assert {row["status"] for row in broken} == {"timeout"}
    assert len(broken) > 3
    assert sum("not tried again" not in row["detail"] for row in broken) == 1


@pytest.mark.slow
def test_a_trial_that_runs_over_the_time_of_a_run_is_ended_and_has_no_row(place):
    done, rows = run(place, "hang", "memory,train", "--trial-timeout", "60s", "--within", "16s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(row["phase"], row["precision"], row["status"]) for row in rows} == {
        ("memory", "fp32", "ok")
    }
    assert json.loads((place / "out" / "run.json").read_text())["undecided"] == [
        "memory of faulty on cpu",
        "train of faulty on cpu",
    ]
    assert computing() == []
