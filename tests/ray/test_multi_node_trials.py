"""Accelerators of a Ray cluster that train together: one CPU on each of two nodes, joined by a
placement group.
"""

import os
import signal
from collections import Counter
from contextlib import closing

import pytest

from bench.results.run_json import read_run
from tests.ray.conftest import Nodes, after_first_row_of, assert_resumed, run, slow
from tests.rows import trial_figures, trial_rows

ray = pytest.importorskip("ray")

FIRST, SECOND = "127.0.0.3", "127.0.0.4"


@pytest.fixture(scope="module")
def nodes():
    with closing(Nodes()) as cluster:
        cluster.add("V100", FIRST)
        cluster.second = cluster.add("V100", SECOND)
        yield cluster


def left(nodes):
    """Return the states of the placement groups that the cluster knows, and what of it is free."""
    with ray.init(address=nodes.address, logging_level="ERROR"):
        states = Counter()
        for group in ray.util.placement_group_table().values():
            states[group["state"]] += 1
        free = ray.available_resources()
        return states, free.get("accelerator_type:V100", 0)


def train_on_both(nodes, suite, action, seeds):
    """Train on both nodes with some seeds, and do something after the first."""
    words = f"--accelerators V100+V100 --phases train --seeds {seeds} --precisions fp32"
    folder = suite.parent / "run"
    slow(suite, 1.5)
    with after_first_row_of("V100+V100", folder, action):
        return run(nodes, suite, *words.split())


@pytest.mark.slow
def test_two_nodes_train_together_and_one_of_them_alone(nodes, suite):
    words = (
        "--accelerators V100,V100+V100 --phases memory,speed,train --quick --epochs 2 "
        "--precisions fp32 --set width=8192"  # so that memory is more than its noise
    )
    folder, done = run(nodes, suite, *words.split())
    assert done.returncode == 0, done.stdout + done.stderr
    trials = {}
    for row in trial_figures(folder):
        assert row["status"] in ("ok", "unconverged")
        trials[row["placement"], row["phase"]] = row
    assert len(trials) == 6
    memory = trials["V100+V100", "memory"]
    assert memory["all_devices_bytes"] > memory["peak_resident_bytes"]
    alone = trials["V100", "train"]
    both = trials["V100+V100", "train"]
    assert both["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-3)
    environment = read_run(folder)["environment"]
    places = []
    for machine in environment["machines"]:
        (device,) = machine["devices"]
        places.append(device["placement"])
    assert places == ["V100", "V100+V100", "V100+V100"]
    assert left(nodes) == (Counter(REMOVED=1), 2)


@pytest.mark.slow
def test_ctrl_c_ends_both_nodes_parts_and_removes_the_group(nodes, suite):
    def stop():
        os.kill(os.getpid(), signal.SIGINT)

    folder, done = train_on_both(nodes, suite, stop, "0,1,2,3")
    assert done.returncode == 130, done.stdout + done.stderr
    trained = trial_rows(folder)
    assert 1 <= len(trained) < 4
    for row in trained:
        assert row["status"] == "ok"
    states, free = left(nodes)
    assert {*states} == {"REMOVED"}
    assert free == 2
    assert_resumed(folder, 4)


@pytest.mark.slow
def test_a_trial_fails_with_the_reason_when_one_of_its_nodes_is_lost(nodes, suite):
    def lose():
        nodes.cluster.remove_node(nodes.second, allow_graceful=False)

    folder, done = train_on_both(nodes, suite, lose, "0,1")
    assert done.returncode == 1, done.stdout + done.stderr
    first, second = trial_rows(folder)
    assert first["status"] == "ok"
    assert second["status"] == "failed"
    assert " was lost (" in second["detail"]
