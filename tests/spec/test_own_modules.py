"""Processes import this project's modules, whatever the user's folder holds."""

import subprocess
import sys

import pytest

from bench.spec.own_modules import ROOT

START = """
import multiprocessing, sys
import bench.spec.errors
from contextlib import nullcontext
from bench.spec.own_modules import own_modules_first

if __name__ == "__main__":
    sys.path.insert(0, "")
    context = multiprocessing.get_context(sys.argv[1])
    context.set_forkserver_preload(["bench.spec.errors"])
    child = context.Process(target=bench.spec.errors.first_line, args=(ValueError("one"),))
    with own_modules_first() if sys.argv[2] == "ours" else nullcontext():
        child.start()
    child.join()
    assert sys.path[0] == ""
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("whose", ["ours", "the user's"])
def test_a_process_does_not_import_a_module_of_the_users_in_the_place_of_ours(tmp_path, method, whose):
    for name in ("bench", "suites"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this module is the user\\'s')")
    start = tmp_path / "elsewhere" / "start.py"
    start.parent.mkdir()
    start.write_text(START)
    environment = {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(start), method, whose]
    done = subprocess.run(words, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) == (whose == "ours"), done.stderr
    assert ("the user's" in done.stderr) == (whose != "ours")
