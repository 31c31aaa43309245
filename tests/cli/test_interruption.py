"""Ctrl-C and its like: the first stops the work, the second ends the process, and none is lost."""

import io
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import run_bench
from bench.cli.interruption import Interruption

ROOT = Path(__file__).resolve().parents[2]


def python(words, *arguments):
    command = [sys.executable, "-c", words, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_raises_and_others_that_come_with_it_do_not(number, code):
    before = signal.getsignal(number)
    with Interruption() as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
    assert signals.exit_code == code
    assert signal.getsignal(number) is before


def test_a_signal_that_the_user_has_switched_off_stays_off():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interruption():
        signal.raise_signal(signal.SIGINT)


SECOND = """
import signal, sys
from pathlib import Path
from bench.cli import interruption
interruption.TOGETHER_S = 0.0
with interruption.Interruption() as signals:
    signals.folder = Path(sys.argv[1])
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        print("once more", flush=True)
        signal.raise_signal(signal.SIGINT)
        print("goes on", flush=True)
"""


def test_a_second_signal_ends_the_process_at_once_and_says_how_the_run_goes_on(tmp_path):
    (tmp_path / "run.json").touch()
    done = python(SECOND, tmp_path)
    assert done.returncode == 143
    assert done.stdout == "once more\n"
    assert f"python run_bench.py --resume {tmp_path}\nrun_bench: stopped.\n" in done.stderr


IMPORTING = """
import builtins, signal, sys
import run_bench
take, module = builtins.__import__, sys.argv.pop()
def interrupted(name, *rest):
    if name == module:
        builtins.__import__ = take
        signal.raise_signal(signal.SIGINT)
    return take(name, *rest)
builtins.__import__ = interrupted
sys.exit(run_bench.main())
"""


@pytest.mark.parametrize("module", ["bench.cli.interruption", "bench.cli.parser"])
def test_ctrl_c_while_modules_are_imported_is_answered(module):
    done = python(IMPORTING, module)
    assert done.returncode == 130
    assert done.stderr == "run_bench: stopped.\n"


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_run_that_has_stored_nothing_is_stopped_without_advice(tmp_path, capfd, has_folder):
    signals = Interruption()
    if has_folder:
        signals.folder = tmp_path
    signals.tell_stopped()
    assert capfd.readouterr().err == "run_bench: stopped.\n"


def test_ctrl_c_is_answered_where_stdout_is_no_file(monkeypatch, capfd):
    monkeypatch.setattr(run_bench, "_main", mock.Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert run_bench.main([]) == 130
    assert "stopped" in capfd.readouterr().err
