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

import numpy as np
import pytest
from PIL import Image

import bench
from bench.data import folder as image_folder
from bench.phases.fit import largest as max_batch
from bench.spec.own_modules import ROOT
from tests.conftest import TINY, call
from tests.processes import running
from tests.rows import trial_figures, trial_rows

CPU = "--suite tiny.py --gpus cpu"
SHORT = f"{CPU} --quick --time-budget 0.3"
ARMS = "--precisions fp32,amp-bf16"


def ask(line, cwd, code=0, stdout=None):
    """Run a command line in a folder to an exit code; return what it said."""
    done = call(*line.split(), cwd=cwd, stdout=stdout)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def place(tiny_file):
    return tiny_file.parent


def fill(folder, brightness):
    """Write 24 images of 8 × 8 into a folder."""
    folder.mkdir(parents=True)
    for number in range(24):
        pixels = np.full((8, 8, 3), brightness + number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which a run that measured, timed and trained has finished; and what it said."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.py").write_text(TINY)
    for split in ("train", "test"):
        fill(folder / "images" / split / "dark", 40)
        fill(folder / "images" / split / "light", 180)
    training = "--epochs 2 --set lr=0.1 --batch-sizes 4 --data folder:images"
    done = ask(f"{SHORT} {ARMS} {training} --resume results/mine", folder)
    return folder, done.stdout


def test_from_images_to_rows(finished):
    folder, _ = finished
    rows = trial_figures(folder / "results" / "mine")
    measured = [(row["phase"], row["precision"]) for row in rows]
    assert measured == list(product(("memory", "speed", "train"), ("fp32", "amp-bf16")))
    for row in rows:
        if row["phase"] == "memory":
            assert row["peak_resident_bytes"] > 0
        elif row["phase"] == "train":
            assert row["test_accuracy_pct"] > 80
    compared = rows[3]
    assert compared["log_speedup_error"] > 0


def test_a_run_ends_with_its_report(finished):
    folder, printed = finished
    report = folder / "reports" / "mine"
    assert "Report: reports/mine/report.md" in printed
    last = printed.splitlines()[-1]
    assert last.startswith("Next: `python run_bench.py --suite ")
    suffixes = {path.suffix for path in report.iterdir()}
    assert suffixes == {".md", ".html", ".svg", ".png", ".json", ".csv"}
    assert "amp-bf16" in (report / "report.md").read_text()


def test_run_json_tells_the_plan_and_what_the_images_are_known_by(finished):
    folder, _ = finished
    results = folder / "results" / "mine"
    run = json.loads((results / "run.json").read_text())
    assert run["version"] == bench.__version__
    planned = {trial["trial"] for trial in run["planned"]}
    assert planned == {row["trial"] for row in trial_rows(results)}
    (images,) = run["data"]
    path = str(folder / "images")
    assert images["source"] == f"folder:{path}"
    assert images["classes"] == 2
    assert images["train_samples"] == 48
    assert images["fingerprint"] == image_folder.fingerprint(path)


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
    printed = ask(f"explain {SHORT} {ARMS} --batch-sizes 4 --out out", place).stdout
    answer = printed[printed.index("Why?") :]
    assert "the profiler's own time" in answer
    assert "unknown" not in answer
    again = ask("explain out", place).stdout
    assert again.strip() in printed
    words = "--precisions fp32 --phases explain --batch-sizes 4 --out alone"
    alone = ask(f"{SHORT} {words}", place).stdout
    assert "No explanation: it takes fp32 and another precision." in alone
    assert "failed" not in alone
    ask("explain alone", place, code=2)


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
    while running([process.pid]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    before = trial_rows(place / "out")
    assert len(before) < 4
    with screen() as (terminal, seen), os.fdopen(terminal, "w", closefd=False) as file:
        ask(f"{words} --resume out", place, stdout=file)
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
    said = ask(f"{SHORT} {words}", place, code=2).stderr
    assert part in said
    assert "Traceback" not in said
    assert {path.name for path in place.iterdir()} <= {"tiny.py", "__pycache__"}


@pytest.mark.slow
def test_the_largest_batch_is_found_then_measured_at_and_remembered(place, monkeypatch):
    # So that the first size that is tried is the largest.
    monkeypatch.setattr(max_batch, "CPU_LIMIT_S", 0.0)
    words = f"{SHORT} {ARMS} --batch-sizes max --resume out"
    assert "batch max" in ask(f"{words} --dry-run", place).stdout
    assert not (place / "out").exists()
    ask(words, place)
    trials = trial_rows(place / "out")
    phases = [row["phase"] for row in trials]
    assert phases == ["fit", "fit", "memory", "memory", "speed", "speed"]
    assert "4 fits, 8 not tried (time)" in trials[0]["detail"]
    for row in trials:
        assert row["batch_size"] == "4"
    monkeypatch.setattr(max_batch, "search", lambda *_: pytest.fail("was looked for again"))
    ask("--resume out", place)
    assert trial_rows(place / "out") == trials


@pytest.mark.slow
def test_a_sweep_is_a_row_for_each_combination(place):
    suite = TINY.replace("lr: float = 0.01", "lr: float = 0.01, batch_size: int = 4")
    suite = suite.replace("batch_size=4,", "batch_size=batch_size,")
    (place / "tiny.py").write_text(suite)
    words = f"{CPU} --quick --precisions fp32 --phases speed --time-budget 0.1 --out out"
    words += " --sweep width=8,16 --sweep batch_size=4,5"
    assert "Trials: 4" in ask(f"{words} --dry-run", place).stdout
    ask(words, place)
    swept = []
    for row in trial_rows(place / "out"):
        parameters = json.loads(row["parameters"])
        width = parameters["width"]
        size = parameters["batch_size"]
        assert row["batch_size"] == str(size)
        swept.append((width, size))
    assert swept == [(8, 4), (8, 5), (16, 4), (16, 5)]


def test_a_trial_that_fails_is_a_row_and_exit_code_1(place):
    ask(f"{SHORT} --batch-sizes 4,8 --set fail=raise --out out", place, code=1)
    trials = trial_rows(place / "out")
    sizes = {row["batch_size"] for row in trials}
    assert sizes == {"4", "8"}
    for row in trials:
        assert row["phase"] == "memory"
        assert row["status"] == "failed"
        assert "the model broke" in row["detail"]
