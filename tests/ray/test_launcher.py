"""Trials on a Ray cluster whose nodes come and go."""

import json
import os
from contextlib import closing

import pytest

from tests.conftest import call
from tests.ray.conftest import Nodes, after_first_row_of, run, slow
from tests.rows import rows, trial_rows

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def nodes():
    with closing(Nodes()) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_plan_over_two_accelerators_is_run_and_every_trial_is_accounted_for(nodes, suite):
    nodes.need("V100", "A100")
    folder, done = run(
        nodes, suite, "--phases", "memory,train", "--epochs", "2", "--precisions", "fp32"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trials = [(row["placement"], row["phase"], row["status"]) for row in trial_rows(folder)]
    assert sorted(trials) == [
        ("A100", "memory", "ok"),
        ("A100", "train", "ok"),
        ("V100", "memory", "ok"),
        ("V100", "train", "ok"),
    ]
    assert len(rows(folder, "epochs.csv")) == 4
    written = json.loads((folder / "run.json").read_text())
    machines = written["environment"]["machines"]
    assert [machine["devices"][0]["placement"] for machine in machines] == ["A100", "V100"]


@pytest.mark.slow
def test_trials_of_a_lost_node_fail_with_the_reason_the_others_go_on_and_resume_tries_again(
    nodes, suite
):
    nodes.need("V100", "A100")
    with after_first_row_of("V100", suite.parent / "run", lambda: nodes.lose("V100")):
        folder, done = run(nodes, slow(suite), "--phases", "memory,train")
    assert done.returncode == 1, done.stdout + done.stderr
    trials = trial_rows(folder)
    kept = [row["status"] for row in trials if row["placement"] == "A100"]
    assert kept == ["ok"] * 4
    lost = [row for row in trials if row["placement"] == "V100"]
    failed = [row for row in lost if row["status"] == "failed"]
    assert {row["status"] for row in lost} == {"ok", "failed"}
    assert all(" was lost (" in row["detail"] for row in failed)
    unfit = sum(row["phase"] == "memory" for row in failed)  # is not tried further
    assert len(lost) + unfit == 4
    nodes.need("V100")
    done = call("--resume", folder, cwd=suite.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["status"] for row in trial_rows(folder)] == ["ok"] * 8


@pytest.mark.slow
def test_what_the_user_can_mend_is_told_before_anything_runs(nodes, suite):
    nodes.need("A100")
    folder, done = run(nodes, suite, "--accelerators", "A100,H100")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "H100 takes 1 H100, and the cluster has 0. Its types are: A100" in said
    folder, done = run(nodes, suite, "--accelerators", "A100,A100+A100")
    assert done.returncode == 2
    assert "A100+A100 takes 2 A100, and the cluster has 1." in done.stderr
    words = ("--accelerators", "A100", "--phases", "train")
    folder, done = run(nodes, suite, *words, "--data", f"folder:{suite.parent / 'nowhere'}")
    assert done.returncode == 2
    assert f"A100 on {os.uname().nodename} (127.0.0.3): " in done.stderr
    assert "nowhere" in done.stderr
    assert not folder.exists()
