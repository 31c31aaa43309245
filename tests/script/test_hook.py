"""The hook in real scripts: it sees each step, changes no number, and leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.script.steps import RefusedError, timing
from bench.spec.own_modules import ROOT
from tests.script.test_launcher import run_process

pytestmark = pytest.mark.slow

START = """
import importlib.util
import sys
from pathlib import Path

importlib.util.find_spec("torch")  # some libraries look for it before it is imported
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss(part=model):
    return part(torch.randn(4, 8)).square().mean()

"""
LOOP = """
for step in range(200):
    value = loss()
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a script for 12 measured steps, and returns each rank's record.

    In the memory phase it counts the products instead.
    """
    monkeypatch.chdir(tmp_path)

    def run(text, *, before="", **more):
        Path("train.py").write_text(START + text)
        words = (*before.split(), "train.py")
        records = run_process(words, steps=12, **more)
        if "phase" not in more:
            for record in records:
                assert len(record["steps"]) == 4 + 12 + 1
        return records

    return run


EXAMPLES = ROOT / "docs" / "examples" / "scripts"
BIN = Path(sys.executable).parent


@pytest.fixture
def lightning():
    """A script with Lightning's Trainer."""
    pytest.importorskip("lightning")
    return (EXAMPLES / "lightning_mlp.py").read_text()


def test_losses_are_those_of_a_bare_run_and_nothing_of_the_script_runs_after_its_last_step(run):
    for name in ("hook.py", "bench.py"):
        Path(name).write_text("WHOSE = 'the script'")
    text = """
import bench, hook
assert bench.WHOSE == hook.WHOSE == "the script"
assert not [entry for entry in sys.path if entry.endswith("/site")]
losses = []
try:
    for step in range(20):
        value = loss()
        losses.append(value.item())
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    Path("last.json").write_text(str(losses))
"""
    (record,) = run(text)
    assert not Path("last.json").exists()
    subprocess.run([sys.executable, "train.py"], check=True)
    bare = json.loads(Path("last.json").read_text())
    measured = [step["loss"] for step in record["steps"]]
    assert measured == bare[: len(measured)]


@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps_are_counted_exactly(run, fused):
    text = f"""
optimizer = torch.optim.AdamW(model.parameters(), fused={fused})
scaler = torch.amp.GradScaler("cpu")
for step in range(200):
    value = loss() * (float("inf") if step in (6, 9, 10) else 1.0)
    scaler.scale(value).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    (record,) = run(text)
    steps = record["steps"]
    skipped = [number for number, step in enumerate(steps) if step["skipped"]]
    assert skipped == [6, 9, 10]
    assert 0.0 < steps[5]["loss"] < 100.0  # not the scaled one


def test_gradients_may_come_from_autograd_grad(run):
    text = """
for step in range(200):
    parameters = list(model.parameters())
    for part, gradient in zip(parameters, torch.autograd.grad(loss(), parameters)):
        part.grad = gradient
    optimizer.step()
"""
    assert len(run(text)) == 1


def test_an_optimizer_that_is_built_anew_goes_on_with_its_parameters(run):
    text = """
for step in range(200):
    if step % 10 == 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss().backward()
    optimizer.step()
"""
    (record,) = run(text)
    assert record["optimizers"] == ["SGD"]


def test_evaluation_marks_its_interval_also_when_it_begins_late(run):
    text = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = model

    def forward(self, x):
        return self.part(x)


net = torch.nn.DataParallel(Net())
for step in range(200):
    if step == 9:
        with torch.no_grad():
            loss(net.module)
    if step == 12:
        with torch.no_grad():
            loss(torch.nn.ReLU())
    loss(net).backward()
    optimizer.step()
"""
    (record,) = run(text)
    marks = [step["marks"] for step in record["steps"]]
    assert marks.pop(9) == ["evaluation of Net"]
    assert not any(marks)


