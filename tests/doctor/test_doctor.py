"""The doctor's command, its table and its verdict, with a launcher that answers from a script."""

import json
import math
from dataclasses import replace

import pytest

import run_bench
from bench.cli.parser import parse
from bench.doctor import doctor
from bench.doctor.check import Identity
from bench.results.records import Device, MemoryPeak
from bench.spec.errors import UsageError
from bench.stats import Interval

MIB = 2**20
GPU = Device(
    placement="0",
    kind="cuda",
    name="NVIDIA X",
    architecture="Turing",
    uuid="GPU-1",
    energy="counter",
    unsupported={"tf32": "needs sm_80", "amp-bf16": "needs sm_80"},
)


def log(ratio, half=0.001):
    return Interval(center=math.log(ratio), low=math.log(ratio) - half, high=math.log(ratio) + half, n=20)


def healthy(device):
    return {
        "identify": Identity(
            cuda_index=0,
            cuda_name=device.name,
            cuda_bytes=16 * MIB,
            uuid="GPU-1",
            nvml_name=device.name,
            nvml_bytes=16 * MIB,
            back=(0,),
        ),
        "matmul_error": {"fp32": 2e-7, "tf32": 3e-4},
        "compute_dtypes": {"fp32": "float32:100%", "amp-bf16": "bfloat16:100%", "amp-fp16": "float16:100%"},
        "empty_block": 500.0,
        "known_ratio": (1.5, log(1.5)),
        "against_itself": {number: (1e-4 * number, -0.01 + 1e-4 * number) for number in range(doctor.PROCESSES)},
        "peak": {
            held: MemoryPeak(peak_resident_bytes=held + 4 * MIB, driver_used_bytes=held + 500 * MIB)
            for held in (0, 256 * MIB)
        },
        "take": True,
        "energy_windows": (10.0, 10.1),
        "beside_sampler": log(1.0),
    }


class ScriptedLauncher:
    """Answers each call by its function's name, or its first argument after the device."""

    def __init__(self, machine, **other):
        (device,) = machine.devices
        self.answers = {"survey": machine, **healthy(device), **other}
        self.called = []

    def call(self, target, *arguments):
        name = target.partition(":")[2]
        self.called.append(name)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer[arguments[1]] if isinstance(answer, dict) else answer


@pytest.fixture(autouse=True)
def quick_statistics(monkeypatch):
    monkeypatch.setattr(doctor.estimator, "bias_and_coverage", lambda arms: (0.0001, 0.95))


def examine(machine, *words, **other):
    launcher = ScriptedLauncher(machine, **other)
    return doctor.examine(parse(["doctor", *words]), launcher), launcher


def results(folder):
    return {check["name"]: check["result"] for check in json.loads((folder / "doctor.json").read_text())["checks"]}


def test_a_healthy_cpu_passes_what_it_can_do_and_the_table_is_kept(machine, tmp_path, capsys):
    fine, launcher = examine(machine, "--out", str(tmp_path / "kept"))
    assert fine
    found = results(tmp_path / "kept")
    possible = {name for name, result in found.items() if result != "not possible"}
    assert {found[name] for name in possible} == {"pass"}
    assert {"estimator", "FP32 is FP32", "known ratio 1.50", "A/A", "A/A + 1 %", "resident memory"} < possible
    assert found["energy"] == found["the sampler disturbs nothing"] == found["TF32 is seen"] == "not possible"
    assert launcher.called.count("against_itself") == doctor.PROCESSES
    record = json.loads((tmp_path / "kept" / "doctor.json").read_text())
    assert (record["torch"], record["devices"]) == (machine.torch, {"cpu": "Test CPU"})
    text = (tmp_path / "kept" / "doctor.md").read_text()
    assert "Test CPU. torch 2.15" in text
    assert text.count("\n| ") == 2 + len(found)
    assert "No check failed." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("FP32 is FP32", {"matmul_error": {"fp32": 3e-4}}),
        ("mixed precision reaches the model", {"compute_dtypes": "float32:100%"}),
        ("the clock costs nothing", {"empty_block": 1e5}),
        ("known ratio 1.50", {"known_ratio": (1.5, log(1.6))}),
        ("A/A", {"against_itself": {number: (0.03 + 1e-4 * number, -0.01) for number in range(doctor.PROCESSES)}}),
        ("A/A + 1 %", {"against_itself": {number: (0.0, 0.02 * number - 0.1) for number in range(doctor.PROCESSES)}}),
        ("resident memory", {"peak": MemoryPeak(peak_resident_bytes=MIB)}),
    ],
)
def test_one_check_that_fails_is_named_explained_and_fails_the_whole(machine, tmp_path, capsys, name, other):
    fine, _ = examine(machine, "--out", str(tmp_path), **other)
    assert not fine
    assert [key for key, result in results(tmp_path).items() if result == "FAIL"] == [name]
    out = capsys.readouterr().out
    assert "1 of 13 checks failed." in out
    assert "FAIL" in out


