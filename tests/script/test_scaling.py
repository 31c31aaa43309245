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
scaled, step, unscale, update, forward = {by_hand}
"""
OUTSIDE = (
    "(lambda loss: loss), (lambda optimizer: optimizer.step()), (lambda optimizer: None), "
    "(lambda: None), "
)
OUTSIDE += "(lambda part, batch: part(batch))"
BY_HAND = """(
    (scaler := torch.amp.GradScaler("cpu")).scale, scaler.step, scaler.unscale_, scaler.update,
    lambda part, batch: cast(part, batch),
)
def cast(part, batch):
    with torch.autocast("cpu", torch.float16):
        out = part(batch)
    return out.float()
"""
LOOPS = {
    "plain": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for number in range(120):
    optimizer.zero_grad()
    scaled(forward(model, data[number]).square().mean() * (1e6 if number in (3, 9) else 1)).backward()
    step(optimizer)
    update()
""",
    "clipped by norm": """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for number in range(120):
    optimizer.zero_grad()
    scaled(forward(model, data[number]).square().mean() * (1e6 if number in (3, 9) else 1)).backward()
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
        scaled(forward(model, data[3 * number + part]).square().mean() * (1e6 if number == 9 else 1) / 3).backward()
    step(optimizer)
    update()
""",
    "two optimizers": """
optimizer, other = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.01)
for number in range(120):
    other.zero_grad()
    scaled(forward(second, forward(model, data[number]).detach()).square().mean()).backward()
    step(other)
    optimizer.zero_grad()
    scaled(forward(second, forward(model, data[number])).mean() * (1e6 if number in (3, 9) else 1)).backward()
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
    scaled(forward(model, data[number]).square().mean() * (1e6 if number in (3, 9) else 1)).backward()
    unscale(optimizer)
    if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 0.1)) and number % 3:
        step(optimizer)
    update()
""",
    "a second optimizer from the fifth iteration on": """
optimizer, other = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.01)
for number in range(120):
    optimizer.zero_grad()
    other.zero_grad()
    scaled(forward(second, forward(model, data[number])).square().mean() * (1e6 if number == 0 else 1)).backward()
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
    """Return a function that trains by a loop, and returns its parameters after each iteration and
    its record.
    """
    monkeypatch.chdir(tmp_path)

    def train(loop, *, by_hand, phase="speed"):
        weights = tmp_path / f"weights-{by_hand}-{phase}"
        end = f"    with open({str(weights)!r}, 'a') as file:\n"
        end += (
            "        print([each.tolist() for each in [*model.parameters(), "
            "*second.parameters()]], file=file)\n"
        )
        way = BY_HAND if by_hand else OUTSIDE
        Path("train.py").write_text(MODEL.replace("{by_hand}", way) + loop.strip("\n") + "\n" + end)
        if by_hand:
            subprocess.run([sys.executable, "train.py"], check=True)
            return weights.read_text().splitlines(), None
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


@pytest.mark.parametrize(
    ("optimizer", "attacked", "step", "why"),
    [
        (
            SGD,
            False,
            "scaler = torch.amp.GradScaler('cpu'); scaler.scale(loss).backward()",
            "scales its loss itself",
        ),
        (
            "torch.optim.LBFGS(model.parameters())",
            False,
            "optimizer.step(lambda: (loss.backward(), loss)[1])",
            "LBFGS",
        ),
        (SGD, True, "loss.backward(); optimizer.step()", "no optimizer has"),
    ],
)
def test_what_loss_scaling_from_outside_would_make_wrong_is_refused(
    train, optimizer, attacked, step, why
):
    with pytest.raises(RefusedError, match=why):
        train(
            LOOP.format(optimizer=optimizer, attacked=attacked, step=step),
            by_hand=False,
            phase="memory",
        )


def test_a_closure_and_torch_autograd_grad_are_right(train):
    step = "optimizer.step(lambda: (loss.backward(), loss)[1])"
    penalty = (
        "penalty = torch.autograd.grad(loss, model[0].weight, "
        "create_graph=True)[0].square().sum(); "
    )
    text = LOOP.format(
        optimizer=SGD, attacked=False, step=f"{penalty}loss = loss + penalty; {step}"
    )
    outside, record = train(text, by_hand=False, phase="memory")
    assert any(
        "torch.autograd.grad runs without the loss scale" in warning
        for warning in record["warnings"]
    )
    assert len(outside) >= 14
    timed, _ = train(text, by_hand=False)
    assert timed[:14] == outside[:14]
