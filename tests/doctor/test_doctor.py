"""The doctor's command, its table and its verdict, with a launcher that answers from a script."""

import json
from pathlib import Path

import pytest

import run_bench
from bench.cli.parser import parse
from bench.doctor import checks, doctor
from bench.spec.errors import UsageError
from tests.doctor.scripted import ScriptedLauncher, log


def examine(machine, *words, **other):
    launcher = ScriptedLauncher(*machine.devices, survey=machine, **other)
    options = parse(["doctor", *words])
    return doctor.examine(options.gpus, options.out, launcher), launcher


def results(folder):
    return {check["name"]: check["result"] for check in json.loads((folder / "doctor.json").read_text())["checks"]}


def test_a_healthy_cpu_passes_what_it_can_do_and_the_table_is_kept(machine, tmp_path, capsys):
    fine, launcher = examine(machine, "--out", str(tmp_path / "kept"))
    assert fine
    outcomes = results(tmp_path / "kept")
    assert outcomes.pop("telemetry costs nothing") == "not possible"
    assert outcomes == dict.fromkeys(("FP32 is FP32", "known ratio", "A/A", "peak memory"), "pass")
    assert launcher.called.count("against_itself") == checks.PROCESSES
    record = json.loads((tmp_path / "kept" / "doctor.json").read_text())
    assert (record["torch"], record["devices"]) == (machine.torch, {"cpu": "Test CPU"})
    assert "No check failed." in capsys.readouterr().out


def test_one_check_that_fails_is_named_explained_and_fails_the_whole(machine, tmp_path, capsys):
    fine, _ = examine(machine, "--out", str(tmp_path), known_ratio=log(1.6))
    assert not fine
    assert [key for key, result in results(tmp_path).items() if result == "FAIL"] == ["known ratio"]
    out = capsys.readouterr().out
    assert "1 of 5 checks failed." in out
    assert "FAIL" in out


def test_a_process_that_fails_is_a_failed_check_and_the_rest_goes_on(machine, tmp_path):
    fine, launcher = examine(machine, "--out", str(tmp_path), known_ratio=UsageError("no sign of life for 3 s"))
    assert not fine
    outcomes = results(tmp_path)
    assert outcomes["known ratio"] == "FAIL"
    assert outcomes["A/A"] == "pass"
    assert "no sign of life" in (tmp_path / "doctor.json").read_text()
    assert "peak" in launcher.called


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(machine):
    launcher = ScriptedLauncher(*machine.devices)
    with pytest.raises(OSError, match="/proc/none"):
        doctor.examine(None, Path("/proc/none"), launcher)
    assert launcher.called == []


def test_the_command_is_read_and_its_exit_code_is_the_verdict(monkeypatch):
    command = parse(["doctor", "--gpus", "0,1", "--out", "kept"])
    assert (command.command, command.gpus, str(command.out)) == ("doctor", ("0", "1"), "kept")
    assert parse(["doctor"]).gpus is None
    with pytest.raises(UsageError, match="--gpus must be GPU indices"):
        parse(["doctor", "--gpus", "gpu0"])
    with pytest.raises(UsageError, match="--suite"):
        parse(["doctor", "--suite", "mlp"])
    for fine, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(doctor, "examine", lambda gpus, folder, launcher, fine=fine: fine)
        assert run_bench.main(["doctor"]) == code
