"""The checklist for a machine with a GPU: its commands parse, its parts have their seconds, and it goes on."""

import sys
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
