"""What the hook of `run_bench.py script` adds to a training step: bare and hooked processes of one loop in turns.

    python perf/script_overhead.py [--rounds 5] [--layers 50]

The loop trains a small model on the CPU; a step's layers show that only its outermost module pays. Each process prints
the median of its steps, as CPU time of the thread, which other programs disturb less; the figure is the median
difference over rounds. On a GPU a step has an event more to record.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOOP = """
import sys, time
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(int(sys.argv[1]))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
x, times = torch.randn(1, 4), []
for step in range(2000):
    begin = time.thread_time()
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.thread_time() - begin)
times.sort()
print(1e6 * times[len(times) // 2])
"""


def median_us(script: Path, layers: int, *, inject: str | None) -> float:
    """Return the median step of one process in µs; ``inject`` None is without the hook."""
    environment = dict(os.environ)
    if inject is not None:
        site = script.parent / "site"
        site.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / "bench" / "script" / "hook.py", site / "sitecustomize.py")
        settings = {"main": str(script), "out": str(script.parent / "out"), "scratch": str(site), "seed": 0}
        settings |= {"warmup": 10, "steps": 10**6, "inject": inject, "census": False, "allow_writes": False}
        environment |= {"PYTHONPATH": str(site), "AMPMETER_HOOK": json.dumps(settings)}
    words = [sys.executable, str(script), str(layers)]
    return float(subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder).resolve() / "train.py"
        script.write_text(LOOP)
        for inject in ("", "fp32", "amp-bf16"):
            pairs = []
            for number in range(options.rounds):
                kinds = (None, inject) if number % 2 else (inject, None)
                times = {kind: median_us(script, options.layers, inject=kind) for kind in kinds}
                pairs.append((times[None], times[inject]))
            added = sorted(hooked - bare for bare, hooked in pairs)
            bare = statistics.median(bare for bare, _ in pairs)
            print(
                f"{f'--inject {inject}' if inject else '--arm'}: a step of {bare:.0f} µs takes "
                f"{statistics.median(added):+.1f} µs [{added[0]:+.1f}, {added[-1]:+.1f}]"
            )


if __name__ == "__main__":
    main()
