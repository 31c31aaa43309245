"""The scripts in perf/ at tiny sizes: that they compare like with like, and judge as they say."""

import math
from pathlib import Path

import pytest
import torch

from bench.report.reading.load import load
from bench.results.columns import COLUMNS, OF_PHASES
from bench.stats import Interval
from bench.training import amp
from perf import arms, loops, outcome, scale, synthetic_fleet

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def interval(center, low, high):
    return Interval(center=center, low=low, high=high, n=5)


@pytest.mark.parametrize(("precision", "wanted"), [("fp32", "ieee"), ("tf32", "tf32"), ("amp-bf16", "ieee")])
def test_both_sides_set_the_switches_of_the_precision_that_is_asked_for(monkeypatch, precision, wanted):
    applied = []
    monkeypatch.setattr(amp, "apply", lambda precision: applied.append(precision.fp32))
    suite = arms.open_suite("mlp", width=8)
    for runner in (arms.harness(suite, precision, CPU, 4), arms.by_hand(suite, precision, CPU, 4)):
        runner.activate()
    assert applied == [wanted] * 2


def test_a_made_up_run_has_the_stores_columns_and_its_rows_belong_together(tmp_path):
    tiny = synthetic_fleet.Shape(
        gpus=("V100", "A100"), models=("resnet50",), batch_sizes=(64, 128), processes=2, seeds=2, epochs=2, rounds=6
    )
    folder = synthetic_fleet.write_run(tmp_path / "run", tiny)
    headers = {path.name: path.read_text().split("\n", 1)[0].split(",") for path in folder.glob("*.csv")}
    assert {*headers} >= {"memory.csv", "speed.csv", "train.csv", "blocks.csv", "epochs.csv"}
    for name, header in headers.items():  # of a phase, those that a row has a value in
        assert header == [column for column in COLUMNS[name] if column in header or name not in OF_PHASES]
    runs = load([folder])
    assert set(runs.details["blocks"]["trial"]) <= set(runs.trials["trial"])
    assert len(runs.details["blocks"]) == 2 * (2 + 4) * 2 * 6 * 2  # sizes, precisions, processes, rounds, and both ways
    assert len(runs.details["epochs"]) == (2 + 4) * 2 * 2


@pytest.mark.parametrize(
    ("bounds", "target", "word"),
    [
        ((0.99, 0.97, 1.01), {"least": 1.0}, "MISSED"),
        ((0.99, 0.97, 1.01), {"least": 1.0, "by_interval": True}, "not shown"),
        ((0.9, 0.8, 0.99), {"least": 1.0, "by_interval": True}, "MISSED"),
        ((1.01, 0.97, 1.05), {"least": 1.0, "by_interval": True}, "yes"),
        ((1.004, 0.9, 1.1), {"most": 1.005}, "yes"),
        ((1.006, 0.9, 1.1), {"most": 1.005}, "MISSED"),
        ((1.006, 0.9, 1.1), {"most": 1.005, "by_interval": True}, "not shown"),
        ((1.006, 0.9, 1.1), {}, "–"),
    ],
)
def test_a_target_is_missed_by_the_centre_or_where_asked_by_the_whole_interval(bounds, target, word):
    row = outcome.Outcome(name="x", interval=interval(*bounds), **target)
    assert (row.word, row.cells[-1], row.missed) == (word, word, word == "MISSED")


def test_the_table_is_markdown_and_the_exit_code_says_whether_all_is_met(capsys):
    met = outcome.Outcome(name="met", interval=interval(1.0, 0.9, 1.1), most=2)
    missed = outcome.Outcome(name="missed", interval=interval(3.0, 2.9, 3.1), most=2)
    assert outcome.report("T", [met]) == 0
    assert outcome.report("T", [met, missed], ["a note"]) == 1
    printed = capsys.readouterr().out
    assert "| missed | 3 [2.9, 3.1] | ≤ 2 | MISSED |" in printed
    assert "a note" in printed
    assert f"torch {torch.__version__.split('+')[0]}" in printed


def test_the_harness_and_the_usual_loop_train_on_the_same_images():
    suite = arms.open_suite("resnet20")
    source = loops.Source(None, 8, suite.data)
    batch = next(source.batches(8, CPU).train(1))
    assert batch[0].shape == (8, 3, 32, 32)
    pixels = torch.as_tensor(source.pictures.pixels).permute(0, 3, 1, 2)
    assert torch.equal(pixels, source.images.train.images)
    assert sorted(batch[1].tolist()) == sorted(source.pictures.labels)


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["torchvision", "lightning"])
def test_a_peers_loop_trains_in_one_precision_after_the_other(peer):
    if why := loops.why_not(peer):
        pytest.skip(why)
    suite = arms.open_suite("resnet20")
    source = loops.Source(None, 8, suite.data)
    for precision in ("fp32", "amp-bf16"):
        task = loops.Task(suite=suite, source=source, precision=precision, device=CPU, batch_size=4, epochs=1)
        epoch = loops.LOOPS[peer](task)
        assert 0 < epoch() < math.inf


def test_a_large_run_is_planned_stopped_and_resumed_with_each_trial_once(tmp_path, capsys):
    for part in scale.PARTS:
        scale.child(part, 20, 2, tmp_path / "run")
    assert "Trials: 20" in capsys.readouterr().out
    runs = load([tmp_path / "run"])
    assert len(runs.trials) == 4 * (2 + 3 * 2)
    assert len(runs.details["blocks"]) == 4 * 3 * 2 * 4
