"""Processes that draw: ready before anything is read, and done without where they cannot be had."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from bench.report.figures import drawing
from tests.report.builders import RunBuilder

ROOT = Path(__file__).resolve().parents[3]
REPORT = """
    import sys
    from pathlib import Path

    from bench.report import drawing, report

    def main():
        drawing._cores = lambda: {cores}
        page, *_ = report([Path("{run}")], Path("{out}"), beside=True)
        print("matplotlib" in sys.modules, page)
"""
GUARDED = "\n    if __name__ == '__main__':\n        main()\n"
UNGUARDED = "\n    main()\n"


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run").speed().folder


def reported(run: Path, end: str, cores: int) -> tuple[str, list[str]]:
    """Run a program that makes a report; return what it printed and the figures there are."""
    program, out = run.parent / "program.py", run.parent / "out"
    program.write_text(textwrap.dedent(REPORT.format(cores=cores, run=run, out=out) + end), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True).stdout
    return said.splitlines()[-1].split()[0], sorted(path.suffix for path in out.glob("*-speed.*"))


def test_others_draw_and_the_process_that_asks_never_imports_matplotlib(run):
    assert reported(run, GUARDED, cores=3) == ("False", [".png", ".svg"])


def test_with_one_core_it_draws_itself(run):
    assert reported(run, GUARDED, cores=1) == ("True", [".png", ".svg"])


def test_a_program_that_cannot_be_imported_draws_itself(run):
    assert reported(run, UNGUARDED, cores=3) == ("True", [".png", ".svg"])


def test_a_process_that_has_matplotlib_asks_nobody(monkeypatch):
    monkeypatch.setattr(drawing, "_cores", lambda: 8)
    monkeypatch.setitem(sys.modules, "matplotlib", object())
    with drawing.drawers() as pool:
        assert pool is None


def test_processes_that_draw_do_not_hear_of_an_interrupt(monkeypatch):
    monkeypatch.setattr(drawing, "_cores", lambda: 2)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with drawing.drawers() as pool:
        assert pool is not None
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_without_being_asked_to_a_program_draws_itself_and_nothing_is_said(run):
    program = run.parent / "program.py"
    text = textwrap.dedent(REPORT.format(cores=3, run=run, out=run.parent / "out") + UNGUARDED)
    program.write_text(text.replace(", beside=True", ""), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True)
    assert (done.stderr, done.stdout.split()[0]) == ("", "True")


HELD = """
    import os, signal
    from bench.report import drawing

    def main():
        drawing._cores = lambda: 3
        with drawing.drawers() as pool:
            print(pool.submit(os.getpid).result(), flush=True)
            pool.submit(signal.pause)
            signal.pause()
"""


@pytest.mark.parametrize(
    "ended_by", [[signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGKILL]]
)
def test_processes_that_draw_end_with_the_one_that_asked(tmp_path, ended_by):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HELD + GUARDED), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen([sys.executable, program], env=environment, **pipes) as asks:
        try:
            assert int(asks.stdout.readline()) != asks.pid
            for number in ended_by:
                if number == signal.SIGINT:  # a terminal sends it to all
                    os.killpg(asks.pid, number)
                else:
                    asks.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    asks.wait(timeout=0.3)
            asks.communicate(timeout=20)  # the output ends when the last process that holds it does
        finally:
            with suppress(ProcessLookupError):
                os.killpg(asks.pid, signal.SIGKILL)
