"""Nothing that a launcher has started outlives it, the fork server or the worker, whichever is
killed.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench.launch.local import LocalLauncher
from bench.spec import lifetime
from bench.spec.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = (
    "import sys; from bench.launch.local import LocalLauncher; LocalLauncher().call(*sys.argv[1:])"
)
TIED = """
import ctypes, os, sys, time
from bench.spec import lifetime
lifetime.tie_forks()
if (child := os.fork()) == 0:
    ctypes.PyDLL(None).sleep(600)
print(child, flush=True)
time.sleep(600)
"""
THREADED = """
import os, threading, time
from bench.spec import lifetime
lifetime.tie_forks()
def fork():
    if (child := os.fork()) == 0:
        time.sleep(600)
    print(child, flush=True)
thread = threading.Thread(target=fork)
thread.start()
thread.join()
time.sleep(600)
"""


def runs(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def left(pids, seconds=5.0):
    """Return which of the processes still run after that time, or as soon as none does."""
    deadline = time.monotonic() + seconds
    running = [pid for pid in pids if runs(pid)]
    while running and time.monotonic() < deadline:
        time.sleep(0.02)
        running = [pid for pid in running if runs(pid)]
    for pid in running:
        print(psutil.Process(pid))
        os.kill(pid, signal.SIGKILL)
    return running


def forking(script):
    """Start a process that forks another; return it and the id of the other."""
    command = [sys.executable, "-c", script]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    return parent, int(parent.stdout.readline())


def test_a_forked_process_that_hangs_in_c_code_ends_with_its_parent():
    parent, child = forking(TIED)
    assert runs(child)
    parent.kill()
    parent.communicate()
    assert left([child]) == []


def test_a_thread_that_forks_and_ends_does_not_end_what_it_forked():
    parent, child = forking(THREADED)
    assert left([child], 0.1) == [child]
    parent.kill()
    parent.communicate()


def test_what_a_process_has_started_ends_with_it():
    assert left([LocalLauncher().call("tests.launch.hanging:leave_a_child")], 0.0) == []


def test_a_progress_bar_holds_nothing_that_outlives_its_process():
    pytest.importorskip("tqdm")
    assert LocalLauncher().call("tests.launch.hanging:draw_a_progress_bar") == []


def test_a_process_that_hangs_in_c_code_ends_with_all_that_it_started_and_the_next_begins(
    tmp_path,
):
    launcher = LocalLauncher()
    with pytest.raises(UsageError, match=r"hang failed: no sign of life for 0\.5 s"):
        launcher.call("tests.launch.hanging:hang", str(tmp_path / "note"), silence_s=0.5)
    pids = map(int, (tmp_path / "note").read_text().split())
    assert left([*pids], 0.5) == []
    launcher.call("tests.launch.hanging:leave_a_child")


def test_while_something_of_an_earlier_process_runs_nothing_is_measured_next_to_it(monkeypatch):
    monkeypatch.setattr("bench.launch.local.GONE_S", 0.1)
    launcher = LocalLauncher()
    with subprocess.Popen(["sleep", "600"], process_group=0) as stuck:
        launcher._left.add(stuck.pid)
        with pytest.raises(
            UsageError, match=f"Process {stuck.pid} of an earlier trial .* --resume"
        ):
            launcher.call("tests.launch.hanging:leave_a_child")
        stuck.kill()
    launcher.call("tests.launch.hanging:leave_a_child")


def launch_hanging(note):
    """Start a launcher of a process that writes a note and hangs."""
    command = [sys.executable, "-c", LAUNCH, "tests.launch.hanging:hang", str(note)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


def descendants(process):
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", "fork server", "worker"])
def test_whoever_is_killed_nothing_is_left(tmp_path, victim):
    note = tmp_path / "note"
    launcher = launch_hanging(note)
    while not note.exists():
        assert launcher.poll() is None
        time.sleep(0.02)
    worker, *_, own_session = map(int, note.read_text().split())
    victims = {
        "launcher": launcher.pid,
        "fork server": psutil.Process(worker).ppid(),
        "worker": worker,
    }
    started = descendants(launcher)
    os.kill(victims[victim], signal.SIGKILL)
    launcher.wait(10)
    if victim != "launcher":  # what has left its process group is known to the fork server alone
        os.kill(own_session, signal.SIGKILL)
    assert left([launcher.pid, *started]) == []


@pytest.mark.slow
def test_a_fork_server_that_imports_ends_with_its_launcher(tmp_path):
    note = tmp_path / "note"
    launcher = launch_hanging(note)
    while len(descendants(launcher)) < 2:
        time.sleep(0.02)
    time.sleep(0.5)
    assert not note.exists()
    started = descendants(launcher)
    launcher.kill()
    launcher.wait()
    assert left(started, 2.0) == []


def test_a_fork_server_whose_launcher_is_gone_before_it_asks_ends_at_once():
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    environment = {**os.environ, lifetime.LAUNCHER: str(gone.pid)}
    command = [sys.executable, "-c", "import bench.worker.fork_server"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 1
