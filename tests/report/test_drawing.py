"""Processes that draw: ready before anything is read, and done without where they cannot be had."""

import os
import signal
import subprocess
import sys
import textwrap
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
        page, *_ = report([Path("{run}")], Path("{out}"))
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
