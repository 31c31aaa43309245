"""What of a cluster's launcher needs no cluster."""

import importlib.util
import sys
from unittest import mock

import pytest

from bench.cli.parser import parse
from bench.launch import Ending
from bench.launch.ray import AcceleratorActor, connect, stage
from bench.results.records import TrialResult
from bench.spec.errors import UsageError


@pytest.fixture
def script():
    """The attributes of the main module, which a node's worker changes; with xdist it has no ``__file__``."""
    with mock.patch.dict(vars(sys.modules["__main__"])) as attributes:
        yield attributes


def test_what_is_sent_to_the_nodes_is_the_code_and_the_suite_file_with_its_neighbours(tmp_path, tiny_file):
    (tiny_file.parent / "helper.py").write_text("")
    (tiny_file.parent / "secret.txt").write_text("")
    folder = tmp_path / "stage"
    found = stage(folder, [str(tiny_file)])
    assert (folder / found[str(tiny_file)]).read_text() == tiny_file.read_text()
    assert {path.name for path in folder.iterdir()} == {"bench", "suites", "own"}
    assert {path.name for path in (folder / "own" / "0").iterdir()} == {"tiny.py", "helper.py"}
    assert (folder / "bench" / "worker" / "worker.py").is_file()


def test_without_ray_it_says_what_to_install(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    with pytest.raises(UsageError, match=r"pip install 'ampmeter\[ray\]'"):
        connect(None, tmp_path)


def test_a_head_that_does_not_answer_is_told(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=r"No Ray cluster answers at '127.0.0.1:9'"):
        connect("127.0.0.1:9", tmp_path)


def test_a_cluster_is_asked_for_by_types_and_its_folders_are_not_looked_for_here():
    words = ["--suite", "mlp", "--on", "ray://h:6379", "--accelerators", "V100,A100", "--data", "folder:/nowhere"]
    command = parse(words)
    assert (command.on, command.accelerators) == ("ray://h:6379", ("V100", "A100"))


def test_a_node_runs_a_trial_without_the_script_it_was_started_by(monkeypatch, script, tiny_trial, cpu):
    script["__file__"] = tiny_trial.cell.suite.file
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    worker = AcceleratorActor(threads="1")
    assert "__file__" not in script
    *messages, ending = worker.stream(tiny_trial, cpu, None)
    assert ending == Ending(kind="done")
    assert [message.status for message in messages if isinstance(message, TrialResult)] == ["ok"]
    with pytest.raises(UsageError, match="There is no GPU 97"):
        worker.survey(("97",))
