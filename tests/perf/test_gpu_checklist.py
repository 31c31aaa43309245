"""The checklist for a machine with a GPU: its commands parse, its parts have their seconds, and it goes on."""

import ast
import re
import sys
import time
from pathlib import Path

import pytest

from bench.cli.parser import parse
from perf import gpu_checklist, peers
from perf.gpu_checklist import Part

ROOT = Path(__file__).resolve().parents[2]


def parts_of(*words):
    options = gpu_checklist.parse(["out", *words])
    return {part.name: part for part in gpu_checklist.parts_of(options, "h100")}


def test_every_command_parses(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    parts = parts_of("--data", f"folder:{tmp_path}")
    runs = [part for part in parts.values() if str(ROOT / "run_bench.py") in part.command]
    for part in runs:
        request = parse(part.command[2:])
        assert request.resume == Path("results") / f"h100-{part.name}"
    assert len(runs) == 7
    for part in parts.values():
        if part.command[1] == "run_bench.py":
            assert parse(part.command[2:]).command in ("list", "doctor")
        if part.command[1].startswith("perf/"):
            assert (ROOT / part.command[1]).is_file()
    assert peers.parse(parts["epochs"].command[2:]).folder == tmp_path
    assert peers.parse(parts["peers"].command[2:]).only == "steps"
    assert "epochs" not in parts_of()  # for which images in a folder are needed


def test_the_model_is_trained_at_two_batch_sizes_in_every_precision():
    request = parse(parts_of()["resnet50"].command[2:])
    assert request.suites == ("resnet50",)
    assert request.batch_sizes == (128, 512)
    assert set(request.phases) == {"memory", "speed", "train"}
    assert request.precisions == ("fp32", "tf32", "amp-fp16", "amp-bf16")
    assert str(request.data) == "cifar10"


def card_tests():
    """Yield the tests that are marked as what only a real card shows, as the document calls them."""
    for path in (ROOT / "tests" / "gpu").glob("test_*.py"):
        module = ast.parse(path.read_text())
        whole = any(isinstance(each, ast.Assign) and "mark.card" in ast.unparse(each.value) for each in module.body)
        for each in module.body:
            marked = isinstance(each, ast.FunctionDef) and any(
                "mark.card" in ast.unparse(d) for d in each.decorator_list
            )
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test_") and (whole or marked):
                yield each.name.removeprefix("test_").replace("_", " ")


def test_the_last_column_of_the_table_of_what_is_tested_where_names_tests_and_parts_that_exist():
    table = (ROOT / "docs" / "what-is-tested-where.md").read_text().partition("\n## ")[0]
    cells = [line.split(" | ")[-1] for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    named = {name for cell in cells[1:] for name in re.findall("`([^`]+)`", cell)}
    tests, parts = set(card_tests()), parts_of()
    assert tests <= named
    assert named - tests <= parts.keys()
    path = next(word for word in parts["libraries"].command if word.endswith(".py"))
    assert (ROOT / path).is_file()
    assert f"--ignore={path}" in parts["tests"].command


@pytest.fixture
def checklist(tmp_path, monkeypatch, capsys):
    """Run a checklist of small commands, given as NAME=PROGRAM; return its exit code and the lines that it printed."""

    def run(*words, seconds=60, **programs):
        def small(_options, card):
            return [
                Part(name=name, seconds=seconds, command=[sys.executable, "-c", program, card])
                for name, program in programs.items()
            ]

        monkeypatch.setattr(gpu_checklist, "parts_of", small)
        code = gpu_checklist.main([str(tmp_path), *words])
        return code, capsys.readouterr().out.splitlines()

    return run


def test_a_part_that_fails_does_not_keep_the_next_from_running_and_only_it_runs_again(checklist, tmp_path):
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x')"
    code, lines = checklist(a=count, b=f"{count}; exit(3)", c=f"{count}; print('last')")
    assert code == 1
    assert [line.split()[:2] for line in lines[-3:]] == [["a", "done"], ["b", "exit"], ["c", "done"]]
    assert lines[-1].endswith("last")
    assert (tmp_path / "c.log").read_text().endswith("last\n")
    code, _ = checklist(a=count, b=count, c=count)
    assert code == 0
    assert (tmp_path / "count").read_text() == "xxxx"


def test_the_runs_are_named_after_the_card_as_soon_as_it_is_known_and_printed_to_commit(checklist, tmp_path):
    versions = "print('cuDNN 91300 GPU NVIDIA H100 80GB HBM3')"
    write = f"import os, sys; os.makedirs({str(tmp_path)!r} + '/results/' + sys.argv[1] + '-mlp')"
    code, lines = checklist(versions=versions, mlp=write)
    assert code == 0
    assert lines[-1] == "  results/h100-80gb-hbm3-mlp"


def test_without_a_card_its_name_is_gpu(tmp_path):
    assert gpu_checklist.card_of(tmp_path) == "gpu"
    (tmp_path / "versions.log").write_text("Traceback\n")
    assert gpu_checklist.card_of(tmp_path) == "gpu"


def test_parts_are_chosen_by_name_and_an_unknown_one_is_refused(checklist, capsys):
    _, lines = checklist("--only", "c,a", a="print(1)", b="print(2)", c="print(3)")
    assert [line.split()[0] for line in lines[-2:]] == ["a", "c"]
    with pytest.raises(SystemExit):
        checklist("--only", "a,nothing", a="", b="")
    assert "there is no part nothing; there are a, b" in capsys.readouterr().err


def test_a_part_begins_only_while_time_is_left(checklist):
    code, lines = checklist("--seconds", "5", a="raise SystemExit('never run')")
    assert code == 0
    assert lines[-1].split(maxsplit=1) == ["a", "no time was left"]


@pytest.mark.slow
@pytest.mark.parametrize("hears", [True, False])
def test_a_part_that_takes_too_long_is_interrupted_and_then_killed_with_what_it_started(
    checklist, tmp_path, monkeypatch, hears
):
    monkeypatch.setattr(gpu_checklist, "GRACE_S", 1.0)
    ignore = "" if hears else "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    program = (
        f"{ignore}import subprocess, sys, time\n"
        f"subprocess.Popen(['sh', '-c', 'sleep 6; touch {tmp_path / 'alive'}'])\n"
        "try:\n    print('begun', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('stored')"
    )
    began = time.monotonic()
    code, lines = checklist(seconds=3, a=program, b="print('next')")
    assert code == 1
    assert lines[-2].split()[:2] == ["a", "ended"]
    assert lines[-2].endswith("stored" if hears else "begun")
    assert lines[-1].endswith("next")
    assert time.monotonic() - began < 20
    time.sleep(6)
    assert not (tmp_path / "alive").exists()
