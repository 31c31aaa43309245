"""Trials on a Ray cluster whose nodes come and go."""

import os
from collections import defaultdict
from contextlib import closing

import pytest

from bench.results.run_json import read_run
from tests.ray.conftest import Nodes, after_first_row_of, assert_resumed, run, slow
from tests.rows import rows, trial_rows

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def nodes():
    with closing(Nodes()) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_plan_over_two_accelerators_is_run_and_every_trial_is_accounted_for(nodes, suite):
    nodes.need("V100", "A100")
    words = "--phases memory,train --epochs 2 --precisions fp32"
    folder, done = run(nodes, suite, *words.split())
    assert done.returncode == 0, done.stdout + done.stderr
    trials = []
    for row in trial_rows(folder):
        trials.append((row["placement"], row["phase"], row["status"]))
    assert sorted(trials) == [
        ("A100", "memory", "ok"),
        ("A100", "train", "ok"),
        ("V100", "memory", "ok"),
        ("V100", "train", "ok"),
    ]
    assert len(rows(folder, "epochs.csv")) == 4
    first, second = read_run(folder)["environment"]["machines"]
    assert first["devices"][0]["placement"] == "A100"
    assert second["devices"][0]["placement"] == "V100"


@pytest.mark.slow
def test_trials_of_a_lost_node_fail_with_the_reason_the_others_go_on_and_resume_tries_again(
    nodes, suite
):
    nodes.need("V100", "A100")
    with after_first_row_of("V100", suite.parent / "run", lambda: nodes.lose("V100")):
        folder, done = run(nodes, slow(suite), "--phases", "memory,train")
    assert done.returncode == 1, done.stdout + done.stderr
    statuses = defaultdict(list)
    failed_in_memory = 0  # which is not tried further
    for row in trial_rows(folder):
        statuses[row["placement"]].append(row["status"])
        if row["status"] == "failed":
            assert " was lost (" in row["detail"]
            failed_in_memory += row["phase"] == "memory"
    assert statuses["A100"] == ["ok"] * 4
    assert {*statuses["V100"]} == {"ok", "failed"}
    assert len(statuses["V100"]) + failed_in_memory == 4
    nodes.need("V100")
    assert_resumed(folder, 8)


@pytest.mark.slow
def test_what_the_user_can_mend_is_told_before_anything_runs(nodes, suite):
    def refused(*words):
        folder, done = run(nodes, suite, "--accelerators", *words)
        assert done.returncode == 2
        assert not folder.exists()
        return " ".join(done.stderr.split())

    nodes.need("A100")
    text = refused("A100,H100")
    assert "H100 takes 1 H100, and the cluster has 0. Its types are: A100" in text
    text = refused("A100,A100+A100")
    assert "A100+A100 takes 2 A100, and the cluster has 1." in text
    data = f"folder:{suite.parent / 'nowhere'}"
    text = refused("A100", "--phases", "train", "--data", data)
    assert f"A100 on {os.uname().nodename} (127.0.0.3): " in text
    assert "nowhere" in text
