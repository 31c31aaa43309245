"""The doctor's command, its lines and its verdict, with a launcher that answers from a script."""

import pytest

import run_bench
from bench.cli.parser import parse
from bench.doctor import checks, doctor
from bench.spec.errors import UsageError
from tests.doctor.scripted import ScriptedLauncher, log


def examine(machine, **other):
    launcher = ScriptedLauncher(survey=machine, **other)
    return doctor.examine(None, launcher), launcher


def test_a_healthy_cpu_passes(machine, capsys):
    fine, launcher = examine(machine)
    assert fine
    assert launcher.called.count("against_itself") == checks.PROCESSES
    out = capsys.readouterr().out
    assert out.count(": pass: ") == len(checks.CHECKS)
    assert "No check failed." in out


@pytest.mark.parametrize(
    ("answer", "shown"),
    [(log(1.6), "speedups are not measured as they are"), (UsageError("silent"), "silent")],
)
def test_one_check_that_fails_is_explained_and_fails_the_whole_and_the_rest_goes_on(
    machine, capsys, answer, shown
):
    fine, launcher = examine(machine, known_ratio=answer)
    assert not fine
    assert "peak" in launcher.called
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 4 checks failed." in out
    assert out.count(": FAIL: ") == 1
    assert shown in out


def test_the_command_is_read():
    command = parse(["doctor", "--gpus", "0,1"])
    assert command.command == "doctor"
    assert command.gpus == ("0", "1")


@pytest.mark.parametrize(("fine", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_is_the_verdict(monkeypatch, fine, code):
    monkeypatch.setattr(doctor, "examine", lambda _gpus, _launcher: fine)
    assert run_bench.main(["doctor"]) == code
