"""What a script writes is redirected and read back, in all its processes; the user's files stay."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.script.launcher import _fill, _remove_empty

MINE = {"model.pt": "mine", "runs/old.txt": "mine", "log.txt": "mine\n"}
"""The user's files."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a script under the hook among the user's files, and checks
    those.
    """
    home = tmp_path / "home"
    folder = tmp_path / "mine"
    for made in (home, folder / "runs", folder / "empty"):
        made.mkdir(parents=True)
    for name, text in MINE.items():
        (folder / name).write_text(text)
    before = shutil.copytree(folder, tmp_path / "before")
    _fill(home)
    settings = {
        "home": str(home),
        "warmup": 2,
        "steps": 4,
        "inject": "",
        "seed": 0,
        "allow_writes": False,
    }
    monkeypatch.setenv("AMPMETER_HOOK", json.dumps(settings))
    monkeypatch.setenv("PYTHONPATH", str(home / "site"))
    monkeypatch.setenv("TMPDIR", str(home / "tmp"))
    monkeypatch.chdir(folder)

    def run(text):
        main = Path("train.py")
        main.write_text(f"import os, shutil, subprocess, sys\nfrom pathlib import Path\n{text}")
        done = subprocess.run([sys.executable, main], capture_output=True, text=True, check=False)
        _remove_empty(home / "made")
        main.unlink()
        subprocess.run(["diff", "-r", before, "."], check=True)
        refused = ""
        for path in home.glob("out.*.json"):
            refused = json.loads(path.read_text())["refused"]
        return done, refused

    return run


WRITES = """
open("model.pt", "w").write("new")
assert open("model.pt").read() == "new"

open("log.txt", "a").write("more")
assert open("log.txt").read() == "mine\\nmore"

with open("log.txt", "r+") as file: file.write("M")
assert Path("log.txt").read_text() == "Mine\\n"

Path("new.txt").write_text("new")
assert Path("new.txt").stat().st_size == 3 and os.path.exists("new.txt")

os.makedirs("out/deep")
Path("out/deep/a").write_text("a")
assert Path("out/deep").is_dir()

Path("a").write_text("a")
os.replace("a", "model.pt")
assert Path("model.pt").read_text() == "a"

Path("a").write_text("a")
shutil.copy2("a", "model.pt")
assert Path("model.pt").read_text() == "a"

Path("a").write_text("a")
shutil.move("a", "b")
os.remove("b")
assert not os.path.exists("b")

import tempfile
name = tempfile.mkstemp()[1]
Path(name).write_text("a")
shutil.move(name, "b")
assert Path("b").read_text() == "a"

import tempfile
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file: file.write("a")
os.replace(file.name, "b")
assert Path("b").read_text() == "a"

import numpy as np
np.savez("b.npz", a=np.ones(2))
assert np.load("b.npz")["a"].sum() == 2

import logging
logging.basicConfig(filename="a")
logging.error("b")
assert "b" in Path("a").read_text()

os.makedirs("a")
Path("a/b").write_text("b")
shutil.rmtree("a")
assert not os.path.isdir("a")

Path("a").touch()
Path("model.pt").touch()
assert os.path.exists("a")

os.write(os.open("a", os.O_WRONLY | os.O_CREAT), b"a")
assert os.read(os.open("a", os.O_RDONLY), 9) == b"a"

os.write(os.open("model.pt", os.O_RDWR), b"M")
assert Path("model.pt").read_text() == "Mine"

os.close(os.open("model.pt", os.O_WRONLY | os.O_TRUNC))
assert Path("model.pt").read_text() == ""

os.chmod("model.pt", 0o700)
os.utime("model.pt", (1, 1))
assert os.stat("model.pt").st_mtime > 1

Path("a").write_text("a")
os.symlink("a", "b")
assert Path("b").read_text() == "a"
os.unlink("b")

os.symlink("model.pt", "b")
Path("b").write_text("b")
assert Path("model.pt").read_text() == "mine"

os.write(os.open("model.pt", os.O_RDWR, dir_fd=os.open(".", os.O_RDONLY)), b"M")

import glob
Path("s1.pt").write_text("a")
assert glob.glob("s*.pt") == ["s1.pt"]

Path("a").write_text("a")
assert {"a", "log.txt"} < {*os.listdir()}

Path("a").write_text("a")
assert "a" in [name for _, _, names in os.walk(".") for name in names]

os.makedirs("a/b")
Path("a/b/c").write_text("c")
shutil.rmtree("a")
os.mkdir("a")
assert not os.listdir("a")

os.makedirs("runs/a/b")
os.removedirs("runs/a/b")
assert os.listdir("runs") == ["old.txt"]

Path("a").write_text("a")
os.fsync(os.open("a", os.O_RDONLY))
"""


@pytest.mark.parametrize("text", WRITES.strip().split("\n\n"))
def test_a_file_that_a_script_writes_is_redirected_and_read_back(run, text):
    done, refused = run(text)
    assert done.returncode == 0, done.stderr
    assert refused == ""


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run([sys.executable, '-c', text], check=True)",
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=exec, args=(text,))\n"
        "    child.start(); child.join()\n"
        "    assert child.exitcode == 0",
        (
            "child = os.fork()\n"
            "if not child: exec(text); os._exit(0)\n"
            "assert os.waitpid(child, 0)[1] == 0"
        ),
    ],
    ids=["subprocess", "spawn", "fork"],
)
def test_the_processes_that_a_script_starts_write_to_the_same_folder(run, start):
    read = "if __name__ == '__main__': assert open('model.pt').read() == 'new'"
    done, _ = run(f'text = \'open("model.pt", "w").write("new")\'\n{start}\n{read}')
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('os.remove("model.pt")', "remove .*model.pt"),
        ('os.rename("model.pt", "old.pt")', "move .*model.pt"),
        ('shutil.rmtree("runs")', "remove .*runs/old.txt"),
        ('os.rename("runs", "old")', "move .*runs"),
    ],
)
def test_a_process_ends_before_it_does_to_the_users_files_what_cannot_be_redirected(run, text, why):
    done, refused = run(f"{text}\nprint('went on')")
    assert done.returncode == 3
    assert "went on" not in done.stdout
    assert re.search(why, refused)


def test_caches_and_temporary_files_are_written_where_they_belong(run, tmp_path, monkeypatch):
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HF_HOME", str(user / "models"))
    monkeypatch.setenv("HOME", str(user))
    text = """
for folder in (Path(os.environ["HF_HOME"]), Path.home() / ".cache"):
    folder.mkdir()
    (folder / "a").write_text("a")
"""
    done, _ = run(text)
    assert done.returncode == 0, done.stderr
    for cache in ("models", ".cache"):
        assert (user / cache / "a").read_text() == "a"
