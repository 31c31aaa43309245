"""The checklist for a machine with a GPU: its commands parse, and some of them can be chosen."""

import argparse
import ast
import json
import re
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
    runs = [command[2:] for command in commands.values() if command[1] == "run_bench.py"]
    assert len(runs) == len(gpu_checklist.SUITES) + 6
    assert {getattr(parse(words), "command", "run") for words in runs} == {"run", "doctor"}
    scripts = [command[1:] for command in commands.values() if command[1].startswith("perf/")]
    assert all((ROOT / script).is_file() for script, *_ in scripts)
    steps, epochs = [peers.parse(words) for script, *words in scripts if script == "perf/peers.py"]
    assert (steps.only, epochs.only) == ("steps", "epochs,pipelines")
    assert (epochs.samples <= 12_800) == quick
    assert ("--quick" in commands["overhead"]) == quick


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
    assert "there is no check nothing; there are card, doctor" in capsys.readouterr().err


def card_tests():
    """Yield the tests that are marked as what only a real card shows, as the checklist calls them."""
    for path in (ROOT / "tests" / "gpu").glob("test_*.py"):
        module = ast.parse(path.read_text())
        whole = any(isinstance(each, ast.Assign) and "mark.card" in ast.unparse(each.value) for each in module.body)
        for each in module.body:
            marked = isinstance(each, ast.FunctionDef) and any(
                "mark.card" in ast.unparse(d) for d in each.decorator_list
            )
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test_") and (whole or marked):
                yield each.name.removeprefix("test_").replace("_", " ")


def test_the_first_checks_are_exactly_the_last_column_of_the_table_of_what_is_tested_where():
    table = (ROOT / "docs" / "what-is-tested-where.md").read_text().partition("\n## ")[0]
    cells = [line.split(" | ")[-1] for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    named = {name for cell in cells[1:] for name in re.findall("`([^`]+)`", cell)}
    tests = set(card_tests())
    assert named == tests | {"doctor", "first run"}
    commands = commands_of(None)
    assert {"peers epochs", "resnet50 training"}.isdisjoint(commands)  # which need data
    path = next(word for word in commands["libraries"] if word.endswith(".py"))
    assert (ROOT / path).is_file()
    assert f"--ignore={path}" in commands["tests"]
    assert list(commands)[: len(gpu_checklist.FIRST)] == list(gpu_checklist.FIRST)
    assert sum(gpu_checklist.FIRST.values()) <= 600
    assert commands["card"][commands["card"].index("-m", 3) + 1] == "card"


CARD_LOG = """collecting ... collected 4 items
tests/gpu/test_gpu.py::test_a_block_waits PASSED [ 25%]
tests/gpu/test_techniques_gpu.py::test_techniques[model0-fp32] PASSED [ 50%]
tests/gpu/test_techniques_gpu.py::test_techniques[model0-fp16] FAILED [ 75%]
tests/gpu/test_card.py::test_two_gpus SKIPPED (needs two GPUs) [100%]
=== FAILURES ===
"""
DOCTOR = {
    "devices": {"0": "NVIDIA X"},
    "driver": "580.1",
    "torch": "2.14",
    "checks": [{"name": "A/A", "result": "pass", "measured": "1.0001 | 0.2 %"}],
}


@pytest.fixture
def ran(monkeypatch):
    """Let every command of the checklist end at once, as on a machine where one test fails; return what was run."""
    names = []

    def run(name, command, out, limit_s=None):
        names.append((name, limit_s))
        if name == "card":
            (out / "card.log").write_text(CARD_LOG)
        if name == "doctor":
            (out / "doctor").mkdir()
            (out / "doctor" / "doctor.json").write_text(json.dumps(DOCTOR))
        return gpu_checklist.Row(name=name, code=int(name == "card"), seconds=3.0, last=f"{name} has ended")

    monkeypatch.setattr(gpu_checklist, "run", run)
    return names


def test_what_only_a_card_shows_comes_first_with_a_table_to_paste(tmp_path, ran, capsys):
    assert gpu_checklist.main([str(tmp_path), "--first"]) == 1
    assert ran == list(gpu_checklist.FIRST.items())
    table = (tmp_path / "first.md").read_text()
    assert table in capsys.readouterr().out
    about, _, *lines = table.splitlines()
    assert about.startswith("NVIDIA X; driver 580.1; torch 2.14; commit ")
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]
    assert rows == [
        ["**card**", "exit 1", "3 s: card has ended"],
        ["card: a block waits", "pass", ""],
        ["card: techniques", "FAIL", "2 cases"],
        ["card: two gpus", "skipped", ""],
        ["**doctor**", "pass", "3 s: doctor has ended"],
        ["doctor: A/A", "pass", "1.0001 \\| 0.2 %"],
        ["**first run**", "pass", "3 s: first run has ended"],
    ]


def test_the_first_run_tells_the_machine_where_the_doctor_was_ended_and_patience_lengthens_the_limits(tmp_path, ran):
    (tmp_path / "first-run").mkdir()
    environment = {"devices": [{"name": "NVIDIA Y"}], "driver": "570.1", "torch": "2.13"}
    (tmp_path / "first-run" / "run.json").write_text(json.dumps({"environment": environment}))
    gpu_checklist.main([str(tmp_path), "--only", "card,first run", "--patience", "3"])
    assert ran == [(name, 3 * gpu_checklist.FIRST[name]) for name in ("card", "first run")]
    assert (tmp_path / "first.md").read_text().startswith("NVIDIA Y; driver 570.1; torch 2.13; commit ")


def test_the_table_is_made_where_git_is_not_installed_and_where_this_is_no_checkout(tmp_path, ran, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    gpu_checklist.main([str(tmp_path / "out"), "--only", "card"])
    table = (tmp_path / "out" / "first.md").read_text()
    assert table.startswith("unknown GPU; driver unknown; torch unknown; commit unknown.\n")
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 'fatal: not a git repository' >&2; exit 128\n")
    git.chmod(0o755)
    gpu_checklist.main([str(tmp_path / "out"), "--only", "card"])
    assert (tmp_path / "out" / "first.md").read_text() == table


def test_the_rest_follows_without_a_limit_and_a_lone_check_prints_its_own_table(tmp_path, ran, capsys):
    gpu_checklist.main([str(tmp_path)])
    names = [name for name, _ in ran]
    assert names == list(commands_of(None))
    assert {limit for name, limit in ran if name not in gpu_checklist.FIRST} == {None}
    out = capsys.readouterr().out
    assert out.index("| **first run** |") < out.index("estimator ")
    gpu_checklist.main([str(tmp_path), "--only", "estimator"])
    assert "| check |" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_check_that_takes_too_long_is_ended_with_what_it_started(tmp_path):
    child = (
        "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('begun', flush=True); time.sleep(60)"
    )
    row = gpu_checklist.run("hangs", [sys.executable, "-c", child], tmp_path, limit_s=5.0)
    assert (row.result, row.last) == ("too long", "begun")
    assert row.seconds < 20
