"""Two sides measured by turns; the runs' processes are recorded, not started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cli.parser import parse
from bench.compare.command import COMMAND
from bench.compare.interleave import interleave
from bench.run.reporting import WITHOUT_REPORT
from bench.spec.errors import UsageError

PROGRAM = Path(__file__).resolve().parents[2] / "run_bench.py"


class Started:
    """Processes in place of runs: each notes its command, writes run.json if it ends with 0 or 1,
    and ends.
    """

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.codes: list[int | str] = []
        """How the next ones end; "silent" is 1 without a run, as of a Python that lacks a
        package."""

    def __call__(self, command, **how):
        assert how["env"][WITHOUT_REPORT]
        self.commands.append(command)
        code = self.codes.pop(0) if self.codes else 0
        if code in (0, 1):
            folder = Path(command[-1])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "run.json").touch()
        return SimpleNamespace(wait=lambda: 1 if code == "silent" else code)


@pytest.fixture
def started(monkeypatch) -> Started:
    """The runs, in place of processes."""
    processes = Started()
    monkeypatch.setattr("bench.compare.interleave.subprocess.Popen", processes)
    return processes


@pytest.fixture
def sides(tmp_path: Path) -> dict[str, Path]:
    """A suite's file, a checkout and an environment."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.py").touch()
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/run_bench.py").touch()
    (tmp_path / "environment/bin").mkdir(parents=True)
    for program in ("python", "ampmeter"):
        (tmp_path / "environment/bin" / program).touch(mode=0o755)
    return {name: tmp_path / name for name in ("model/model.py", "checkout", "environment")}


def test_each_pair_begins_with_the_side_that_the_one_before_ended_with(started, sides, tmp_path):
    out = tmp_path / "out"
    words = ["--suite", "mlp"]
    folders = interleave(sides["checkout"], sides["environment"], words, out, pairs=3)
    assert folders == (out / "old", out / "new")
    expected = []
    for name in ("old/1", "new/1", "new/2", "old/2", "old/3", "new/3"):
        expected.append([*words, "--resume", str(out / name)])
    assert [command[-4:] for command in started.commands] == expected


@pytest.mark.parametrize(
    ("side", "start"),
    [
        ("model/model.py", f"{sys.executable} {PROGRAM} --suite model/model.py "),
        ("checkout", f"{sys.executable} checkout/run_bench.py "),
        ("environment", f"environment/bin/python {PROGRAM} "),
    ],
)
def test_a_side_is_a_suite_a_checkout_or_an_environment(started, sides, tmp_path, side, start):
    interleave(sides[side], sides["checkout"], [], tmp_path / "out", pairs=1)
    command = " ".join(started.commands[0])
    assert command.replace(f"{tmp_path}/", "").startswith(start)


def test_an_installed_program_does_not_bring_its_torch_into_another_environment(
    started, sides, tmp_path, monkeypatch
):
    # As site-packages, without pyproject.toml.
    monkeypatch.setattr("bench.compare.interleave.ROOT", tmp_path)
    environment = sides["environment"]
    program = environment / "bin/ampmeter"
    interleave(environment, environment / "bin/python", [], tmp_path / "out", pairs=1)
    assert {command[0] for command in started.commands} == {str(program)}
    program.unlink()
    with pytest.raises(UsageError, match="install it there"):
        interleave(environment, sides["checkout"], [], tmp_path / "other", pairs=1)


@pytest.mark.parametrize(
    ("new", "words", "why"),
    [
        ("checkout", ["script", "--", "train.py"], "not the command 'script'"),
        ("nothing", [], "no suite's file, no checkout"),
        ("checkout", ["--suite=mlp"], "leave out --suite"),
    ],
)
def test_what_is_no_side_is_refused_before_anything_is_measured(started, sides, new, words, why):
    folder = sides["checkout"].parent
    with pytest.raises(UsageError, match=why):
        interleave(sides["model/model.py"], folder / new, words, folder / "out", pairs=1)
    assert not started.commands


@pytest.mark.parametrize(
    ("codes", "where"),
    [
        ([1, 2], "NEW in pair 1 ended with exit code 2"),
        ([0, 0, "silent"], "NEW in pair 2 ended with exit code 1"),
    ],
)
def test_a_run_that_is_refused_or_does_not_start_ends_it(started, sides, tmp_path, codes, where):
    count = len(codes)
    started.codes += codes
    with pytest.raises(UsageError, match=where):
        interleave(sides["model/model.py"], sides["checkout"], [], tmp_path / "out", pairs=2)
    assert len(started.commands) == count


def test_a_folder_takes_more_pairs_but_no_runs_of_other_code(started, sides, tmp_path):
    model, out = sides["model/model.py"], tmp_path / "out"
    interleave(model, sides["checkout"], [], out, pairs=1)
    interleave(model, sides["checkout"], [], out, pairs=2)
    assert len(started.commands) == 6
    (model.parent / ".#model.py").symlink_to("nothing")
    interleave(model, sides["checkout"], [], out, pairs=1)
    del started.commands[6:]
    for old, words in ((sides["checkout"], []), (model, ["--quick"])):
        with pytest.raises(UsageError, match="other sides or with other options"):
            interleave(old, sides["checkout"], words, out, pairs=2)
    later = time.time() + 1
    (model.parent / "layers.py").touch()
    os.utime(model.parent / "layers.py", (later, later))
    with pytest.raises(UsageError, match=r"layers\.py' was edited after"):
        interleave(model, sides["checkout"], [], out, pairs=2)
    assert len(started.commands) == 6


def test_an_interruption_lets_the_run_end_by_itself(tmp_path):
    side = tmp_path / "checkout"
    side.mkdir()
    (side / "run_bench.py").write_text("""
import signal, sys, time
from pathlib import Path

def end(*_):
    time.sleep(0.5)
    Path(__file__).with_name("ended").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, end)
Path(__file__).with_name("began").touch()
time.sleep(60)
""")
    command = [sys.executable, PROGRAM, "compare", side, side]
    words = ["--interleave", tmp_path / "out"]
    process = subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True)
    while not (side / "began").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (side / "ended").exists()
    assert process.returncode == 130
    assert "The same command goes on" in errors


def test_options_of_runs_belong_to_interleaving():
    options = parse(["compare", "a", "b", "--interleave", "out", "--", "--suite", "mlp"])
    assert (options.words, options.pairs) == (("--suite", "mlp"), 3)
    with pytest.raises(UsageError, match="only with --interleave"):
        COMMAND.run(parse(["compare", "a", "b", "--", "--suite", "mlp"]))
