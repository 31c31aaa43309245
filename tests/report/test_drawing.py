"""Processes that draw: ready before anything is read, and done without where they cannot be had."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bench.report import drawing
from tests.report.builders import RunBuilder

ROOT = Path(__file__).resolve().parents[2]
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
    import sys, time
    from bench.report import drawing

    def main():
        drawing._cores = lambda: 3
        with drawing.drawers() as pool:
            print(*{{pool.submit(drawing.os.getpid).result() for _ in range(20)}}, flush=True)
            pool.submit(time.sleep, 600)
            time.sleep(600)
"""


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "ended_by", [[signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGKILL]]
)
def test_processes_that_draw_end_with_the_one_that_asked(tmp_path, ended_by):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HELD.replace("{{", "{").replace("}}", "}") + GUARDED), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as asks:
        assert asks.stdout is not None
        drawing_processes = [int(word) for word in asks.stdout.readline().split()]
        assert drawing_processes
        assert all(map(alive, drawing_processes))
        for number in ended_by:
            os.killpg(asks.pid, number) if number == signal.SIGINT else asks.send_signal(number)
            time.sleep(0.3)
        asks.communicate(timeout=60)
    until = time.monotonic() + 60
    while any(map(alive, drawing_processes)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, drawing_processes))
