"""The command line as a user meets it: words in; an exit code, files and a report out."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

import bench
from bench.data import folder as image_folder
from bench.phases.fit import largest as max_batch
from tests.conftest import TINY, call
from tests.report.builders import text_of
from tests.rows import trial_figures, trial_rows

ROOT = Path(__file__).resolve().parents[2]
CPU = ("--suite", "tiny.py", "--gpus", "cpu")
SHORT = (*CPU, "--quick", "--time-budget", "0.3")
ARMS = ("--precisions", "fp32,amp-bf16")
FULL = (
    *SHORT,
    *ARMS,
    "--epochs",
    "2",
    "--set",
    "lr=0.1",
    "--batch-sizes",
    "4",
    "--data",
    "folder:images",
)


def fill(folder):
    """Write the tiny suite and 8 × 8 images of two classes into a folder."""
    (folder / "tiny.py").write_text(TINY)
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for label, mean in (("dark", 60), ("light", 190)):
            (folder / "images" / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.normal(mean, 20, (8, 8, 3)).clip(0, 255).astype("uint8")
                Image.fromarray(pixels).save(folder / "images" / split / label / f"{number}.png")


@pytest.fixture
def place(tmp_path):
    fill(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which a run that measured, timed and trained has finished; and what it said."""
    folder = tmp_path_factory.mktemp("finished")
    fill(folder)
    return folder, call(*FULL, "--resume", "results/mine", cwd=folder)


def test_from_images_to_rows(finished):
    folder, done = finished
    assert done.returncode == 0, done.stdout + done.stderr
    trials = trial_rows(folder / "results" / "mine")
    assert [(row["phase"], row["precision"]) for row in trials] == [
        (phase, precision)
        for phase in ("memory", "speed", "train")
        for precision in ("fp32", "amp-bf16")
    ]
    figures = trial_figures(folder / "results" / "mine")
    assert [row["precision"] for row in figures if row["log_speedup_error"] > 0] == ["amp-bf16"]
    trained = [row for row in figures if row["phase"] == "train"]
    assert all(row["test_accuracy_pct"] > 80 for row in trained)
    assert all(float(row["peak_resident_bytes"]) > 0 for row in trials if row["phase"] == "memory")


def test_a_run_ends_with_its_report(finished):
    folder, done = finished
    report = folder / "reports" / "mine"
    assert f"Report: {Path('reports/mine/report.md')}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Next: `python run_bench.py --suite ")
    assert {path.suffix for path in report.iterdir()} == {
        ".md",
        ".html",
        ".svg",
        ".png",
        ".json",
        ".csv",
    }
    assert "amp-bf16" in (report / "report.md").read_text()


def test_run_json_tells_the_plan_and_what_the_images_are_known_by(finished):
    folder, _ = finished
    run = json.loads((folder / "results" / "mine" / "run.json").read_text())
    trials = trial_rows(folder / "results" / "mine")
    assert run["version"] == bench.__version__
    assert {trial["trial"] for trial in run["planned"]} == {row["trial"] for row in trials}
    (images,) = run["data"]
    assert images["source"] == f"folder:{folder / 'images'}"
    assert (images["classes"], images["train_samples"]) == (2, 48)
    assert images["fingerprint"] == image_folder.fingerprint(str(folder / "images"))


@contextmanager
def screen():
    """Yield a terminal to write to, and a list of what has been written once every process has
    closed it.
    """
    ours, theirs = pty.openpty()
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(read_all(ours)))
    reader.start()
    try:
        yield theirs, seen
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


def read_all(terminal):
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end of a terminal is closed
            return
        if not part:
            return
        yield part.decode()


