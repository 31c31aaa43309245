"""Accelerators of a Ray cluster that train together: one CPU on each of two nodes, joined by a
placement group.
"""

import json
import math
import os
import signal
from collections import Counter
from contextlib import closing

import pytest

from tests.conftest import call
from tests.ray.conftest import Nodes, after_first_row_of, run, slow
from tests.rows import trial_figures, trial_rows

ray = pytest.importorskip("ray")

FIRST, SECOND = "127.0.0.3", "127.0.0.4"
ONE = ("--precisions", "fp32")


@pytest.fixture(scope="module")
def nodes():
    with closing(Nodes()) as cluster:
        cluster.add("V100", FIRST)
        cluster.second = cluster.add("V100", SECOND)
        yield cluster


def left(nodes):
    """Return the states of the placement groups that the cluster knows, and what of it is free."""
    ray.init(address=nodes.address, logging_level="ERROR")
    try:
        states = Counter(group["state"] for group in ray.util.placement_group_table().values())
        return states, ray.available_resources().get("accelerator_type:V100", 0)
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_two_nodes_train_together_and_one_of_them_alone(nodes, suite):
    words = "--accelerators V100,V100+V100 --phases memory,speed,train --quick --epochs 2"
    wide = ("--set", "width=8192")  # so that memory is more than its noise
    folder, done = run(nodes, suite, *words.split(), *wide, *ONE)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = {(row["placement"], row["phase"]): row for row in trial_figures(folder)}
    assert len(trials) == 6
    assert {row["status"] for row in trials.values()} <= {"ok", "unconverged"}
    both = trials["V100+V100", "memory"]
    assert both["all_devices_bytes"] > both["peak_resident_bytes"]
    alone_loss = trials["V100", "train"]["train_loss"]
    assert math.isclose(trials["V100+V100", "train"]["train_loss"], alone_loss, rel_tol=1e-3)
    written = json.loads((folder / "run.json").read_text())
    machines = written["environment"]["machines"]
    places = [machine["devices"][0]["placement"] for machine in machines]
    assert places == ["V100", "V100+V100", "V100+V100"]
    assert left(nodes) == (Counter(REMOVED=1), 2)


@pytest.mark.slow
def test_ctrl_c_ends_both_nodes_parts_and_removes_the_group(nodes, suite):
    def stop():
        os.kill(os.getpid(), signal.SIGINT)

    with after_first_row_of("V100+V100", suite.parent / "run", stop):
        words = ("--accelerators", "V100+V100", "--phases", "train", "--seeds", "0,1,2,3", *ONE)
        folder, done = run(nodes, slow(suite, 1.5), *words)
    assert done.returncode == 130, done.stdout + done.stderr
    assert ["ok"] <= [row["status"] for row in trial_rows(folder)] < ["ok"] * 4
    states, free = left(nodes)
    assert (set(states), free) == ({"REMOVED"}, 2)
    done = call("--resume", folder, cwd=suite.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["status"] for row in trial_rows(folder)] == ["ok"] * 4


@pytest.mark.slow
def test_a_trial_fails_with_the_reason_when_one_of_its_nodes_is_lost(nodes, suite):
    def lose():
        nodes.cluster.remove_node(nodes.second, allow_graceful=False)

    with after_first_row_of("V100+V100", suite.parent / "run", lose):
        words = ("--accelerators", "V100+V100", "--phases", "train", "--seeds", "0,1", *ONE)
        folder, done = run(nodes, slow(suite, 1.5), *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [row["status"] for row in trial_rows(folder)] == ["ok", "failed"]
    assert " was lost (" in trial_rows(folder)[1]["detail"]
