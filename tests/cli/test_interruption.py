"""Ctrl-C and its like: the first stops, the next skips, and none is lost."""

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.cli import interruption
from bench.cli.interruption import Interrupted, Interruption
from bench.run import reporting

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    """Stands still until ``now_s`` is set."""

    now_s = 0.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def hangup_ends():
    """Let the end of the terminal end this process, also where the tests were started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def each_counts(monkeypatch):
    """Let signals that come together count one by one."""
    monkeypatch.setattr(interruption, "TOGETHER_S", 0.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_raises_and_others_count_until_they_may_raise_again(number, code, hangup_ends, each_counts):
    with Interruption(for_good=False) as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert not signals.again
        signal.raise_signal(signal.SIGTERM)  # while the work is stopped
        assert signals.again
    assert signals.exit_code == code
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_the_work_is_stopped_the_next_signal_skips_the_report(each_counts):
    with Interruption(for_good=False) as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signals.accept()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_signals_that_come_together_are_one(monkeypatch):
    monkeypatch.setattr(interruption, "time", Clock())
    with Interruption(for_good=False) as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signals.accept()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert (signals.came, signals.again) == ([signal.SIGINT], False)


def test_a_signal_that_the_user_has_switched_off_stays_off():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Interruption(for_good=False) as signals:
            signal.raise_signal(signal.SIGHUP)
        assert signals.came == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_at_a_terminal_that_is_gone_is_answered_and_what_is_written_there_is_no_error():
    master, terminal = os.openpty()
    with Interruption(for_good=False) as signals:
        signals._terminals = [terminal]
        os.close(master)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert os.write(terminal, b"stopped") == 7
    os.close(terminal)


def test_an_interruption_that_python_swallows_is_raised_again():
    class Swallowing:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.01)

    with Interruption(for_good=False):
        one = Swallowing()
        del one
        with pytest.raises(KeyboardInterrupt):
            time.sleep(5.0)


INTERRUPTED = """
import signal, time
from bench.cli import interruption
signal.raise_signal(signal.SIGINT)
for later_s in {}:
    interruption.time.now_s += later_s
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        pass
whole = True
"""


@pytest.mark.parametrize(("lasts_s", "whole"), [((0.1,), True), ((0.5,), True), ((0.5, 60.0), False)])
def test_an_import_is_finished_first_unless_it_lasts(lasts_s, whole, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(interruption, "time", Clock())
    (tmp_path / "half_made.py").write_text(INTERRUPTED.format(lasts_s))
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def importing():
        made.append(importlib.import_module("half_made"))
        time.sleep(60.0)

    with Interruption(for_good=False, program="it"), pytest.raises(KeyboardInterrupt):
        importing()
    sys.modules.pop("half_made", None)
    assert capfd.readouterr().err == ("it: stopping.\n" if sum(lasts_s) > interruption.SILENT_S else "")
    assert [module.whole for module in made] == [True] * whole


THIRD = """
import signal, time
from bench.cli import interruption
from bench.cli.interruption import Interruption
interruption.TOGETHER_S = 0.0
with Interruption(for_good=True, program="it"):
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        signal.raise_signal(signal.SIGINT)
        print("once more", flush=True)
        signal.raise_signal(signal.SIGINT)
        print("goes on", flush=True)
"""


def test_the_third_signal_ends_the_process():
    done = subprocess.run([sys.executable, "-c", THIRD], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "once more\n", "it: stopped.\n")


IMPORTING = """
import builtins, signal, sys
import run_bench
take = builtins.__import__
def interrupted(name, *rest):
    if name == sys.argv.pop():
        builtins.__import__ = take
        signal.raise_signal(signal.SIGINT)
    return take(name, *rest)
builtins.__import__ = interrupted
sys.exit(run_bench.main())
"""


@pytest.mark.parametrize("module", ["bench.cli.interruption", "bench.cli.parser"])
def test_ctrl_c_while_modules_are_imported_is_answered(module):
    program = IMPORTING.replace("sys.argv.pop()", repr(module))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "run_bench: stopped.\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_whose_reader_is_gone_is_printed_to_stderr(unbuffered):
    words = "from bench.cli.interruption import tell; tell('first'); tell('second')"
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr.split()) == (0, ["first", "second"])


def test_a_run_that_was_stopped_gets_its_report_unless_another_ctrl_c_came(tmp_path, capsys):
    reported = []
    with Interruption(for_good=False) as signals:
        interruption.report_interrupted(None, signals, reported.append)
        assert reported == []
        interruption.report_interrupted(tmp_path, signals, reported.append)
        assert reported == [tmp_path]
        signals.came = [signal.SIGINT, signal.SIGINT]
        with pytest.raises(Interrupted):
            interruption.report_interrupted(tmp_path, signals, reported.append)
    assert reported == [tmp_path]
    assert f"report {tmp_path} writes one" in capsys.readouterr().out.replace("\n", " ")


def test_what_is_said_of_a_stopped_run_is_what_is_finished_and_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run_bench.py"])
    interruption.tell_interrupted(None)
    assert "the same command" in capsys.readouterr().out
    folder = tmp_path / "a run"
    shutil.copytree(ROOT / "results" / "resnet20-cpu-epyc-parity", folder)
    header, first, *_ = (folder / "trials.csv").read_text().splitlines(keepends=True)
    (folder / "trials.csv").write_text(header + first.replace(",ok,", ",failed,"))
    interruption.tell_interrupted(folder)
    assert "before a trial was finished" in capsys.readouterr().out
    (folder / "trials.csv").write_text(header + first)
    interruption.tell_interrupted(folder)
    said = capsys.readouterr().out
    assert "1 of 15" in said
    assert f"python run_bench.py --resume '{folder}'" in said
    monkeypatch.setattr(sys, "argv", ["/usr/bin/ampmeter"])
    interruption.tell_interrupted(folder)
    assert f"ampmeter --resume '{folder}'" in capsys.readouterr().out


def test_ctrl_c_while_a_report_is_printed_says_where_it_is_and_before_that_there_is_none(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    def said():
        with pytest.raises(Interrupted):
            interruption.skippable(tmp_path, lambda folder: reporting.report([folder], folder))
        return capsys.readouterr().out.replace("\n", " ")

    monkeypatch.setattr(reporting.reporter, "report", interrupted)
    assert "No report was written" in said()
    monkeypatch.setattr(reporting.reporter, "report", lambda *_, **__: None)
    monkeypatch.setattr(reporting.reporter, "terminal", interrupted)
    out = said()
    assert "No report was written" not in out
    assert "report.html" in out
