"""Two sides measured by turns; the runs' processes are recorded, not started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli.parser import parse
from bench.run.interleave import interleave
from bench.spec.errors import UsageError


@pytest.fixture
def started(monkeypatch):
    """Commands of the runs; each ends with the code that stands first in ``codes``."""
    commands, codes = [], []

    def run(command, **_how):
        commands.append(command)
        return subprocess.CompletedProcess(command, codes.pop(0) if codes else 0)

    monkeypatch.setattr("bench.run.interleave.subprocess.run", run)
    return commands, codes


@pytest.fixture
def sides(tmp_path: Path) -> dict[str, Path]:
    """A suite's file, a checkout and an environment."""
    (tmp_path / "model.py").touch()
    for file in ("checkout/run_bench.py", "environment/bin/python"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    return {name: tmp_path / name for name in ("model.py", "checkout", "environment")}


def test_each_pair_begins_with_the_side_that_the_one_before_ended_with(started, sides, tmp_path):
    commands, _ = started
    folders = interleave(sides["checkout"], sides["environment"], ["--suite", "mlp"], tmp_path / "out", pairs=3)
    assert folders == (tmp_path / "out" / "old", tmp_path / "out" / "new")
    names = [str(Path(command[-1]).relative_to(tmp_path / "out")) for command in commands]
    assert names == ["old/1", "new/1", "new/2", "old/2", "old/3", "new/3"]
    assert {tuple(command[-4:-1]) for command in commands} == {("--suite", "mlp", "--resume")}


@pytest.mark.parametrize(
    ("side", "start"),
    [
        ("model.py", [sys.executable, "--suite", "model.py"]),
        ("checkout", [sys.executable, "checkout/run_bench.py"]),
        ("environment", ["environment/bin/python"]),
    ],
)
def test_a_side_is_a_suite_a_checkout_or_an_environment(started, sides, tmp_path, side, start):
    python, *words = start
    commands, _ = started
    interleave(sides[side], sides["model.py"], [], tmp_path / "out", pairs=1)
    command = [word.removeprefix(f"{tmp_path}/") for word in commands[0]]
    assert command[0] == python
    assert command[-2 - len(words) : -2] == words


def test_what_is_no_side_and_a_run_that_is_refused_end_it(started, sides, tmp_path):
    commands, codes = started
    with pytest.raises(UsageError, match="not the command 'script'"):
        interleave(sides["checkout"], sides["checkout"], ["script", "--", "train.py"], tmp_path / "out", pairs=1)
    with pytest.raises(UsageError, match="no suite's file, no checkout"):
        interleave(sides["model.py"], tmp_path / "nothing", [], tmp_path / "out", pairs=1)
    assert not commands
    codes += [1, 2]  # something was not measured; refused
    with pytest.raises(UsageError, match="NEW in pair 1 ended with exit code 2"):
        interleave(sides["model.py"], sides["checkout"], [], tmp_path / "out", pairs=2)
    assert len(commands) == 2


def test_options_of_runs_belong_to_interleaving():
    options = parse(["compare", "a", "b", "--interleave", "out", "--", "--suite", "mlp"])
    assert (options.run_words, options.pairs) == (["--suite", "mlp"], 3)
    with pytest.raises(UsageError, match="only with --interleave"):
        parse(["compare", "a", "b", "--", "--suite", "mlp"])
