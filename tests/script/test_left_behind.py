"""Nothing of a script stays: files, processes and variables are as they were before."""

import os
import tempfile
from pathlib import Path

import psutil
import pytest

from bench.script.steps import RefusedError
from tests.script.test_hook import BIN, START
from tests.script.test_launcher import run_process

pytestmark = pytest.mark.slow

TRAIN = """
for step in range(200):
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 3:
        save()
"""
SPAWNED = """
def train(rank=0):
    for step in range(200):
        loss().backward()
        optimizer.step()
        if step == 3:
            save()


if __name__ == "__main__":
    {start}
"""
SHAPES = {
    "a checkpoint by its path": "def save(): torch.save(model.state_dict(), 'model.pt')" + TRAIN,
    "new folders, and the best of the checkpoints": """
import os, shutil
def save():
    os.makedirs("runs/first", exist_ok=True)
    torch.save(model.state_dict(), "runs/first/last.pt")
    shutil.copyfile("runs/first/last.pt", "runs/first/best.pt")
    assert torch.load("runs/first/best.pt")
"""
    + TRAIN,
    "safetensors": (
        "import safetensors.torch as st\ndef save(): st.save_file(model.state_dict(), 'model.pt')"
    )
    + TRAIN,
    "logs, and wandb's folder": """
import os, logging
logging.basicConfig(filename="train.log")
def save():
    logging.error("saved")
    os.makedirs(os.path.join(os.environ.get("WANDB_DIR", "."), "wandb"))
    Path("metrics.csv").write_text("1")
"""
    + TRAIN,
    "a neighbour": "from neighbour import save" + TRAIN,
    "multiprocessing's own files": (
        "from multiprocessing import Manager\nsave = Manager().dict().copy"
    )
    + TRAIN,
    "a compiled model": "import torch._inductor\nmodel.compile()\ndef save(): pass" + TRAIN,
    "spawned children": "def save(): torch.save(1, 'model.pt')"
    + SPAWNED.format(start="torch.multiprocessing.spawn(train, nprocs=2)"),
    "torchrun": "def save(): torch.save(1, 'model.pt')" + TRAIN,
    "a program that goes on by itself": """
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True)
def save(): torch.save(1, "model.pt")
"""
    + TRAIN,
    "a failure after a checkpoint": "def save(): torch.save(1, 'model.pt'); raise SystemExit(7)"
    + TRAIN,
}


def contents(folder):
    """Return the files of a folder with their contents, and its folders; caches aside."""
    found = {}
    for path in folder.rglob("*"):
        if "home" not in path.relative_to(folder).parts:
            found[path] = path.read_bytes() if path.is_file() else None
    return found


@pytest.fixture
def folder(monkeypatch):
    """Yield the user's folder, with a temporary folder beside it, both in use.

    Their path is short, as sockets need it.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "mine"
        temporary = Path(place) / "temporary"
        folder.mkdir()
        temporary.mkdir()
        (folder / "model.pt").write_text("mine")
        (folder / "neighbour.py").write_text("def save(): pass")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setenv("HOME", f"{place}/home")
        yield folder


@pytest.mark.parametrize("shape", SHAPES)
def test_a_script_leaves_no_file_and_no_process(folder, shape):
    (folder / "train.py").write_text(START + SHAPES[shape])
    words = ("train.py",)
    if shape == "torchrun":
        words = (f"{BIN}/torchrun", "--nproc_per_node", "2", "train.py")
    files = contents(folder.parent)
    environment = variables()
    if "failure" in shape:
        with pytest.raises(RefusedError, match="exit code 7"):
            run_process(words, steps=8)
    else:
        for record in run_process(words, steps=8):
            assert len(record["steps"]) == 4 + 8 + 1
    assert contents(folder.parent) == files
    assert variables() == environment
    for process in psutil.process_iter(["cwd", "status"]):
        if process.pid != os.getpid() and process.info["cwd"] == str(folder):
            assert process.info["status"] == psutil.STATUS_ZOMBIE, process


def variables():
    """Return the environment, without what any launcher sets."""
    launchers = ("AMPMETER_LAUNCHER", "GOMP_SPINCOUNT", "PYTHONPATH")
    return {name: os.environ[name] for name in os.environ if name not in launchers}