def test_torchrun_has_a_record_of_each_rank_and_leaves_no_process(run, tmp_path):
    text = """
import torch.utils.data as data

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
loader = data.DataLoader(
    torch.randn(4000, 8), batch_size=4, num_workers=1, multiprocessing_context="spawn"
)
for batch in loader if __name__ == "__main__" else ():
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    first, second = run(text, before=f"{BIN}/torchrun --nproc_per_node 2")
    assert timing(first, 4).wait_pct is not None
    assert timing(second, 4).wait_pct is not None
    # A tracker of multiprocessing's resources may live on for a moment; the loaders may not.
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join(process.info["cmdline"] or [])
        assert process.info["cwd"] != str(tmp_path) or "spawn_main" not in words


def test_lightnings_trainer_is_measured_as_it_is(run, lightning):
    options = "--precision bf16-mixed --width 64"
    (record,) = run(lightning, options=options, phase="memory")
    assert record["optimizers"] == ["Adam"]
    assert set(record["computed"]) == {"bfloat16"}
    assert timing(record, 4).loss is not None


def test_a_script_started_by_accelerate_is_measured_as_it_is(run):
    pytest.importorskip("accelerate")
    text = (EXAMPLES / "accelerate_mlp.py").read_text()
    starter = f"{BIN}/accelerate launch --cpu --num_processes 1"
    options = "--mixed_precision bf16 --width 64"
    (record,) = run(text, before=starter, options=options, phase="memory")
    assert set(record["computed"]) == {"bfloat16"}
    for step in record["steps"]:
        assert step["loss"] is not None
        assert step["backwards"] == 1


def test_each_process_that_lightning_starts_itself_has_a_record(run, lightning):
    assert len(run(lightning, options="--devices 2 --width 64")) == 2


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_that_train_have_a_record_each_and_write_to_the_scratch_folder(run, method):
    text = f"""
import tempfile


def train(rank):
    meeting = "file://" + tempfile.gettempdir() + "/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    assert torch.load("checkpoint.pt") == "the first"
    for step in range(200):
        loss().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.save("the first", "checkpoint.pt")
    torch.multiprocessing.start_processes(train, nprocs=2, start_method="{method}")
"""
    Path("checkpoint.pt").write_text("the user's")
    assert len(run(text)) == 2
    assert Path("checkpoint.pt").read_text() == "the user's"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("while True:\n    loss().backward()", "in 1000 backward passes"),
        ("while True:\n    torch.autograd.grad(loss(), [*model.parameters()])", "in 1000 backward"),
        ("loss()", "update rule"),
    ],
)
def test_a_script_that_takes_no_step_is_ended(run, text, why):
    with pytest.raises(RefusedError, match=why):
        run(text)


def test_products_of_an_optimizer_are_not_the_models(run):
    text = """
class Orthogonal(torch.optim.SGD):
    def step(self, closure=None):
        narrow = torch.ones(4, 4, dtype=torch.bfloat16)
        narrow @ narrow
        return super().step(closure)


optimizer = Orthogonal(model.parameters(), lr=0.1)
"""
    (record,) = run(text + LOOP, phase="memory")
    assert set(record["computed"]) == {"float32"}


def test_a_script_has_a_terminal_and_no_input(run):
    text = """
import os, shutil
assert os.popen("stty size").read().split() == ["24", "80"]
assert sys.stdin.isatty() and sys.stdout.isatty() and shutil.get_terminal_size().columns == 80
assert sys.stdin.readline() == ""
"""
    assert len(run(text + LOOP)) == 1


def test_what_a_script_printed_is_in_its_row_as_it_was_printed(run):
    with pytest.raises(RefusedError, match="it printed last: ValueError: one") as refused:
        run("print('first\\nsecond')\nraise ValueError('one')")
    assert "first\nsecond\n" in refused.value.log


COMPILED = {
    "a module": "forward = torch.compile(model)",
    "its forward": "forward = torch.compile(model.forward)",
    "a function": "forward = torch.compile(lambda batch: model(batch))",
    "a decorated function": "@torch.compile\ndef forward(batch): return model(batch)",
    "a module in place, without a graph break": (
        "model.compile(fullgraph=True, backend='eager'); forward = model"
    ),
}


@pytest.mark.parametrize("way", COMPILED)
def test_what_is_injected_reaches_what_a_script_compiles(run, way):
    loop = LOOP.replace("loss()", "loss(forward)")
    text = f"{COMPILED[way]}\n{loop}"
    (record,) = run(text, name="amp-bf16", inject=True, phase="memory")
    assert set(record["computed"]) == {"bfloat16"}