@pytest.mark.slow
def test_a_terminal_gets_a_live_display_and_the_same_results(place, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with screen() as (terminal, seen), os.fdopen(terminal, "w", closefd=False) as file:
        done = call(
            *SHORT,
            "--precisions",
            "fp32",
            "--batch-sizes",
            4,
            "--out",
            "out",
            cwd=place,
            stdout=file,
        )
    text = "".join(seen)
    assert done.returncode == 0, done.stderr
    assert "starting" in text
    assert "\x1b[" in text
    assert "Report:" in text
    assert [row["phase"] for row in trial_rows(place / "out")] == ["memory", "speed"]


def running(session):
    """Return the processes of a session that still run."""
    pids = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                pids.append(pid)
    return pids


@pytest.mark.slow
def test_explain_says_why_after_the_run_and_again_of_its_folder(place):
    done = call("explain", *SHORT, *ARMS, "--batch-sizes", "4", "--out", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    answer = done.stdout[done.stdout.index("Why?") :]
    assert "the profiler's own time" in answer
    assert "unknown" not in answer
    again = call("explain", "out", cwd=place)
    assert again.stdout.strip() in done.stdout
    alone = call(
        *SHORT,
        "--precisions",
        "fp32",
        "--phases",
        "explain",
        "--batch-sizes",
        "4",
        "--out",
        "alone",
        cwd=place,
    )
    assert "No explanation: it takes fp32 and another precision." in alone.stdout
    assert "under Notes" not in alone.stdout
    assert call("explain", "alone", cwd=place).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "status"),
    [
        # As a terminal does: to all of its processes.
        (
            lambda process: os.killpg(process.pid, signal.SIGINT),
            130,
        ),
        pytest.param(lambda process: process.terminate(), 143),  # to it alone, as kill does
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_run_that_is_stopped_leaves_nobody_computing_and_goes_on_where_it_stopped(
    place, stop, status
):
    words = (*CPU, "--precisions", "fp32", "--batch-sizes", "4", "--phases", "memory,speed")
    words = (*words, "--time-budget", "0.3", "--target-ci", "0.0001%")
    script = [sys.executable, str(ROOT / "run_bench.py"), *words, "--out", "out"]
    with screen() as (terminal, seen):
        process = subprocess.Popen(
            script, cwd=place, stdout=terminal, stderr=terminal, start_new_session=True
        )
        while not trial_rows(place / "out"):
            assert process.poll() is None
            time.sleep(0.05)
        stop(process)
        process.wait()
    assert process.returncode == status
    text = "".join(seen)
    assert "run_bench.py --resume out" in " ".join(text.split())
    assert "Traceback" not in text
    assert not (place / "reports").exists()
    deadline = time.monotonic() + 10
    while running(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(process.pid) == []
    before = trial_rows(place / "out")
    assert 1 <= len(before) < 4
    assert call("report", "out", cwd=place).returncode == 0
    assert "is unfinished" in text_of(place / "reports" / "out" / "report.html")
    done = call(*words, "--resume", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    after = trial_rows(place / "out")
    assert after[: len(before)] == before
    assert len(after) == 4


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--data", "folder:missing"), "There is no folder 'missing'"),
        (("--precisions", "tf32"), "cannot do tf32"),
        (("--set", "depth=3"), "No suite here has a parameter 'depth'. Available: fail, lr, width"),
        (
            ("--sweep", "depth=3,4"),
            "No suite here has a parameter 'depth'. Available: fail, lr, width",
        ),
        (
            ("--sweep", "width=3,deep"),
            "--sweep width must be a whole number of at most 1e+18, not 'deep'",
        ),
        (("--out", "images"), "exists already"),
    ],
)
def test_what_cannot_be_done_is_2_with_a_sentence_and_writes_nothing(place, words, part):
    before = sorted(place.rglob("*"))
    done = call(*SHORT, *words, cwd=place)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in sorted(place.rglob("*")) if "__pycache__" not in str(path)] == before


@pytest.mark.slow
def test_the_largest_batch_is_found_then_measured_at_and_remembered(place, monkeypatch):
    # So that the first size that is tried is the largest.
    monkeypatch.setattr(max_batch, "CPU_LIMIT_S", 0.0)
    words = (*SHORT, *ARMS, "--batch-sizes", "max", "--resume", "out")
    dry = call(*words, "--dry-run", cwd=place)
    assert "batch max" in dry.stdout
    assert not (place / "out").exists()
    done = call(*words, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = trial_rows(place / "out")
    assert [(row["phase"], row["batch_size"]) for row in trials] == [
        (phase, "4") for phase in ("fit", "fit", "memory", "memory", "speed", "speed")
    ]
    assert "4 fits, 8 not tried (time)" in trials[0]["detail"]
    planned = json.loads((place / "out" / "run.json").read_text())["planned"]
    assert [trial["phase"] for trial in planned] == ["memory", "memory", "speed"]
    assert "Largest batch" in text_of(place / "reports" / "out" / "report.html")
    monkeypatch.setattr(max_batch, "search", lambda *_: pytest.fail("was looked for again"))
    assert call("--resume", "out", cwd=place).returncode == 0
    assert trial_rows(place / "out") == trials


@pytest.mark.slow
def test_a_sweep_is_a_row_for_each_combination_and_one_table(place):
    words = ("--precisions", "fp32", "--phases", "speed", "--time-budget", "0.1")
    words = (
        *CPU,
        "--quick",
        *words,
        "--sweep",
        "width=8,16",
        "--sweep",
        "batch_size=4,5",
        "--out",
        "out",
    )
    sweepable = TINY.replace("lr: float = 0.01", "lr: float = 0.01, batch_size: int = 4")
    (place / "tiny.py").write_text(sweepable.replace("batch_size=4,", "batch_size=batch_size,"))
    assert "Trials: 4" in call(*words, "--dry-run", cwd=place).stdout
    done = call(*words, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [
        (json.loads(row["parameters"]), row["batch_size"]) for row in trial_rows(place / "out")
    ] == [
        ({"batch_size": 4, "width": 8}, "4"),
        ({"batch_size": 5, "width": 8}, "5"),
        ({"batch_size": 4, "width": 16}, "4"),
        ({"batch_size": 5, "width": 16}, "5"),
    ]
    report = text_of(place / "reports" / "out" / "report.html")
    assert report.index("Sweep of tiny's width") < report.index("Sweep of tiny's batch_size")


def test_a_trial_that_fails_is_a_row_and_exit_code_1(place):
    done = call(*SHORT, "--batch-sizes", "4,8", "--set", "fail=raise", "--out", "out", cwd=place)
    assert done.returncode == 1
    trials = trial_rows(place / "out")
    assert {(row["batch_size"], row["phase"], row["status"]) for row in trials} == {
        (batch, "memory", "failed") for batch in ("4", "8")
    }
    assert all("the model broke" in row["detail"] for row in trials)
