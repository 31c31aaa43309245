"""Loss scaling from outside on a GPU trains as a GradScaler in the script does, bit for bit."""

import subprocess
import sys

import pytest

SCRIPT = """
import os
import sys
from contextlib import nullcontext

import torch
from torch import nn

torch.manual_seed(0)
own = "--own" in sys.argv
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cuda", enabled=own)
kinds = set()
model[0].register_forward_hook(lambda _module, _inputs, output: kinds.add(str(output.dtype)))
data = torch.randn(60, 16, 8).cuda()
for number in range(60):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16) if own else nullcontext():
        out = model(data[number])
    overflows = 1e6 if number in (3, 9) else 1
    loss = out.float().square().mean() * overflows
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    (kind,) = {"own"} if own else kinds
    with open(f"{kind}-{os.getpid()}.txt", "a") as file:
        print([each.tolist() for each in model.parameters()], file=file)
"""


@pytest.mark.slow
def test_an_injected_scaler_trains_as_one_in_the_script(host):
    server = host("T4")
    (server.folder / "train.py").write_text(SCRIPT)
    own = [sys.executable, "train.py", "--own"]
    subprocess.run(own, cwd=server.folder, env=server.environment(), check=True, timeout=300)
    (by_hand,) = server.folder.glob("own-*.txt")
    expected = by_hand.read_text().splitlines()
    arms = "--inject as-is,amp-fp16 --allow-writes"
    server.run_anew(f"script --quick --steps 20 {arms} --gpus 0 --out out -- train.py")
    injected = sorted(server.folder.glob("torch.float16-*.txt"))
    assert injected
    for file in injected:
        lines = file.read_text().splitlines()
        assert len(lines) > 20
        assert lines == expected[: len(lines)]
    assert expected[3] == expected[2]  # an overflow skips the step
