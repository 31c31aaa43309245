"""The doctor's command, its table and its verdict, with a launcher that answers from a script."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import run_bench
from bench.cli.parser import parse
from bench.doctor import checks, doctor
from bench.results.records import MemoryPeak
from bench.spec.errors import UsageError
from tests.doctor.scripted import GPU, MIB, ScriptedLauncher, log


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
    possible = {name for name, result in outcomes.items() if result != "not possible"}
    assert {outcomes[name] for name in possible} == {"pass"}
    assert {"FP32 is FP32", "known ratio 1.50", "A/A", "A/A + 1 %", "resident memory"} < possible
    assert outcomes["energy"] == outcomes["TF32 is seen"] == "not possible"
    assert launcher.called.count("against_itself") == checks.PROCESSES
    record = json.loads((tmp_path / "kept" / "doctor.json").read_text())
    assert (record["torch"], record["devices"]) == (machine.torch, {"cpu": "Test CPU"})
    text = (tmp_path / "kept" / "doctor.md").read_text()
    assert "Test CPU. torch 2.15" in text
    assert text.count("\n| ") == 2 + len(outcomes)
    assert "No check failed." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("FP32 is FP32", {"matmul_error": {"fp32": 3e-4}}),
        ("known ratio 1.50", {"known_ratio": (1.5, log(1.6))}),
        ("resident memory", {"peak": MemoryPeak(peak_resident_bytes=MIB)}),
    ],
)
def test_one_check_that_fails_is_named_explained_and_fails_the_whole(machine, tmp_path, capsys, name, other):
    fine, _ = examine(machine, "--out", str(tmp_path), **other)
    assert not fine
    assert [key for key, result in results(tmp_path).items() if result == "FAIL"] == [name]
    out = capsys.readouterr().out
    assert "1 of 12 checks failed." in out
    assert "FAIL" in out


@pytest.fixture
def busy_machine(monkeypatch):
    """Let other programs take a share of the cores, and each look at the clock be 10 s later."""
    load, clock = SimpleNamespace(pct=3.0), iter(range(0, 10_000, 10))
    monkeypatch.setattr(doctor, "CpuWatch", lambda: SimpleNamespace(foreign_load_pct=lambda: load.pct))
    monkeypatch.setattr(doctor, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    return load


@pytest.mark.parametrize(("load_pct", "busy"), [(60.0, True), (3.0, False), (None, False)])
def test_a_failed_comparison_of_times_is_put_down_to_a_busy_machine(machine, tmp_path, busy_machine, load_pct, busy):
    busy_machine.pct = load_pct
    examine(machine, "--out", str(tmp_path), known_ratio=(1.5, log(1.6)), matmul_error={"fp32": 3e-4})
    kept = json.loads((tmp_path / "doctor.json").read_text())["checks"]
    meanings = {check["name"]: check["meaning"] for check in kept}
    assert ("other programs took 60 % of its cores" in meanings["known ratio 1.50"]) == busy
    assert "other programs" not in meanings["FP32 is FP32"] + meanings["A/A"]  # arithmetic, and a check that passed


def test_each_group_of_checks_is_counted_before_it_and_timed_after_it(machine, busy_machine, capsys):
    examine(machine)
    lines = capsys.readouterr().out.splitlines()
    count = len(checks.GROUPS)
    assert lines[:2] == [f"[1/{count}] cpu: which GPU this is", "  took 10.0 s; other programs took 3 % of the cores"]
    assert lines[2 * (count - 1)].startswith(f"[{count}/{count}] cpu: energy")
    assert lines[-1] == f"No check failed. They took {10 * (2 * count + 1)} s."


def test_a_process_that_fails_is_a_failed_check_and_the_rest_goes_on(machine, tmp_path):
    fine, launcher = examine(machine, "--out", str(tmp_path), known_ratio=UsageError("no sign of life for 3 s"))
    assert not fine
    outcomes = results(tmp_path)
    assert outcomes["clock and a known ratio"] == "FAIL"
    assert outcomes["the clock costs nothing"] == outcomes["A/A"] == "pass"
    assert "no sign of life" in (tmp_path / "doctor.md").read_text()
    assert "peak" in launcher.called


def test_a_gpu_is_asked_for_what_it_can_do(machine, tmp_path):
    fine, _ = examine(replace(machine, devices=(GPU,)), "--out", str(tmp_path))
    assert fine
    outcomes = results(tmp_path)
    assert outcomes.pop("TF32 is seen") == "not possible"
    assert set(outcomes.values()) == {"pass"}
    assert {"the driver's memory", "energy", "CUDA and NVML mean one GPU"} < {*outcomes}
    assert "float16 most" in (tmp_path / "doctor.md").read_text()


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
