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
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bench
from bench.data import folder as image_folder
from bench.phases.fit import largest as max_batch
from tests.conftest import TINY, call
from tests.processes import running
from tests.report.builders import text_of
from tests.rows import trial_figures, trial_rows

ROOT = Path(__file__).resolve().parents[2]
CPU = "--suite tiny.py --gpus cpu"
SHORT = f"{CPU} --quick --time-budget 0.3"
ARMS = "--precisions fp32,amp-bf16"


def ask(line, cwd, **more):
    """Run a command line in a folder; return its exit code and what it said."""
    return call(*line.split(), cwd=cwd, **more)


def ask_fine(line, cwd, **more):
    """Run a command line that succeeds."""
    done = ask(line, cwd, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def fill(folder):
    """Write the tiny suite and 8 × 8 images of two classes into a folder."""
    (folder / "tiny.py").write_text(TINY)
    rng = np.random.default_rng(0)
    for split, label, number in product(("train", "test"), ("dark", "light"), range(24)):
        path = folder / "images" / split / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.normal(190 if label == "light" else 60, 20, (8, 8, 3))
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(path)


@pytest.fixture
def place(tmp_path):
    fill(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which a run that measured, timed and trained has finished; and what it said."""
    folder = tmp_path_factory.mktemp("finished")
    fill(folder)
    training = "--epochs 2 --set lr=0.1 --batch-sizes 4 --data folder:images"
    return folder, ask_fine(f"{SHORT} {ARMS} {training} --resume results/mine", folder)


def test_from_images_to_rows(finished):
    folder, _ = finished
    trials = trial_rows(folder / "results" / "mine")
    measured = [(row["phase"], row["precision"]) for row in trials]
    assert measured == list(product(("memory", "speed", "train"), ("fp32", "amp-bf16")))
    for row in trial_figures(folder / "results" / "mine"):
        if row["phase"] == "memory":
            assert row["peak_resident_bytes"] > 0
        elif row["phase"] == "speed":
            assert (row["log_speedup_error"] > 0) == (row["precision"] == "amp-bf16")
        else:
            assert row["test_accuracy_pct"] > 80


def test_a_run_ends_with_its_report(finished):
    folder, done = finished
    report = folder / "reports" / "mine"
    assert f"Report: {Path('reports/mine/report.md')}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Next: `python run_bench.py --suite ")
    suffixes = {path.suffix for path in report.iterdir()}
    assert suffixes == {".md", ".html", ".svg", ".png", ".json", ".csv"}
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

    def read():
        with suppress(OSError):  # how Linux says that the other end of a terminal is closed
            while part := os.read(ours, 65536):
                seen.append(part.decode())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, seen
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


@pytest.mark.slow
def test_explain_says_why_after_the_run_and_again_of_its_folder(place):
    done = ask_fine(f"explain {SHORT} {ARMS} --batch-sizes 4 --out out", place)
    answer = done.stdout[done.stdout.index("Why?") :]
    assert "the profiler's own time" in answer
    assert "unknown" not in answer
    assert ask("explain out", place).stdout.strip() in done.stdout
    words = "--precisions fp32 --phases explain --batch-sizes 4 --out alone"
    alone = ask(f"{SHORT} {words}", place)
    assert "No explanation: it takes fp32 and another precision." in alone.stdout
    assert "under Notes" not in alone.stdout
    assert ask("explain alone", place).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "status"),
    [
        # As a terminal does: to all of its processes.
        pytest.param(lambda pid: os.killpg(pid, signal.SIGINT), 130, id="Ctrl-C"),
        # To it alone, as kill does.
        pytest.param(lambda pid: os.kill(pid, signal.SIGTERM), 143, id="SIGTERM"),
    ],
)
def test_a_run_that_is_stopped_leaves_nobody_computing_and_goes_on_where_it_stopped(
    place, stop, status, monkeypatch
):
    monkeypatch.setenv("TERM", "xterm")
    words = f"{CPU} --precisions fp32 --batch-sizes 4 --phases memory,speed"
    words += " --time-budget 0.3 --target-ci 0.0001%"
    script = [sys.executable, str(ROOT / "run_bench.py"), *words.split(), "--out", "out"]
    with screen() as (terminal, seen):
        process = subprocess.Popen(
            script, cwd=place, stdout=terminal, stderr=terminal, start_new_session=True
        )
        while not trial_rows(place / "out"):
            assert process.poll() is None
            time.sleep(0.05)
        stop(process.pid)
        process.wait()
    assert process.returncode == status
    text = "".join(seen)
    assert "\x1b[" in text  # the live display
    assert "run_bench.py --resume out" in " ".join(text.split())
    assert "Traceback" not in text
    assert not (place / "reports").exists()
    deadline = time.monotonic() + 10
    while running([process.pid]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running([process.pid]) == []
    before = trial_rows(place / "out")
    assert 1 <= len(before) < 4
    with screen() as (terminal, seen), os.fdopen(terminal, "w", closefd=False) as file:
        ask_fine(f"{words} --resume out", place, stdout=file)
    assert "Report:" in "".join(seen)
    after = trial_rows(place / "out")
    assert after[: len(before)] == before
    assert len(after) == 4


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--precisions tf32", "cannot do tf32"),
        ("--sweep width=3,deep", "--sweep width must be a whole number of at most 1e+18, not"),
    ],
)
def test_what_cannot_be_done_is_2_with_a_sentence_and_writes_nothing(place, words, part):
    done = ask(f"{SHORT} {words}", place)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in place.iterdir()} <= {"images", "tiny.py", "__pycache__"}


@pytest.mark.slow
def test_the_largest_batch_is_found_then_measured_at_and_remembered(place, monkeypatch):
    # So that the first size that is tried is the largest.
    monkeypatch.setattr(max_batch, "CPU_LIMIT_S", 0.0)
    words = f"{SHORT} {ARMS} --batch-sizes max --resume out"
    assert "batch max" in ask(f"{words} --dry-run", place).stdout
    assert not (place / "out").exists()
    ask_fine(words, place)
    trials = trial_rows(place / "out")
    measured = [row["phase"] for row in trials]
    assert measured == ["fit", "fit", "memory", "memory", "speed", "speed"]
    assert {row["batch_size"] for row in trials} == {"4"}
    assert "4 fits, 8 not tried (time)" in trials[0]["detail"]
    planned = json.loads((place / "out" / "run.json").read_text())["planned"]
    assert [trial["phase"] for trial in planned] == ["memory", "memory", "speed"]
    assert "Largest batch" in text_of(place / "reports" / "out" / "report.html")
    monkeypatch.setattr(max_batch, "search", lambda *_: pytest.fail("was looked for again"))
    ask_fine("--resume out", place)
    assert trial_rows(place / "out") == trials


@pytest.mark.slow
def test_a_sweep_is_a_row_for_each_combination_and_one_table(place):
    sweepable = TINY.replace("lr: float = 0.01", "lr: float = 0.01, batch_size: int = 4")
    (place / "tiny.py").write_text(sweepable.replace("batch_size=4,", "batch_size=batch_size,"))
    words = f"{CPU} --quick --precisions fp32 --phases speed --time-budget 0.1 --out out"
    words += " --sweep width=8,16 --sweep batch_size=4,5"
    assert "Trials: 4" in ask(f"{words} --dry-run", place).stdout
    ask_fine(words, place)
    swept = []
    for row in trial_rows(place / "out"):
        parameters = json.loads(row["parameters"])
        assert row["batch_size"] == str(parameters["batch_size"])
        swept.append((parameters["width"], parameters["batch_size"]))
    assert swept == [(8, 4), (8, 5), (16, 4), (16, 5)]
    report = text_of(place / "reports" / "out" / "report.html")
    assert report.index("Sweep of tiny's width") < report.index("Sweep of tiny's batch_size")


def test_a_trial_that_fails_is_a_row_and_exit_code_1(place):
    done = ask(f"{SHORT} --batch-sizes 4,8 --set fail=raise --out out", place)
    assert done.returncode == 1
    trials = trial_rows(place / "out")
    assert {row["batch_size"] for row in trials} == {"4", "8"}
    for row in trials:
        assert (row["phase"], row["status"]) == ("memory", "failed")
        assert "the model broke" in row["detail"]
