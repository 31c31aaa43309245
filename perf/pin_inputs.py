"""Make the runs that perf/pin.py compares reports of, by the code of an old checkout, and print them as JSON.

Run in the checkout, with its folder as PYTHONPATH: ``python pin_inputs.py WORK``. What is in WORK already is kept.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.results.records import Block, Energy, TrialResult
from bench.results.store import Store
from bench.spec.trial import SuiteRef
from perf.synthetic_fleet import write_all
from perf.synthetic_run import as_timed
from tests.report.ablations import STEPS_MS, apart, whole
from tests.report.builders import GPU, RunBuilder, timed

RUNS = {
    "ladder": "--suite mlp --set width=64 --batch-sizes 32 --ladder",
    "sweep": "--suite mlp --sweep width=64,96 --set depth=2 --batch-sizes 32,64",
    "phases": "--suite mlp --set width=64 --batch-sizes 32 --phases memory,floor,speed,numerics,inference,explain",
    "seeds": "--suite digits --gpus cpu,cpu+cpu --batch-sizes 32 --time-budget 3s --epochs 2 --seeds 0,1,2,3,4 "
    "--precisions fp32,amp-bf16",
}
"""Real runs on this CPU, by name."""
GAINS = {"fp32": 1.0, "amp-fp16": 1.8, "amp-bf16": 2.0}
NOISE = random.Random(1)


def speed(
    run: RunBuilder, batch: int, names: Sequence[str], slower: float = 1, processes: int = 4, **more: Any
) -> None:
    """Add processes that time arms together; of process ``more["off"]`` amp-bf16 is disturbed."""
    for replicate in range(processes):
        trial, results, blocks = run.trial("speed", names, batch, replicate=replicate), [], []
        for name in names:
            disturbed = name == "amp-bf16" and replicate == more.get("off")
            gain = GAINS[name] * NOISE.gauss(1, 0.01) * (0.6 if disturbed else 1)
            compared = names[0] == "fp32" != name
            ends = dict.fromkeys(("speedup", "speedup_low", "speedup_high"), gain) if compared else {}
            figures = timed(1, batch, rounds=9, **{"paired": names[0] == "fp32", **ends})
            results.append(TrialResult(precision=name, status=more.get("status", "ok"), speed=figures))
            step_ms = (2 + batch / 9) * slower / gain
            for at in range(18):
                place = {"trial": trial.id, "precision": name, "round": at // 2, "position": at % 2, "start_s": 0.0}
                blocks.append(Block(steps=3, time_ms=3 * step_ms * NOISE.gauss(1, 0.004), **place))
        with Store(run.folder) as store:
            store.add(blocks)
        run.add(trial, *as_timed(results, blocks, batch))


def edges(folder: Path, slower: float) -> None:
    """Write a run with every status. Where ``slower`` is above 1, all is worse, but fp32 fits where it did not."""
    run = RunBuilder(folder)
    speed(run, 16, ["fp32", "amp-bf16"], slower, processes=1)
    speed(run, 24, ["fp32", "amp-bf16"], slower, processes=2, status="invalid")
    speed(run, 32, list(GAINS), slower, processes=6, off=2)
    speed(run, 48, ["fp32", "amp-fp16"], slower, status="unconverged")
    speed(run, 64, list(GAINS), slower)
    speed(run, 128, list(GAINS) if slower > 1 else ["amp-fp16", "amp-bf16"], slower)
    speed(run, 256, ["amp-bf16"], slower)
    lost: list[tuple[str, Any, int]] = [("fp32", "oom", 256), ("amp-fp16", "timeout", 256), ("fp32", "oom", 512)]
    lost += [("fp8-rowwise", "unsupported", 64), ("amp-bf16", "failed", 512), ("fp16", "nonfinite", 64)]
    lost += [("fp32", "oom", 128)] if slower == 1 else []
    for precision, status, batch in lost:
        for phase in ("speed", "memory"):
            run.lost(phase, precision, status, "as planned", batch=batch)
    for batch, (precision, gain) in itertools.product((32, 64, 128), GAINS.items()):
        if (precision, "oom", batch) not in lost:
            run.memory(precision, batch * slower**2 / gain**0.5, batch=batch)
            joules = batch * slower / gain * NOISE.gauss(1, 0.01)
            energy = Energy(energy_source="counter", energy_j_per_step=joules)
            run.add(
                run.trial("energy", [precision], batch), TrialResult(precision=precision, status="ok", energy=energy)
            )
    for precision, seeds in (("fp32", 6), ("amp-fp16", 6), ("amp-bf16", 5)):
        level = 94 - 30 * (slower - 1) * (precision != "fp32")
        accuracies = [level + NOISE.gauss(0, 0.2) for _ in range(seeds)]
        run.train(precision, accuracies, batch=64, epoch_s=[3 * slower * NOISE.gauss(1, 0.01) for _ in range(seeds)])
    run.diverged("bf16", seed=1, batch=64)


def make(home: Path) -> None:
    """Write runs with every status, several placements, a swept parameter and ablations."""
    for (group, slower), number in itertools.product((("old", 1.0), ("new", 1.06)), (1, 2)):
        edges(home / group / f"edges-{number}", slower)
    run = RunBuilder(home / "placements")
    for placement, batches, slower in (("0", (32, 64), 1.0), ("1", (64,), 1.1), ("0+1", (64, 128), 0.6)):
        name = f"2 × {GPU.name}" if "+" in placement else GPU.name
        run.device = replace(GPU, placement=placement, name=name, names=(GPU.name,))
        for batch in batches:
            speed(run, batch, list(GAINS), slower)
            for precision, gain in GAINS.items():
                run.memory(precision, batch / gain, batch=batch)
        run.train("fp32", [90.0, 90.4, 90.1], batch=64).train("amp-bf16", [90.1, 90.3, 89.9], batch=64)
    run = RunBuilder(home / "swept")
    for width in (64, 65, 128):
        run.suite = SuiteRef(name="mlp", parameters=(("width", width),))
        speed(run, 64, list(GAINS), width / 64)
        run.memory("fp32", width).memory("amp-bf16", width / 2)
    whole(RunBuilder(home / "ablation"))
    scattered = {name: [step, step * 1.02, step * 0.99] for name, step in STEPS_MS.items()}
    apart(RunBuilder(home / "ablation-apart"), scattered)


def measure(words: str, out: Path) -> None:
    """Measure a run on this CPU."""
    command = [sys.executable, str(Path.cwd() / "run_bench.py"), *words.split(), "--quick", "--out", str(out)]
    command += [] if "--gpus" in words else ["--gpus", "cpu"]
    done = subprocess.run(command, cwd=out.parent, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=2, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} failed")


def main(work: Path) -> dict[str, list[str]]:
    """Make what is not there; return the folders of each case."""
    makers = {work / "fleet": write_all, work / "made": make}
    makers |= {work / name: lambda out, words=words: measure(words, out) for name, words in RUNS.items()}
    for folder, maker in makers.items():
        if not folder.exists():
            making = folder.with_name(f"making-{folder.name}")
            maker(making)
            making.rename(folder)
    committed = [path.parent for path in sorted(Path.cwd().glob("results/*/run.json"))]
    fleet, made, real = work / "fleet", work / "made", [work / name for name in RUNS]
    old, new = made / "old", made / "new"
    runs = [*committed, *real, old / "edges-1", *(path for path in sorted(made.iterdir()) if path != new)]
    runs += [fleet / name for name in ("fleet", "cloud-t4", "h100-one")]
    cases = {f"report {path.name}": [str(path)] for path in runs}
    cases |= {"report all of fleet": [str(fleet)], "report all of results": [str(path) for path in committed]}
    pairs = [(fleet / "h100-one", fleet / "h100-new"), (fleet / "cloud-a100", fleet / "fleet"), (old, new)]
    pairs += [(old / "edges-1", new / "edges-1"), (new / "edges-1", old / "edges-1")]
    for run in (*committed, *real):
        again = work / "again" / run.name
        if not again.exists():
            shutil.copytree(run, again)
            info = json.loads((run / "run.json").read_text())
            (again / "run.json").write_text(json.dumps(info | {"started": "2026-01-02T00:00:00+00:00"}))
        pairs.append((run, again))
    return cases | {
        f"compare {' '.join('/'.join(path.parts[-2:]) for path in pair)}": [str(path) for path in pair]
        for pair in pairs
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