def test_a_process_that_fails_is_a_failed_check_and_the_rest_goes_on(machine, tmp_path):
    fine, launcher = examine(machine, "--out", str(tmp_path), known_ratio=UsageError("no sign of life for 3 s"))
    assert not fine
    found = results(tmp_path)
    assert found["clock and a known ratio"] == "FAIL"
    assert found["the clock costs nothing"] == found["A/A"] == "pass"
    assert "no sign of life" in (tmp_path / "doctor.md").read_text()
    assert "take" in launcher.called


def test_a_gpu_is_asked_for_what_it_can_do(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "Sampler", SamplerOfForty)
    monkeypatch.setattr(doctor, "active_children", lambda: [SamplerOfForty(None, None)])
    fine, _ = examine(replace(machine, devices=(GPU,)), "--out", str(tmp_path))
    assert fine
    found = results(tmp_path)
    assert found.pop("TF32 is seen") == "not possible"
    assert set(found.values()) == {"pass"}
    assert {"the driver's memory", "energy", "the sampler disturbs nothing", "CUDA and NVML mean one GPU"} < set(found)
    assert "float16 most" in (tmp_path / "doctor.md").read_text()


class SamplerOfForty:
    """A sampling process that has read forty samples."""

    name, pid = "ampmeter-sampler", 4711

    def __init__(self, gpus, period_s):
        self.left = 40

    def __enter__(self):
        return self

    def __exit__(self, *_why):
        self.stop()

    def stop(self):
        left, self.left = self.left, 0
        return [None] * left


def test_a_sampler_that_ends_at_once_cannot_be_compared_with(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "Sampler", SamplerOfForty)
    monkeypatch.setattr(doctor, "active_children", list)
    _, launcher = examine(replace(machine, devices=(GPU,)), "--out", str(tmp_path))
    assert results(tmp_path)["the sampler disturbs nothing"] == "not possible"
    assert "beside_sampler" not in launcher.called


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(machine):
    launcher = ScriptedLauncher(machine)
    with pytest.raises(OSError, match="/proc/none"):
        doctor.examine(parse(["doctor", "--out", "/proc/none"]), launcher)
    assert launcher.called == []


def test_the_command_is_read_and_its_exit_code_is_the_verdict(monkeypatch):
    command = parse(["doctor", "--gpus", "0,1", "--out", "kept"])
    assert (command.name, command.gpus, str(command.out)) == ("doctor", ("0", "1"), "kept")
    assert parse(["doctor"]).gpus is None
    with pytest.raises(UsageError, match="--gpus must be GPU indices"):
        parse(["doctor", "--gpus", "gpu0"])
    with pytest.raises(UsageError, match="--suite"):
        parse(["doctor", "--suite", "mlp"])
    for fine, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(doctor, "examine", lambda command, launcher, fine=fine: fine)
        assert run_bench.main(["doctor"]) == code
