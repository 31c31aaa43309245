"""Runs with rows of phases that few have, and what is left of one whose phases stopped or files were cut."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from bench.phases.explain import Explained
from bench.phases.memory import MemoryPeak
from bench.results.columns import COLUMNS, OF_PHASES
from bench.results.records import Numeric, TrialResult
from bench.spec.data_source import DataSource
from bench.spec.trial import Trial
from perf.synthetic_fleet import GIB
from tests.phases.test_explain_reasons import FP32, GAINS, figure, held, step
from tests.phases.test_numerics_report import figures
from tests.report import fleet
from tests.report.builders import GPU, RunBuilder, block, capped, timed
from tests.report.tables.test_measurements import answered


def begin(run: Path, day: str) -> None:
    """Claim that a run was started on another day, and so is another run, and that it has ended."""
    fleet.edit_run(run, lambda info: info.update(started=f"{day}T00:00:00+00:00", finished=f"{day}T01:00:00+00:00"))


def numerics(run: RunBuilder) -> None:
    more = [("output_gradient", "", "-20"), ("error", "", "output")]
    for seed in (0, 1):
        for name, scaled in (("fp32", {}), ("amp-fp16", {"scale": 1024.0, "zero": 20.0, "skipped": (1,)})):
            trial = run.trial("numerics", [name], 128, seed=seed)
            rows = figures(trial.id, name, losses=[2.0, 1.0, 0.7, 0.5, 0.4, 0.3], **scaled)
            rows += [numeric(trial, *words, 7.0) for words in more]
            run.add(trial, TrialResult(precision=name, status="ok", detail="loss 2 in the first step"), records=rows)


def numeric(trial: Trial, kind: Any, layer: str, name: str, value: float) -> Numeric:
    (precision,) = trial.precisions
    return Numeric(trial=trial.id, precision=precision, kind=kind, step=0, layer=layer, name=name, value=value)


def layers(run: RunBuilder) -> None:
    trial = run.trial("layers", ["amp-fp16"], 128)
    of_model = ("concentrated", "error", "kept", "limit")
    rows = [numeric(trial, "module", "", name, 0.5) for name in of_model]
    for module in ("head", "body"):
        rows += [numeric(trial, "module", module, name, 0.5) for name in ("error", "share")]
    rows.append(numeric(trial, "module", "head", "keep", 1.0))
    run.add(trial, TrialResult(precision="amp-fp16", status="ok", detail="keep head: 3 %"), records=rows)


def explain(run: RunBuilder) -> None:
    """Casts take a quarter of the precision's step."""
    trial = run.trial("explain", ["fp32", "amp-bf16"], 128)
    rows = [*step("fp32", FP32), *step("amp-bf16", GAINS | {"casts and layout": 20.0})]
    for name, product_ms, copy_ms in (("fp32", 60.0, 2.0), ("amp-bf16", 24.0, 20.0)):
        product = {"work": "other products", "detail": "128x512 512x512"}
        rows.append(figure(name, "operator", "aten::addmm", product_ms, **product))
        rows.append(figure(name, "operator", "aten::_to_copy", copy_ms, work="casts and layout", detail="512x512"))
    rows += held("fp32", ("convolution", "body.0", 60), ("relu", "body.1", 40))
    rows += held("amp-bf16", ("_to_copy", "body.0", 30), ("relu", "body.1", 20))
    known = [{name: value for name, value in row.items() if not pd.isna(value)} for row in rows]
    explained = [Explained(trial=trial.id, **row) for row in known]
    run.add(trial, *(TrialResult(precision=name, status="ok") for name in trial.precisions), records=explained)


def inference(run: RunBuilder) -> None:
    for seed in (0, 1):
        run.result("inference", "fp32", seed=seed, row=answered(None))
        run.result("inference", "amp-bf16", seed=seed, row=answered(1.5))


def of_a_gpu(folder: Path) -> Path:
    """A run on a GPU that was watched: timed under a power cap and with its noise, and trained."""
    run = capped(RunBuilder(folder, device=replace(GPU, uuid="GPU-0")), 1.8)
    run.floor([1.0, 1.01, 0.99]).memory("fp32", 100).memory("amp-bf16", 60).lost("memory", "fp16", "oom", "too big")
    run.train("fp32", [90.0, 90.4, 90.2]).train("amp-bf16", [90.1, 90.3, 90.5], epoch_s=2.0).diverged("amp-fp16")
    run.append(block(run.trial("speed", ["fp32", "amp-bf16"], 128).id, start_s=1.8e9))
    return folder


def of_scripts(folder: Path) -> Path:
    """A run of a training script whose reference has a name of its own."""
    run = RunBuilder(folder, suite="train.py")
    script = {"command": ["train.py"], "arms": [["plain", ""], ["amp", "--amp"]]}
    fleet.edit_run(folder, lambda info: info["request"].update(script=script))

    def trial(phase: str, *names: str, replicate: int = 0) -> Trial:
        asked = run.trial(phase, names, 1, replicate=replicate)
        return replace(asked, cell=replace(asked.cell, data=DataSource(kind="script"), reference="plain"))

    for name in ("plain", "amp"):
        peak = MemoryPeak(peak_allocated_bytes=GIB)
        run.add(trial("memory", name), TrialResult(precision=name, status="ok", row=peak))
    for replicate, step_ms in enumerate((10.0, 10.05, 10.0)):
        speedup = 2.0 + replicate / 100
        observed = {"script_loss": 1.0 + replicate / 10, "script_wait_pct": 5.0}
        plain = replace(timed(step_ms, 1), **observed)
        amp = replace(timed(step_ms / speedup, 1, speedup=speedup, within=0.05), **observed)
        results = [TrialResult(precision=name, status="ok", row=row) for name, row in (("plain", plain), ("amp", amp))]
        run.add(trial("speed", "plain", "amp", replicate=replicate), *results)
    return folder


def cut(folder: Path, draw: Random) -> list[str]:
    """Drop rows of a run's files; return what was done."""
    paths = [folder / name for name in COLUMNS if (folder / name).is_file()]
    files = {path.name: pd.read_csv(path, dtype=str, keep_default_na=False) for path in paths}
    done = []
    for path in paths:
        way, rows = draw.choice(WAYS), files[path.name]
        rows = way(rows, draw) if len(rows) else rows
        rows.to_csv(path, index=False, lineterminator="\n")
        done.append(f"{path.name}: {way.__name__}")
        if draw.random() < 0.1:
            text = path.read_bytes()
            path.write_bytes(text[: draw.randint(text.index(b"\n"), len(text))])
            done.append(f"{path.name}: its last write is cut off")
        elif path.name not in OF_PHASES and draw.random() < 0.05:
            path.unlink()
            done.append(f"{path.name}: deleted")
    if draw.random() < 0.3:
        fleet.edit_run(folder, lambda info: info.update(finished=None))
        done.append("run.json: unfinished")
    return done


def no_rows(rows: pd.DataFrame, _draw: Random) -> pd.DataFrame:
    return rows[:0]


def the_last_rows(rows: pd.DataFrame, draw: Random) -> pd.DataFrame:
    return rows[: draw.randint(0, len(rows))]


def rows_here_and_there(rows: pd.DataFrame, draw: Random) -> pd.DataFrame:
    share = draw.choice((0.02, 0.2, 0.5, 0.9))
    return rows[[draw.random() > share for _ in rows.index]]


WAYS = (no_rows, the_last_rows, rows_here_and_there)
"""What is dropped of a file."""
