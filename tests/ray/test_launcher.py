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
        assert row["status"] == "ok"
        trials.append((row["placement"], row["phase"]))
    assert sorted(trials) == [
        ("A100", "memory"),
        ("A100", "train"),
        ("V100", "memory"),
        ("V100", "train"),
    ]
    assert len(rows(folder, "epochs.csv")) == 4
    environment = read_run(folder)["environment"]
    places = []
    for machine in environment["machines"]:
        (device,) = machine["devices"]
        places.append(device["placement"])
    assert places == ["A100", "V100"]


@pytest.mark.slow
def test_trials_of_a_lost_node_fail_with_the_reason_the_others_go_on_and_resume_tries_again(
    nodes, suite
):
    def lose():
        nodes.lose("V100")

    nodes.need("V100", "A100")
    with after_first_row_of("V100", suite.parent / "run", lose):
        folder, done = run(nodes, slow(suite), "--phases", "memory,train")
    assert done.returncode == 1, done.stdout + done.stderr
    statuses = defaultdict(list)
    for row in trial_rows(folder):
        status = row["status"]
        place = row["placement"]
        statuses[place].append(status)
        if status == "failed":
            assert " was lost (" in row["detail"]
            if row["phase"] == "memory":
                statuses[place].append("not tried further")
    assert statuses["A100"] == ["ok"] * 4
    assert len(statuses["V100"]) == 4
    assert {"ok", "failed"} <= {*statuses["V100"]}
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
