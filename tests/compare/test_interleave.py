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

    def __init__(self):
        self.commands = []
        self.codes = []
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
def started(monkeypatch):
    """The runs, in place of processes."""
    processes = Started()
    monkeypatch.setattr("bench.compare.interleave.subprocess.Popen", processes)
    return processes


@pytest.fixture
def measure(started, tmp_path):
    """Measure two sides by turns: those of a suite's file, a checkout and an environment."""
    for folder in ("suite", "checkout", "environment/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("suite/model.py", "checkout/run_bench.py"):
        (tmp_path / file).touch()
    for program in ("python", "ampmeter"):
        (tmp_path / "environment/bin" / program).touch(mode=0o755)

    def measure(old="suite/model.py", new="checkout", words=(), pairs=1):
        return interleave(tmp_path / old, tmp_path / new, words, tmp_path / "out", pairs=pairs)

    return measure


def test_each_pair_begins_with_the_side_that_the_one_before_ended_with(started, measure, tmp_path):
    out = tmp_path / "out"
    folders = measure("checkout", "environment", ["--suite", "mlp"], pairs=3)
    assert folders == (out / "old", out / "new")
    runs = []
    for command in started.commands:
        *_, suite, name, resume, folder = command
        assert (suite, name, resume) == ("--suite", "mlp", "--resume")
        runs.append(folder.removeprefix(f"{out}/"))
    assert runs == ["old/1", "new/1", "new/2", "old/2", "old/3", "new/3"]


@pytest.mark.parametrize(
    ("side", "start"),
    [
        ("suite/model.py", f"{sys.executable} {PROGRAM} --suite suite/model.py "),
        ("checkout", f"{sys.executable} checkout/run_bench.py "),
        ("environment", f"environment/bin/python {PROGRAM} "),
    ],
)
def test_a_side_is_a_suite_a_checkout_or_an_environment(started, measure, tmp_path, side, start):
    measure(side)
    command = " ".join(started.commands[0])
    assert command.replace(f"{tmp_path}/", "").startswith(start)


def test_an_installed_program_does_not_bring_its_torch_into_another_environment(
    started, measure, tmp_path, monkeypatch
):
    # As site-packages, without pyproject.toml.
    monkeypatch.setattr("bench.compare.interleave.ROOT", tmp_path)
    program = tmp_path / "environment/bin/ampmeter"
    measure("environment", "environment/bin/python")
    assert {command[0] for command in started.commands} == {str(program)}
    program.unlink()
    with pytest.raises(UsageError, match="install it there"):
        measure("environment")


@pytest.mark.parametrize(
    ("new", "words", "why"),
    [
        ("checkout", ["script", "--", "train.py"], "not the command 'script'"),
        ("nothing", [], "no suite's file, no checkout"),
        ("checkout", ["--suite=mlp"], "leave out --suite"),
    ],
)
def test_what_is_no_side_is_refused_before_anything_is_measured(started, measure, new, words, why):
    with pytest.raises(UsageError, match=why):
        measure(new=new, words=words)
    assert not started.commands


@pytest.mark.parametrize(
    ("codes", "where"),
    [
        ([1, 2], "NEW in pair 1 ended with exit code 2"),
        ([0, 0, "silent"], "NEW in pair 2 ended with exit code 1"),
    ],
)
def test_a_run_that_is_refused_or_does_not_start_ends_it(started, measure, codes, where):
    started.codes += codes
    with pytest.raises(UsageError, match=where):
        measure(pairs=2)
    assert len(started.commands) == len(codes)


def test_a_folder_takes_more_pairs_but_no_runs_of_other_code(started, measure, tmp_path):
    measure(pairs=1)
    (tmp_path / "suite/.#model.py").symlink_to("nothing")
    measure(pairs=2)
    assert len(started.commands) == 6
    for others in ({"old": "checkout"}, {"words": ["--quick"]}):
        with pytest.raises(UsageError, match="other sides or with other options"):
            measure(**others)
    added = tmp_path / "suite/layers.py"
    added.touch()
    later = time.time() + 1
    os.utime(added, (later, later))
    with pytest.raises(UsageError, match=r"layers\.py' was edited after"):
        measure()
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
