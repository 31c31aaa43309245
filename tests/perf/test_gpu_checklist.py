"""The checklist for a machine with a GPU: its commands are ones that can be parsed, and some of them can be chosen."""

import argparse
import sys
from pathlib import Path

import pytest

from bench.cli.parser import parse
from perf import gpu_checklist, peers

ROOT = Path(__file__).resolve().parents[2]


def options(data: str | None = None, *, quick: bool = False) -> argparse.Namespace:
    return argparse.Namespace(out=Path("out"), data=data, quick=quick, only=None)


@pytest.mark.parametrize("quick", [False, True])
def test_every_command_of_the_harness_is_understood(quick, tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    commands = gpu_checklist.checks(options(f"folder:{tmp_path}", quick=quick))
    own = [command[2:] for command in commands.values() if command[1] == "run_bench.py"]
    assert len(own) == len(gpu_checklist.SUITES) + 5
    assert {parse(words).name for words in own} == {"run", "doctor"}
    scripts = [command[1] for command in commands.values() if command[1].startswith("perf/")]
    assert scripts == ["perf/estimator.py", "perf/overhead.py", "perf/peers.py", "perf/peers.py"]
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("quick", [False, True])
def test_the_options_of_scripts_are_theirs(quick, tmp_path):
    (tmp_path / "train").mkdir()
    commands = gpu_checklist.checks(options(f"folder:{tmp_path}", quick=quick))
    of_peers = [peers.parse(words[2:]) for words in commands.values() if words[1] == "perf/peers.py"]
    assert [parsed.only for parsed in of_peers] == ["steps", "epochs,pipelines"]
    assert all((parsed.samples <= 12_800) == quick for parsed in of_peers[1:])
    assert ("--quick" in commands["overhead"]) == quick


def test_nothing_is_trained_without_data():
    assert {"peers epochs", "resnet50 training"}.isdisjoint(gpu_checklist.checks(options()))


def test_some_checks_alone_run_and_the_table_tells_how_they_ended(tmp_path, monkeypatch, capsys):
    commands = {name: [sys.executable, "-c", f"print('{name}')\nexit({code})"] for name, code in (("a", 0), ("b", 3))}
    commands["c"] = [sys.executable, "-c", "raise SystemExit('never run')"]
    monkeypatch.setattr(gpu_checklist, "checks", lambda _options: commands)
    assert gpu_checklist.main([str(tmp_path), "--only", "a, b"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["a", "pass"], ["b", "exit"]]
    assert (tmp_path / "b.log").read_text() == "b\n"
    assert not (tmp_path / "c.log").exists()
    assert gpu_checklist.main([str(tmp_path), "--only", "a"]) == 0


def test_an_unknown_check_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        gpu_checklist.main([str(tmp_path), "--only", "tests,nothing"])
    assert "there is no check nothing; there are tests, doctor" in capsys.readouterr().err
