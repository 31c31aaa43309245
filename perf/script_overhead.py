"""Measure what the hook of `run_bench.py script` adds to a training step.

    python perf/script_overhead.py [--pairs 200] [--layers 50]

The hook's wrappers are put in and taken out by turns. The loop trains a small model on the CPU, in
one process for each way of measuring; each of a step's layers pays a little. A turn's figure is its
fastest step in CPU time of the thread, since other programs only add to a step; the result is the
median of the differences of neighbouring turns, with its bootstrap interval. With `--inject
amp-bf16` the steps without the hook have autocast and the cast to fp32 in the script, so that the
hook alone differs. On a GPU a step has an event more to record.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from bench.script.launcher import BESIDE  # noqa: E402

LOOP = """
import random, statistics, sys, time
import torch
from torch.optim import optimizer as optimizers

layers, pairs, inject = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
random.seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
x = torch.randn(1, 4)


def forward(hooked):
    if hooked or inject != "amp-bf16":
        return model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    return out.float()


def best_us(hooked, steps=20):
    times = []
    for _ in range(steps):
        begin = time.thread_time()
        forward(hooked).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(1e6 * (time.thread_time() - begin))
    return min(times[5:])  # the first ones warm what was just put in or taken out


best_us(True, 100)
call, backward = torch.nn.Module.__call__, torch.autograd.backward
before, after = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
hooks = [(kind, dict(kind)) for kind in (before, after)]


def turn(hooked):
    torch.autograd.backward = backward if hooked else backward.__wrapped__
    for kind, own in hooks:
        kind.clear()
        kind.update(own if hooked else {})
    torch.nn.Module.__call__ = call if hooked else torch.nn.Module._wrapped_call_impl
    return best_us(hooked)


bare, added = [], []
for number in range(pairs):
    taken = {}
    for hooked in (False, True) if number % 2 else (True, False):
        taken[hooked] = turn(hooked)
    bare.append(taken[False])
    added.append(taken[True] - taken[False])
medians = sorted(statistics.median(random.choices(added, k=pairs)) for _ in range(1000))
interval = f"95 % interval {medians[25]:+.1f} to {medians[-26]:+.1f}"
took = f"a step of {statistics.median(bare):.0f} µs takes {statistics.median(added):+.1f} µs"
print(f"{took}; {interval}")
"""


def measured(script: Path, layers: int, pairs: int, inject: str) -> str:
    """Return what a process of the loop under the hook printed."""
    site = script.parent / "site"
    site.mkdir(exist_ok=True)
    for module, copied in BESIDE.items():
        shutil.copyfile(ROOT / "bench" / module, site / copied)
    settings = {"home": str(script.parent), "seed": 0, "warmup": 10, "steps": 10**6}
    settings |= {"inject": inject, "allow_writes": False}
    environment = os.environ | {"PYTHONPATH": str(site), "AMPMETER_HOOK": json.dumps(settings)}
    words = [sys.executable, str(script), str(layers), str(pairs), inject]
    done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--layers", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder).resolve() / "train.py"
        script.write_text(LOOP)
        for inject in ("", "fp32", "amp-bf16"):
            added = measured(script, options.layers, options.pairs, inject)
            option = f"--inject {inject}" if inject else "--arm"
            print(f"{option}: {added}")


if __name__ == "__main__":
    main()
