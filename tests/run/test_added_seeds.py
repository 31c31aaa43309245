"""Seeds that are added to a run which is gone on with."""

import csv

from tests.conftest import TINY, call

ASKED = ("--suite", "tiny.py", "--gpus", "cpu", "--precisions", "fp32", "--phases", "train", "--epochs", "1")


def trained(folder):
    with (folder / "results" / "mine" / "trials.csv").open(newline="") as file:
        return [(row["seed"], row["started"]) for row in csv.DictReader(file)]


def test_seeds_can_be_added_to_a_run_and_are_its_own_from_then_on(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    first = call(*ASKED, "--batch-sizes", "4", "--seeds", "1", "--out", "results/mine", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (before,) = trained(tmp_path)
    refused = call("--resume", "results/mine", "--seeds", "5", cwd=tmp_path)
    assert (refused.returncode, "was started with other seeds" in refused.stderr) == (2, True)
    again = call("--resume", "results/mine", "--seeds", "1,5", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    rows = trained(tmp_path)
    assert rows[0] == before
    assert [seed for seed, _ in rows] == ["1", "5"]
    assert call("--resume", "results/mine", cwd=tmp_path).returncode == 0
    assert trained(tmp_path) == rows
