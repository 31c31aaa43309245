"""Loss scaling entered from outside trains as a GradScaler in the script does."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.script.steps import RefusedError
from tests.script.test_launcher import run_process

pytestmark = pytest.mark.slow

MODEL = """
import torch
from torch import nn

torch.manual_seed(0)
model, second = (nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(2))
data = torch.randn(400, 4, 8)
notes = []

def huge(*numbers):  # the gradients of these iterations are infinite in float16
    return 1e6 if number in numbers else 1
"""
OUTSIDE = """
def forward(part, batch):
    return part(batch)

def scaled(loss):
    return loss

def step(optimizer):
    optimizer.step()

def unscale(optimizer):
    pass

def update():
    pass
"""
BY_HAND = """
scaler = torch.amp.GradScaler("cpu")
scaled, step, unscale, update = scaler.scale, scaler.step, scaler.unscale_, scaler.update

def forward(part, batch):
    with torch.autocast("cpu", torch.float16):
        out = part(batch)
    return out.float()
"""
LOOPS = {
    "plain": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for number in range(120):
    optimizer.zero_grad()
    scaled(forward(model, data[number]).square().mean() * huge(3, 9)).backward()
    step(optimizer)
    update()
""",
    "clipped by norm": """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for number in range(120):
    optimizer.zero_grad()
    scaled(forward(model, data[number]).square().mean() * huge(3, 9)).backward()
    unscale(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    step(optimizer)
    update()
""",
    "clipped by value": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(120):
    optimizer.zero_grad()
    scaled(forward(model, data[number]).square().mean()).backward()
    unscale(optimizer)
    nn.utils.clip_grad_value_(model.parameters(), 0.001)
    step(optimizer)
    update()
""",
    "accumulated": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for number in range(120):
    optimizer.zero_grad(set_to_none=False)
    for part in range(3):
        out = forward(model, data[3 * number + part])
        scaled(out.square().mean() * huge(9) / 3).backward()
    step(optimizer)
    update()
""",
    "two optimizers": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.Adam(second.parameters(), lr=0.01)
for number in range(120):
    other.zero_grad()
    scaled(forward(second, forward(model, data[number]).detach()).square().mean()).backward()
    step(other)
    optimizer.zero_grad()
    scaled(forward(second, forward(model, data[number])).mean() * huge(3, 9)).backward()
    step(optimizer)
    update()
""",
    "a metric that reads gradients": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(120):
    optimizer.zero_grad()
    scaled(forward(model, data[number]).square().mean()).backward()
    unscale(optimizer)
    notes.append(float(sum(each.grad.norm() for each in model.parameters())))
    for each in model.parameters():
        each.grad.clamp_(-0.01, 0.01)
    step(optimizer)
    update()
""",
    "bad gradients are thrown away": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(120):
    optimizer.zero_grad()
    scaled(forward(model, data[number]).square().mean() * huge(3, 9)).backward()
    unscale(optimizer)
    if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 0.1)) and number % 3:
        step(optimizer)
    update()
""",
    "a second optimizer from the fifth iteration on": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.Adam(second.parameters(), lr=0.01)
for number in range(120):
    optimizer.zero_grad()
    other.zero_grad()
    scaled(forward(second, forward(model, data[number])).square().mean() * huge(0)).backward()
    unscale(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    step(optimizer)
    if number > 4:
        step(other)
    update()
""",
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return a function that trains by a loop.

    It returns the parameters after each iteration, and the record.
    """
    monkeypatch.chdir(tmp_path)

    def train(loop, *, by_hand, phase="speed"):
        weights = tmp_path / f"weights-{by_hand}-{phase}"
        end = f"""
    with open({str(weights)!r}, "a") as file:
        print([each.tolist() for part in (model, second) for each in part.parameters()], file=file)
"""
        begin = MODEL + (BY_HAND if by_hand else OUTSIDE)
        Path("train.py").write_text(begin + loop + end)
        record = None
        if by_hand:
            subprocess.run([sys.executable, "train.py"], check=True)
        else:
            (record,) = run_process(
                ("train.py",), "amp-fp16", phase=phase, inject=True, steps=100, allow_writes=True
            )
        return weights.read_text().splitlines(), record

    return train


SKIPPED = {
    "plain": [3, 9],
    "clipped by norm": [3, 9],
    "accumulated": [9],
    "two optimizers": [7, 19],  # the second of the fourth and of the tenth iteration
    "a second optimizer from the fifth iteration on": [0],
}
"""The optimizer steps that a planted overflow skips."""


@pytest.mark.parametrize("name", LOOPS)
def test_a_script_trains_as_with_a_gradscaler_of_its_own(train, name):
    outside, record = train(LOOPS[name], by_hand=False)
    by_hand, _ = train(LOOPS[name], by_hand=True)
    assert len(outside) >= 50
    assert outside == by_hand[: len(outside)]
    skipped = [place for place, step in enumerate(record["steps"]) if step["skipped"]]
    assert skipped == SKIPPED.get(name, [])


LOOP = """
optimizer = {optimizer}
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.9**number)
for number in range(120):
    optimizer.zero_grad()
    batch = data[number].requires_grad_({attacked})
    loss = model(batch).square().mean()
    {step}
    schedule.step()
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"
CLOSURE = "optimizer.step(lambda: (loss.backward(), loss)[1])"


@pytest.mark.parametrize(
    ("optimizer", "attacked", "step", "why"),
    [
        (
            SGD,
            False,
            "torch.amp.GradScaler('cpu').scale(loss).backward()",
            "scales its loss itself",
        ),
        ("torch.optim.LBFGS(model.parameters())", False, CLOSURE, "LBFGS"),
        (SGD, True, "loss.backward(); optimizer.step()", "no optimizer has"),
    ],
)
def test_what_loss_scaling_from_outside_would_make_wrong_is_refused(
    train, optimizer, attacked, step, why
):
    loop = LOOP.format(optimizer=optimizer, attacked=attacked, step=step)
    with pytest.raises(RefusedError, match=why):
        train(loop, by_hand=False, phase="memory")


def test_a_closure_and_torch_autograd_grad_are_right(train):
    gradient = "torch.autograd.grad(loss, model[0].weight, create_graph=True)[0]"
    step = f"loss = loss + {gradient}.square().sum(); {CLOSURE}"
    text = LOOP.format(optimizer=SGD, attacked=False, step=step)
    outside, record = train(text, by_hand=False, phase="memory")
    (warning,) = record["warnings"]
    assert "torch.autograd.grad runs without the loss scale" in warning
    assert len(outside) >= 14
    timed, _ = train(text, by_hand=False)
    assert timed[:14] == outside[:14]
