"""One process at a time writes to a run's folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.run.folder import LOCK, locked
from bench.spec.errors import UsageError

HOLD = "import sys, time; from pathlib import Path; from bench.run.folder import locked\n"
HOLD += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


@pytest.fixture
def owner(tmp_path):
    """A process that holds the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_that_another_process_holds_is_refused_until_that_has_ended_in_whatever_way(tmp_path, owner):
    with pytest.raises(UsageError, match=f"in use by process {owner.pid} on .*{LOCK}"), locked(tmp_path):
        pass
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text().split()[0] == str(os.getpid())
    assert not (tmp_path / LOCK).exists()


def test_a_process_that_has_ended_does_not_hold_it_though_its_parent_has_not_noticed(tmp_path, owner):
    text = (tmp_path / LOCK).read_text()
    owner.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # which leaves it a zombie
    pid, host, *more = text.split()
    (tmp_path / LOCK).write_text("\n".join([pid, f"not-{host}", *more, ""]))
    with pytest.raises(UsageError, match=f"in use by process {pid} on not-"), locked(tmp_path):
        pass
    (tmp_path / LOCK).write_text(text)
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text().split()[0] == str(os.getpid())


def test_a_process_that_has_the_number_of_the_owner_is_not_the_owner(tmp_path, owner):
    pid, host, start = (tmp_path / LOCK).read_text().split()
    owner.kill()
    owner.wait()
    (tmp_path / LOCK).write_text(f"{os.getppid()}\n{host}\n{start}\n")
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text().split()[0] != pid


@pytest.mark.parametrize(("text", "named"), [("71\nnode-7\n12\n", "process 71 on node-7"), ("", "is in use. ")])
def test_an_owner_on_another_host_or_of_no_name_is_refused_with_the_name_of_the_file(tmp_path, text, named):
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(UsageError, match=f"{named}.*'{tmp_path / LOCK}'"), locked(tmp_path):
        pass
    assert (tmp_path / LOCK).read_text() == text


def test_a_folder_that_is_deleted_while_it_is_held_is_let_go(tmp_path):
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"):
        (tmp_path / "run" / LOCK).unlink()
        (tmp_path / "run").rmdir()
