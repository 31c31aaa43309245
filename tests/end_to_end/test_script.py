"""A script of known times is measured right, whatever else it does, and what is no comparison is refused."""

import csv
import json

import pytest

from tests.conftest import call

METRONOME = """
import argparse, time

parser = argparse.ArgumentParser()
parser.add_argument("--ms", type=float, default=30)
parser.add_argument("--start", type=float, default=0)
parser.add_argument("--slow-evaluation", action="store_true")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--no-effect", action="store_true")
options = parser.parse_args()
time.sleep(options.start)

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model, teacher = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
optimizers = [torch.optim.SGD([model.weight]), torch.optim.Adam([model.bias])]
scaler = torch.amp.GradScaler("cpu")
end = time.perf_counter()
for step in range(200):
    for part in range(2):
        x = torch.randn(4, 8)
        with torch.no_grad():
            target = teacher(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
            loss = (model(x) - target).square().mean()
        if step in (20, 31, 32):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
    end += options.ms / 1e3
    time.sleep(max(0.0, end - time.perf_counter()))
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
    if step % 15 == 14:
        model.eval()
        with torch.no_grad():
            model(x)
        time.sleep(0.2 if options.slow_evaluation else 0.01)
        model.train()
        end = time.perf_counter()
"""


def rows(folder):
    with (folder / "trials.csv").open() as file:
        return {(row["phase"], row["precision"]): row for row in csv.DictReader(file)}


@pytest.mark.slow
@pytest.mark.timing
def test_a_metronome_reads_what_it_is_set_to(tmp_path):
    (tmp_path / "train.py").write_text(METRONOME)
    mixed = "mixed=--ms 20 --bf16 --slow-evaluation --start 0.5"
    words = ["script", "--quick", "--arm", "plain=--ms 30", "--arm", mixed, "--gpus", "cpu", "--out", "run"]
    done = call(*words, "--", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = rows(tmp_path / "run")["speed", "mixed"]
    assert float(measured["speedup"]) == pytest.approx(1.5, abs=0.02)
    assert measured["skipped_steps"] == "6"  # three in each of its two processes
    assert "plain, its reference, is called fp32" in (tmp_path / "reports" / "run" / "report.md").read_text()


@pytest.mark.slow
def test_an_arm_without_effect_and_one_that_fails_are_refused_and_the_rest_is_measured_once(tmp_path):
    (tmp_path / "train.py").write_text(METRONOME)
    arms = [f"--arm={arm}" for arm in ("fp32=--ms 4", "same=--ms 4 --no-effect", "broken=--flag", "bf16=--ms 4 --bf16")]
    words = ["script", "--quick", *arms, "--steps", "20", "--gpus", "cpu", "--out", "run", "--", "train.py"]
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 1
    row = rows(tmp_path / "run")
    assert "changed nothing that was computed" in row["memory", "same"]["detail"]
    assert "unrecognized arguments: --flag" in row["memory", "broken"]["detail"]
    assert row["speed", "bf16"]["status"] == "ok"
    assert ("speed", "same") not in row
    assert json.loads((tmp_path / "run" / "run.json").read_text())["request"]["script"]["steps"] == 20
    measured = (tmp_path / "run" / "blocks.csv").read_bytes()
    assert call("--resume", "run", cwd=tmp_path).returncode == 1
    assert (tmp_path / "run" / "blocks.csv").read_bytes() == measured
