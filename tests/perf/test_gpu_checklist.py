"""The checklist for a machine with a GPU: its commands parse, and some of them can be chosen."""

import argparse
import sys
from pathlib import Path

import pytest

from bench.cli.parser import parse
from perf import gpu_checklist, peers

ROOT = Path(__file__).resolve().parents[2]


def commands_of(data, *, quick=False):
    return gpu_checklist.checks(argparse.Namespace(out=Path("out"), data=data, quick=quick, only=None))


@pytest.mark.parametrize("quick", [False, True])
def test_every_command_parses(quick, tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    commands = commands_of(f"folder:{tmp_path}", quick=quick)
    own = [command[2:] for command in commands.values() if command[1] == "run_bench.py"]
    assert len(own) == len(gpu_checklist.SUITES) + 5
    assert {getattr(parse(words), "command", "run") for words in own} == {"run", "doctor"}
    scripts = [command[1:] for command in commands.values() if command[1].startswith("perf/")]
    assert all((ROOT / script).is_file() for script, *_ in scripts)
    steps, epochs = [peers.parse(words) for script, *words in scripts if script == "perf/peers.py"]
    assert (steps.only, epochs.only) == ("steps", "epochs,pipelines")
    assert (epochs.samples <= 12_800) == quick
    assert ("--quick" in commands["overhead"]) == quick


def test_nothing_is_trained_without_data():
    assert {"peers epochs", "resnet50 training"}.isdisjoint(commands_of(None))


def test_chosen_checks_run_and_the_table_has_their_exit_codes(tmp_path, monkeypatch, capsys):
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
