"""The command line as a user meets it: a process, its exit code, its files."""

import csv
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
SHORT = ("--quick", "--time-budget", "0.3")


def command(*words):
    return [sys.executable, str(ROOT / "run_bench.py"), *map(str, words)]


def run(*words, cwd):
    return subprocess.run(command(*words), capture_output=True, text=True, cwd=cwd, check=False)


def trials(folder):
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def images(tmp_path):
    """Two classes that a small model can tell apart, 8 × 8."""
    chance = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for label, mean in (("dark", 60), ("light", 190)):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = chance.normal(mean, 20, (8, 8, 3)).clip(0, 255).astype("uint8")
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "images"


def test_from_images_to_a_report_and_again_without_measuring(tmp_path, tiny_file, images):
    words = ("--suite", tiny_file, "--gpus", "cpu", *SHORT, "--epochs", 2, "--set", "lr=0.1", "--batch-sizes", "4,8")
    words = (*words, "--data", f"folder:{images}", "--resume", "results/mine")
    first = run(*words, cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    rows = trials(tmp_path / "results" / "mine")
    assert [(row["phase"], row["precision"]) for row in rows if row["batch_size"] == "4"] == [
        ("memory", "fp32"),
        ("memory", "amp-bf16"),
        ("speed", "fp32"),
        ("speed", "amp-bf16"),
        ("train", "fp32"),
        ("train", "amp-bf16"),
    ]
    assert all(float(row["test_accuracy_pct"]) > 80 for row in rows if row["phase"] == "train")
    assert all(float(row["peak_resident_bytes"]) > 0 for row in rows if row["phase"] == "memory")
    speed = next(row for row in rows if row["phase"] == "speed" and row["precision"] == "amp-bf16")
    assert float(speed["speedup_low"]) < float(speed["speedup"]) < float(speed["speedup_high"])
    report = tmp_path / "reports" / "mine"
    assert f"Report: {Path('reports/mine/report.md')}" in first.stdout
    assert {path.suffix for path in report.iterdir()} == {".md", ".html", ".svg", ".png"}
    assert "amp-bf16" in (report / "report.md").read_text()
    again = run(*words, cwd=tmp_path)
    assert again.returncode == 0
    assert trials(tmp_path / "results" / "mine") == rows
    other = run(*words[:-2], "--seeds", 1, "--resume", "results/mine", cwd=tmp_path)
    assert other.returncode == 2
    assert "was started with other seeds" in other.stderr
    bare = run("--resume", "results/mine", cwd=tmp_path)
    assert bare.returncode == 0
    assert trials(tmp_path / "results" / "mine") == rows


def test_the_speedup_in_trials_is_the_one_that_the_blocks_give(tmp_path, tiny_file):
    done = run("--suite", tiny_file, "--gpus", "cpu", *SHORT, "--batch-sizes", 8, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out" / "blocks.csv").open(newline="") as file:
        blocks = list(csv.DictReader(file))
    from bench import stats

    per_quad = {}
    for block in blocks:
        times = per_quad.setdefault(int(block["quad"]), {}).setdefault(block["precision"], [])
        times.append(float(block["time_ms"]) / int(block["steps"]))
    logs = [stats.quad_log_ratio(tuple(quad["fp32"]), tuple(quad["amp-bf16"])) for quad in per_quad.values()]
    expected = stats.quads_interval(logs).exp()
    row = next(row for row in trials(tmp_path / "out") if row["speedup"])
    found = tuple(float(row[name]) for name in ("speedup", "speedup_low", "speedup_high"))
    assert found == pytest.approx((expected.center, expected.low, expected.high))


def test_a_terminal_gets_a_live_display_and_the_same_results(tmp_path, tiny_file):
    parent, child = pty.openpty()
    words = command("--suite", tiny_file, "--gpus", "cpu", *SHORT, "--batch-sizes", 4, "--out", "out")
    process = subprocess.Popen(words, stdout=child, stderr=child, cwd=tmp_path, env={**os.environ, "TERM": "xterm"})
    os.close(child)
    seen = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # how Linux says that the other end of a terminal is closed
            break
        if not part:
            break
        seen += part
    os.close(parent)
    assert process.wait() == 0, seen.decode()
    text = seen.decode()
    assert "starting" in text
    assert "\x1b[" in text
    assert "Report:" in text
    assert len(trials(tmp_path / "out")) == 4


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path, tiny_file):
    words = ("--suite", tiny_file, "--gpus", "cpu", "--batch-sizes", 4, "--phases", "memory,speed")
    words = (*words, "--time-budget", "1s", "--target-ci", "0.0001%")
    process = subprocess.Popen(command(*words, "--out", "out"), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "out" / "trials.csv").exists() or len(trials(tmp_path / "out")) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate()
    assert process.returncode == 130
    assert "go on with --resume out" in text
    before = trials(tmp_path / "out")
    assert 2 <= len(before) < 8
    done = run(*words, "--resume", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = trials(tmp_path / "out")
    assert after[: len(before)] == before
    assert len(after) == 8


def test_what_cannot_be_done_exits_2_with_a_sentence_and_writes_nothing(tmp_path, tiny_file, images):
    (images / "train" / "dark" / "broken.png").write_bytes(b"no image")
    before = sorted(tmp_path.rglob("*"))
    suite = ("--suite", tiny_file, "--gpus", "cpu", *SHORT)
    for words, part in (
        ((*suite, "--data", f"folder:{images}"), "broken.png"),
        ((*suite, "--data", "folder:missing"), "'missing' does not exist"),
        ((*suite, "--precisions", "fp32,tf32"), "cannot do tf32"),
        ((*suite, "--set", "depth=3"), "No suite here has a parameter 'depth'. Available: fail, lr, width"),
        ((*suite, "--out", images), "exists already"),
    ):
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert part in done.stderr
        assert "Traceback" not in done.stderr
        assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in str(path)] == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpus_where_there_are_none_are_refused_with_what_to_do(tmp_path):
    done = run("--suite", "resnet50", "--gpus", "0,1", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("run_bench: There is no GPU 0 and no GPU 1 here: ")
    assert "Use --gpus cpu" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_fails_is_a_row_and_exit_code_1(tmp_path, tiny_file):
    done = run("--suite", tiny_file, "--gpus", "cpu", *SHORT, "--set", "fail=raise", "--out", "out", cwd=tmp_path)
    assert done.returncode == 1
    rows = trials(tmp_path / "out")
    assert {row["status"] for row in rows} == {"failed"}
    assert all("the model broke" in row["detail"] for row in rows)
